// Package status owns the shape in which a run is shown to people and
// machines: the page, the metrics and the terminal are all made from it, and
// its JSON is what /api/v1/status answers. It says nothing of how the figures
// are found; whoever runs the swarm implements Source. It imports the ledger's
// public types only, does no I/O and keeps nothing across a crash.
package status

import (
	"context"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// Source answers what the run looks like now. It is asked about once a second
// while somebody looks, and every ten seconds otherwise; it may be called by
// several goroutines at once.
type Source interface {
	Status(ctx context.Context) (Status, error)
}

// SourceFunc is a function as a Source.
type SourceFunc func(ctx context.Context) (Status, error)

// Status calls f.
func (f SourceFunc) Status(ctx context.Context) (Status, error) { return f(ctx) }

// State is what the run as a whole is doing.
type State string

const (
	Starting State = "starting" // opening the broker, the ledger and the agents
	Running  State = "running"  // records are left to settle
	Draining State = "draining" // asked to stop: running steps end, nothing new begins
	Idle     State = "idle"     // every record is settled; waiting for new ones
	Failed   State = "failed"   // something fatal stopped an agent; warnings say what
)

// AgentState is what one agent is doing.
type AgentState string

const (
	AgentRunning AgentState = "running" // steps run or are queued
	AgentIdle    AgentState = "idle"    // nothing to do
	AgentStopped AgentState = "stopped" // it won't go on before a restart; Reason says why
)

// Status is one look at a run. Every field is always present in its JSON;
// lists are never null. Fields are only ever added.
type Status struct {
	Swarm   string    `json:"swarm" doc:"Name of the swarm, from swarm.yaml"`
	State   State     `json:"state" enum:"starting,running,draining,idle,failed" doc:"What the run as a whole is doing"`
	Started time.Time `json:"started" doc:"When this process started the run"`
	Time    time.Time `json:"time" doc:"When this look was taken"`

	Documents int64 `json:"documents" doc:"Documents found and split"`
	Pages     int64 `json:"pages" doc:"Pages whose effects are all committed"`

	StepsPerSecond  float64  `json:"steps_per_second" doc:"Steps committed per second, over the last seconds"`
	TimeLeftSeconds *float64 `json:"time_left_seconds" doc:"Estimated seconds until every record now known is settled; null where unknown"`
	Remaining       *int64   `json:"remaining" doc:"Records known and not yet settled: the lag of all partitions; null where a partition's lag is unknown"`

	BacklogRows      int64 `json:"backlog_rows" doc:"Records that wait in the backlog, the dead ones at the heads of parked aggregates included"`
	ParkedAggregates int64 `json:"parked_aggregates" doc:"Aggregates that wait behind a dead record, for a person"`

	JournalDropped int64 `json:"journal_dropped" doc:"Events that this process couldn't append to the journal, since it started"`

	DrainSeconds float64 `json:"drain_seconds" doc:"How long running steps may go on when the run is told to end"`

	Records   ledger.Counters        `json:"records" doc:"Records delivered, by outcome"`
	Inference ledger.InferenceTotals `json:"inference" doc:"Calls to models"`
	Model     string                 `json:"model" doc:"The model in use, in one line for people"`

	Warnings    []string     `json:"warnings" doc:"What a person should know, each with what to do"`
	Agents      []Agent      `json:"agents"`
	DeadLetters []DeadLetter `json:"dead_letters" doc:"Dead letters, newest first, at most 100"`
	Broker      Broker       `json:"broker"`
	Ledger      Ledger       `json:"ledger"`
}

// MaxDeadLetters is how many dead letters a Status holds at most.
const MaxDeadLetters = 100

// Agent is one agent of the swarm.
type Agent struct {
	Name             string          `json:"name"`
	Kind             string          `json:"kind" doc:"What it is: source, go, internal, or built-in and its kind, such as built-in reader"`
	State            AgentState      `json:"state" enum:"running,idle,stopped"`
	Reason           string          `json:"reason" doc:"Why it is stopped; empty otherwise"`
	Paused           bool            `json:"paused" doc:"Whether a person has paused it"`
	Circuits         []Circuit       `json:"circuits" doc:"What it depends on, as far as that failed lately"`
	InFlight         int64           `json:"in_flight" doc:"Steps running now"`
	Queued           int64           `json:"queued" doc:"Records waiting in lanes"`
	WeightBytes      int64           `json:"weight_bytes" doc:"Weight held by running and queued steps, in bytes"`
	StepLimitSeconds float64         `json:"step_limit_seconds" doc:"How long a step may run; 0 for a source"`
	Rate             float64         `json:"rate" doc:"Steps committed per second, over the last seconds"`
	Outcomes         ledger.Counters `json:"outcomes" doc:"Records delivered to it, by outcome"`
	Partitions       []Partition     `json:"partitions"`
	LateGaps         int64           `json:"late_gaps" doc:"Aggregates that wait for a missing event for longer than the agent's gap_wait"`
	Gaps             []Gap           `json:"gaps" doc:"Of them, at most 20 for each worker of this process"`
	Lanes            []Lane          `json:"lanes" doc:"The lanes at work the longest, at most 20"`
}

// Partition is one partition that an agent reads.
type Partition struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Epoch     int64  `json:"epoch" doc:"Epoch of its lease; it rises with each owner"`
	Next      int64  `json:"next" doc:"Lowest offset that isn't finished"`
	End       int64  `json:"end" doc:"Offset after the last record, as last heard from the broker; it may lag a little"`
	// Lag is end minus next, less what is finished above next: never negative, nil where unknown.
	Lag               *int64   `json:"lag" doc:"Records not yet finished, at most; null where unknown"`
	LagSeconds        *float64 `json:"lag_seconds" doc:"Age of the oldest record not yet finished; null where unknown"`
	Lanes             int64    `json:"lanes" doc:"Aggregates with queued or running records"`
	LaneDepth         int64    `json:"lane_depth" doc:"Records in the longest lane"`
	Parked            int64    `json:"parked" doc:"Aggregates that wait in the backlog: behind a dead record, or for one that is missing before them"`
	Outbox            int64    `json:"outbox" doc:"Events committed and not yet published"`
	OutboxSeconds     float64  `json:"outbox_seconds" doc:"Age of the oldest of them; 0 where there is none"`
	OldestStepSeconds float64  `json:"oldest_step_seconds" doc:"Age of the oldest running step; 0 where none runs"`
}

// Circuit is a dependency of an agent that failed.
type Circuit struct {
	Dependency string    `json:"dependency"`
	Open       bool      `json:"open" doc:"Whether the agent waits for it; false while it is being tried again"`
	Reason     string    `json:"reason" doc:"The last failure"`
	Since      time.Time `json:"since"`
}

// Gap is an aggregate that waits for a missing event for longer than it should.
type Gap struct {
	Subject   string    `json:"subject"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Since     time.Time `json:"since"`
	Reason    string    `json:"reason" doc:"Which event is missing"`
}

// Lane is the queue of one aggregate.
type Lane struct {
	Subject        string  `json:"subject"`
	Topic          string  `json:"topic"`
	Partition      int32   `json:"partition"`
	Queued         int64   `json:"queued" doc:"Records behind the running one"`
	WeightBytes    int64   `json:"weight_bytes"`
	Attempt        int     `json:"attempt" doc:"Which run of the step this is, from 1"`
	RunningSeconds float64 `json:"running_seconds" doc:"How long the step has been running; 0 while it waits to be tried again"`
}

// DeadLetter is a record that was given up, with the reason.
type DeadLetter struct {
	Agent     string    `json:"agent"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Offset    int64     `json:"offset"`
	Subject   string    `json:"subject" doc:"What the record is about: a document's name"`
	Reason    string    `json:"reason"`
	Time      time.Time `json:"time"`
}

// Broker is the log in use.
type Broker struct {
	Address  string   `json:"address" doc:"Where Kafka clients reach it"`
	LogBytes int64    `json:"log_bytes" doc:"Size of its log on disk; 0 where unknown"`
	Health   []string `json:"health" doc:"What is wrong with it; empty when well"`
}

// Ledger is the database in use.
type Ledger struct {
	Path  string `json:"path" doc:"Its file, or its address without credentials"`
	Bytes int64  `json:"bytes" doc:"Its size on disk; 0 where unknown"`
}

// Complete fills in what follows from the rest: Remaining, empty lists for nil
// ones and the bound on dead letters. It may be called more than once; a status
// that is complete already is only read, so that copies of it may be shared.
func (s *Status) Complete() {
	var remaining int64
	known := true
	fill(&s.Agents)
	for i := range s.Agents {
		a := &s.Agents[i]
		fill(&a.Partitions)
		fill(&a.Lanes)
		fill(&a.Circuits)
		fill(&a.Gaps)
		for _, p := range a.Partitions {
			if p.Lag == nil {
				known = false
				continue
			}
			remaining += *p.Lag
		}
	}
	s.Remaining = nil
	if known {
		s.Remaining = &remaining
	}
	fill(&s.Warnings)
	fill(&s.DeadLetters)
	fill(&s.Broker.Health)
	s.DeadLetters = s.DeadLetters[:min(len(s.DeadLetters), MaxDeadLetters)]
}

// Settled is the number of delivered records that wait for nothing any more.
func (s *Status) Settled() int64 { return s.Records.Delivered() - s.Records.Waiting }

func fill[T any](l *[]T) {
	if *l == nil {
		*l = []T{}
	}
}
