package engine

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// Types of the events that an engine appends to its journal (Options.Journal). Times and spans are in milliseconds.
const (
	// TypeWorkerQuiet: a worker gave no heartbeat for longer than its leases last. Subject: the worker. Data: QuietData.
	TypeWorkerQuiet = "WorkerQuietEvent"
	// TypeLeaseMoved: a worker took a partition or gave it up. Subject: AGENT/TOPIC/PARTITION, as below. Data: LeaseData.
	TypeLeaseMoved = "LeaseMovedEvent"
	// TypeStepTimedOut: a handler ran over its time limit. Data: StepData.
	TypeStepTimedOut = "StepTimedOutEvent"
	// TypeStepFenced: a step was dropped at its commit, since its partition had another owner by then. Data: StepData.
	TypeStepFenced = "StepFencedEvent"
	// TypeAgentStuck: a handler ignored its cancellation for so long that its worker ends. Data: StepData.
	TypeAgentStuck = "AgentStuckEvent"
)

// QuietData is the data of a WorkerQuietEvent.
type QuietData struct {
	Worker string `json:"worker"`
	Quiet  int64  `json:"quiet_ms"` // since its last heartbeat
	Lost   int    `json:"lost"`     // partitions that it had and that others have, or may have, by now
}

// LeaseData is the data of a LeaseMovedEvent.
type LeaseData struct {
	Worker    string `json:"worker"`
	Agent     string `json:"agent"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Epoch     int64  `json:"epoch"`
	What      string `json:"what"`         // taken, left, passed or lost
	To        string `json:"to,omitempty"` // of passed: the worker that it's meant for, if any
	Carried   int    `json:"carried,omitempty"`
}

// StepData is the data of events about a step.
type StepData struct {
	Worker    string `json:"worker"`
	Agent     string `json:"agent"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Epoch     int64  `json:"epoch"`
	Subject   string `json:"subject,omitempty"` // the aggregate
	Source    string `json:"source"`            // of the event that was handled
	ID        string `json:"id"`
	Attempt   int    `json:"attempt"`
	Limit     int64  `json:"limit_ms,omitempty"`
	Ran       int64  `json:"ran_ms,omitempty"`
	Carried   bool   `json:"carried,omitempty"`
}

// Bounds of what waits to be journalled, and of how long its end waits for the broker's answers.
const (
	journalQueue = 1024
	journalEnd   = time.Second
)

// journal appends events about what happened to a topic: for people and for other agents, never for the engine. It's at
// best effort, and never holds anything up: what doesn't fit into its queue, or the broker refuses, is counted.
type journal struct {
	name      string // of the topic; "": there's none
	source    string
	worker    string
	publisher broker.Publisher
	log       *slog.Logger
	topic     broker.Topic
	queue     chan event.Event
	dropped   atomic.Int64
	flying    atomic.Int64
}

func newJournal(o Options) *journal {
	return &journal{name: o.Journal, source: "swarmlog://" + o.Swarm, worker: o.Worker, publisher: o.Broker.Publisher(), log: o.Logger,
		queue: make(chan event.Event, journalQueue)}
}

// lookUp finds the topic.
func (j *journal) lookUp(ctx context.Context, b broker.Broker) error {
	if j.name == "" {
		return nil
	}
	found, err := b.Topics(ctx, j.name)
	if err != nil {
		return fmt.Errorf("look up the journal's topic %s: %w", j.name, err)
	}
	j.topic = found[0]
	return nil
}

// add queues an event. What tells it from others of its type makes its id, so that it has the same one if it's told twice.
func (j *journal) add(typ, subject string, data any, which ...any) {
	if j.name == "" {
		return
	}
	e := event.New(typ, subject, data)
	e.Source, e.Time = j.source, time.Now().UTC()
	e.ID = event.DeriveID("journal/"+typ, j.worker+"/"+subject, fmt.Sprint(which...), 0)
	select {
	case j.queue <- e:
	default:
		j.dropped.Add(1)
	}
}

// run publishes until ctx ends, and then what is left.
func (j *journal) run(ctx context.Context) {
	for {
		select {
		case e := <-j.queue:
			j.publish(e)
			continue
		case <-ctx.Done():
		}
		break
	}
	for {
		select {
		case e := <-j.queue:
			j.publish(e)
			continue
		default:
		}
		break
	}
	end := time.Now().Add(journalEnd)
	for j.flying.Load() > 0 && time.Now().Before(end) {
		time.Sleep(5 * time.Millisecond)
	}
}

func (j *journal) publish(e event.Event) {
	m, err := e.Encode()
	if err != nil || j.flying.Load() >= journalQueue {
		j.dropped.Add(1)
		return
	}
	j.flying.Add(1)
	at := event.Position{Topic: j.name, Partition: route.Partition(m.Key, max(1, j.topic.Partitions))}
	j.publisher.Publish(broker.Record{Message: m, Position: at, TopicID: j.topic.ID}, func(_ int64, err error) {
		j.flying.Add(-1)
		if err != nil {
			j.dropped.Add(1)
			j.log.Debug("the journal can't be written", "topic", j.name, "error", err)
		}
	})
}

// JournalDropped counts events that happened and aren't in the journal.
func (e *Engine) JournalDropped() int64 { return e.journal.dropped.Load() }

// moved journals what became of a partition's lease.
func (g *group) moved(p *partition, what, to string, carried int) {
	d := LeaseData{g.eng.opts.Worker, g.spec.Name, p.id.topic, p.id.partition, p.fence.Epoch, what, to, carried}
	g.eng.journal.add(TypeLeaseMoved, partitionSubject(p.fence.Key, p.id.topic), d, p.fence.TopicID, " ", p.fence.Epoch, " ", what)
}

// stepEvent journals what happened to a step.
func (g *group) stepEvent(typ string, t *task, ran time.Duration, s *ledger.Step) {
	p := t.lane.p
	d := StepData{Worker: g.eng.opts.Worker, Agent: g.spec.Name, Topic: p.id.topic, Partition: p.id.partition, Offset: t.record.Offset,
		Epoch: p.fence.Epoch, Subject: t.event.Subject, Source: t.event.Source, ID: t.event.ID, Attempt: t.attempt, Ran: ran.Milliseconds(),
		Carried: s != nil && s.Carried}
	if typ != TypeStepFenced {
		d.Limit = g.spec.Limits.Timeout.Milliseconds()
	}
	g.eng.journal.add(typ, partitionSubject(p.fence.Key, p.id.topic), d, p.fence.TopicID, " ", p.fence.Epoch, " ", t.record.Offset, " ", t.attempt)
}

func partitionSubject(key ledger.Key, topic string) string {
	return key.Group + "/" + topic + "/" + strconv.Itoa(int(key.Partition))
}
