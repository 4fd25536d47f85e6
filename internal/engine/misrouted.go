package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// A key's records are all to stand in one partition: the one to which its slot leads, of the slots that the topic had
// when it was first seen. Producers with another partitioner, and all foreign ones once a topic has grown, put records
// elsewhere. Agents pass those over (outcome misrouted), and ForwardAgent publishes them, through its outbox, to where
// they belong: behind what the key's records there are. So each key's order is that of its partition, and no two workers
// are at one key at once.
//
// The forwarding agent reads a topic only once there's reason to: the topic has more partitions than slots, a record of
// it was passed over here or, as the leases' counters tell, anywhere, or it was forwarded of before. Until then nothing
// is read twice. Then it reads all that the log holds of the topic, since what a misrouted record's agents passed over
// long ago may not be forwarded yet; it decodes nothing and commits once a fetch, so that costs little besides the way
// from the broker. From then on each record of that topic is read by it too.

// ForwardAgent is the reserved name of the agent that moves misrouted records to where they belong.
const ForwardAgent = "swarmlog.forward"

// forwardLimit is how often a record is forwarded: one that always stands wrong has two swarms at it that count
// different slots.
const forwardLimit = 4

// forwarder is the agent that forwards what stands wrong in the topics that agents read.
func forwarder(agents []Agent) Agent {
	f := Agent{Name: ForwardAgent, forwards: true}
	for _, a := range agents {
		for _, t := range a.Reads {
			if !slices.Contains(f.Reads, t) {
				f.Reads = append(f.Reads, t)
			}
		}
	}
	f.Emits = f.Reads
	return f
}

// cover has the forwarding agent read a topic from now on.
func (g *group) cover(topic string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.coverLocked(topic)
}

func (g *group) coverLocked(topic string) {
	if _, ok := g.topics[topic]; ok || !slices.Contains(g.spec.Reads, topic) {
		return
	}
	g.topics[topic] = g.eng.topics.of(topic).Topic
	if len(g.topics) == 1 {
		close(g.covers)
	}
}

// covering tells whether the group has anything to read, which only the forwarding agent may not have.
func (g *group) covering() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.spec.forwards || len(g.topics) > 0
}

// awaitTopics waits until there's something to read.
func (g *group) awaitTopics(ctx context.Context) bool {
	if g.covering() {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-g.covers:
		return true
	}
}

// coverKnown has those topics covered of which, as leases tell, any worker passed something over or forwarded any.
func (e *Engine) coverKnown(leases []ledger.Lease) {
	for _, l := range leases {
		if (l.Counters.Misrouted > 0 || l.Group == ForwardAgent) && e.topics.of(l.Topic).ID == l.TopicID {
			e.cover(l.Topic)
		}
	}
}

func (e *Engine) cover(topic string) {
	for _, g := range e.groups {
		if g.spec.forwards {
			g.cover(topic)
		}
	}
}

// leads tells to which partition a record's key leads. False: to where it stands, or, without a key, anywhere.
func (t *topics) leads(r *broker.Record) (to int32, elsewhere bool) {
	of := t.of(r.Topic)
	if r.Key == nil || of.slots == 0 || of.ID != r.TopicID {
		return r.Partition, false
	}
	to = route.Partition(r.Key, of.slots)
	return to, to != r.Partition
}

// sort makes tasks of records that a fetch brought: of each its own, where the group may work on it. The forwarding
// agent needs one for those that it forwards, and one that stands for the rest, if that's the last.
func (g *group) sort(records []broker.Record) []*task {
	tasks := make([]*task, 0, len(records))
	wrong := 0
	for i := range records {
		_, elsewhere := g.eng.topics.leads(&records[i])
		switch {
		case g.spec.forwards && (elsewhere || i == len(records)-1):
			tasks = append(tasks, g.openKey(records[i]))
		case g.spec.forwards:
		case elsewhere:
			wrong++
			tasks = append(tasks, passedOver(records[i]))
		default:
			tasks = append(tasks, g.open(records[i]))
		}
	}
	if !g.spec.forwards && len(records) > 0 {
		g.alarm(&records[0], int64(wrong), int64(len(records)))
	}
	return tasks
}

// passedOver is the task of a misrouted record, which isn't even decoded: all of it is for whoever reads it where it
// belongs.
func passedOver(r broker.Record) *task {
	bytes := int64(len(r.Key) + len(r.Value) + 64)
	return &task{record: r, misrouted: true, bytes: bytes, weight: 64,
		event: event.Event{ID: event.PositionID(r.Position), Source: "kafka:///" + r.Topic, Positional: true}}
}

// openKey is a record's task for the forwarding agent, in the lane of its key.
func (g *group) openKey(r broker.Record) *task {
	t := passedOver(r)
	t.weight = min(t.bytes, g.spec.Limits.Bytes*3/4)
	if _, t.misrouted = g.eng.topics.leads(&r); t.misrouted {
		t.event.Subject = event.KeyName(r.Key)
	}
	t.passed = !t.misrouted
	return t
}

// unhandled decides what becomes of a record that isn't for the agent to work on, or that it's to forward.
func (g *group) unhandled(t *task) (*ledger.Step, error) {
	switch {
	case t.passed:
		return g.step(t, ledger.Ignored), nil
	case !g.spec.forwards:
		return g.step(t, ledger.Misrouted), nil
	case t.parked != "":
		s := g.step(t, ledger.Waiting)
		s.Wait = g.row(t, t.parked)
		return s, nil
	}
	topic := g.eng.topics.of(t.record.Topic)
	to, _ := g.eng.topics.leads(&t.record)
	if n := t.record.Hops(); n >= forwardLimit {
		return nil, fault.Permanentf("it was forwarded %d times and stands wrong again: two swarms count different slots for the topic", n)
	}
	m := t.record.Forwarded(t.record.Position)
	if n := size(m); topic.MaxBytes > 0 && n > topic.MaxBytes {
		return nil, fault.Permanentf("it can't be forwarded to partition %d, where its key leads: it would have %d bytes and the topic takes %d", to, n, topic.MaxBytes)
	}
	s := g.step(t, ledger.Applied)
	s.Emits = []ledger.Outgoing{{Topic: t.record.Topic, Partition: to, Message: m}}
	return s, nil
}

// appended is when the record was first appended: forwarding appends it once more.
func (t *task) appended() time.Time {
	if o, ok := t.record.Origin(t.record.Topic); ok && !o.Time.IsZero() {
		return o.Time
	}
	return t.record.Time
}

// alarmEvery is how often people are told that records of a topic stand wrong.
const alarmEvery = time.Minute

// alarms counts, by topic, what was read and what of it stood wrong, since people were last told.
type alarms struct {
	mu sync.Mutex
	by map[string]*alarm
}

type alarm struct {
	wrong, all int64
	told       time.Time
}

// alarm counts what a fetch brought of one partition, and tells people now and then of what stands wrong.
func (g *group) alarm(first *broker.Record, wrong, all int64) {
	as := &g.eng.alarms
	as.mu.Lock()
	a := as.by[first.Topic]
	if a == nil {
		if a = (&alarm{}); as.by == nil {
			as.by = map[string]*alarm{}
		}
		as.by[first.Topic] = a
	}
	a.wrong += wrong
	a.all += all
	tell := wrong > 0 && time.Since(a.told) >= alarmEvery
	now := *a
	if tell {
		*a = alarm{told: time.Now()}
	}
	as.mu.Unlock()
	if wrong > 0 {
		g.mu.Lock()
		g.misrouted += wrong
		g.mu.Unlock()
		g.eng.cover(first.Topic)
	}
	if !tell {
		return
	}
	text := fmt.Sprintf("%.1f %% of the records last read of topic %s stand where their keys don't lead, and are forwarded: "+
		"its producers don't all partition as Java's default does (with librdkafka, set partitioner=murmur2_random), or it has grown",
		float64(now.wrong)/float64(now.all)*100, first.Topic)
	g.log.Warn(text, "topic", first.Topic, "partition", first.Partition)
	g.eng.opts.Notify(Notice{Time: time.Now(), Kind: NoticeMisrouted, Agent: g.spec.Name, Topic: first.Topic, Partition: first.Partition,
		Offset: first.Offset, Text: text})
}
