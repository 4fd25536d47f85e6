package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// AgentStatus is what an agent of this worker is doing.
type AgentStatus struct {
	Name       string
	Source     bool
	Idle       bool // of a source: all that there is has been offered
	Failed     error
	Running    int           // handlers
	Queued     int           // records admitted and not settled
	Weight     int64         // bytes of them
	Misrouted  int64         // records that this worker passed over, since their keys lead elsewhere
	StepLimit  time.Duration // of a handler's run; 0 for a source
	Partitions []PartitionStatus
	Lanes      []LaneStatus // the lanes at work the longest, at most 20
	Circuits   []CircuitStatus
	Gaps       []GapStatus // aggregates that wait too long for a missing event, at most 20
	LateGaps   int         // how many there are
	Paused     bool
	Reason     string    // why it's paused
	Since      time.Time // it's paused, by the database's clock
}

// PartitionStatus is what is known in this worker of a partition that it owns.
type PartitionStatus struct {
	Topic     string
	Partition int32
	Epoch     int64
	Next      int64     // the lowest offset that isn't finished
	End       int64     // high watermark, as of the last fetch
	Lag       int64     // records between them that aren't finished; an upper bound where compaction left holes
	Lanes     int       // aggregates with queued or running records
	Deepest   int       // records of the longest lane
	Parked    int       // aggregates that wait in the backlog
	Redriving int       // of them, those that go on just now
	Waiting   int64     // records in the backlog, dead ones apart
	Full      bool      // reading is paused: too much waits in the backlog
	Held      bool      // reading is paused: too much is queued
	Oldest    time.Time // start of the oldest running step; zero: none runs
	Pending   time.Time // append time of the oldest record that isn't settled; zero: none is known
	Outbox    int       // events committed and not yet published
	Unsent    time.Time // since when there are some; zero: there are none
}

// LaneStatus is the queue of one aggregate.
type LaneStatus struct {
	Subject   string
	Topic     string
	Partition int32
	Queued    int // behind the first
	Weight    int64
	Attempt   int
	Started   time.Time // of the running step; zero: it waits for its commit or its next attempt
}

const laneLimit = 20

// Status is a snapshot of what this worker does; it asks neither the ledger nor the broker.
func (e *Engine) Status() []AgentStatus {
	var all []AgentStatus
	for _, s := range e.sources {
		all = append(all, s.status())
	}
	for _, g := range e.groups {
		if g.covering() {
			all = append(all, g.status())
		}
	}
	return all
}

func (s *source) status() AgentStatus {
	a := AgentStatus{Name: s.spec.Name, Source: true, Idle: s.isIdle(), Failed: s.failure()}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.Paused, a.Reason, a.Since = s.paused.is, s.paused.reason, s.paused.since
	return a
}

func (g *group) status() AgentStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := AgentStatus{Name: g.spec.Name, Misrouted: g.misrouted, Failed: g.failed, Running: g.running, Weight: g.queued, StepLimit: g.spec.Limits.Timeout}
	for _, p := range g.parts {
		a.Queued += p.pending
		late := p.late()
		a.LateGaps += len(late)
		a.Gaps = append(a.Gaps, late[:min(len(late), laneLimit-len(a.Gaps))]...)
		a.Partitions = append(a.Partitions, p.status(g.eng.relay.held(p.fence.Key)))
		for _, l := range p.lanes {
			if l.busy && len(l.queue) > 0 {
				a.Lanes = append(a.Lanes, l.status())
			}
		}
	}
	slices.SortFunc(a.Partitions, func(x, y PartitionStatus) int {
		return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
	})
	slices.SortFunc(a.Lanes, func(x, y LaneStatus) int {
		return cmp.Or(x.Started.Compare(y.Started), cmp.Compare(x.Subject, y.Subject))
	})
	a.Lanes = a.Lanes[:min(len(a.Lanes), laneLimit)]
	a.Circuits = g.circuits()
	a.Paused, a.Reason, a.Since = g.paused.is, g.paused.reason, g.paused.since
	return a
}

func (p *partition) status(out load) PartitionStatus {
	s := PartitionStatus{Topic: p.id.topic, Partition: p.id.partition, Epoch: p.fence.Epoch, Next: p.next, End: max(p.end, p.next),
		Lanes: len(p.lanes), Parked: len(p.parked), Redriving: len(p.drives), Held: p.held, Full: p.full, Waiting: p.waiting, Oldest: p.oldest(), Outbox: out.rows, Unsent: out.since}
	s.Lag = s.End - s.Next
	for _, span := range p.finished {
		s.Lag -= span.To - span.From + 1
	}
	for _, l := range p.lanes {
		s.Deepest = max(s.Deepest, len(l.queue))
		if at := l.queue[0].record.Time; s.Pending.IsZero() || at.Before(s.Pending) {
			s.Pending = at
		}
	}
	return s
}

func (l *lane) status() LaneStatus {
	t := l.queue[0]
	s := LaneStatus{Subject: t.event.Subject, Topic: l.p.id.topic, Partition: l.p.id.partition, Queued: len(l.queue) - 1,
		Attempt: t.attempt, Started: t.started}
	for _, q := range l.queue {
		s.Weight += q.weight
	}
	return s
}

// Idle tells whether, over the whole swarm, no record is left that could settle by itself: sources have offered all,
// outboxes are empty and every agent's progress stands at the end of what it reads. Aggregates that wait for a
// person don't count.
//
// It looks in the order of the path: (1) commits are counted, (2) nothing is queued or runs here, (3) outboxes are
// empty, so all that was committed is published, (4) every partition is read to its end, (5) commits are counted
// again. If nothing was committed between 1 and 5, nothing can have been published after 4 looked.
func (e *Engine) Idle(ctx context.Context) (bool, error) {
	if !e.shared.Load() {
		return false, nil
	}
	before := e.commits.commits()
	for _, g := range e.groups {
		if g.busy() {
			return false, nil
		}
	}
	totals, err := e.opts.Ledger.Totals(ctx)
	if err != nil {
		return false, err
	}
	e.coverKnown(totals.Leases)
	for _, s := range e.sources {
		if !s.settled(totals.Leases) {
			return false, nil
		}
	}
	if totals.Outbox > 0 || e.relay.backlog() > 0 {
		return false, nil
	}
	leases := make(map[ledger.Key]ledger.Lease, len(totals.Leases))
	for _, l := range totals.Leases {
		leases[l.Key] = l
	}
	for _, g := range e.groups {
		done, err := g.caughtUp(ctx, leases)
		if err != nil || !done {
			return false, err
		}
	}
	return e.commits.commits() == before && e.commits.stalled() == nil, nil
}

// busy tells whether records are queued or running: also those from the backlog, which finish no offset.
func (g *group) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.parts {
		if p.pending > 0 || len(p.drives) > 0 {
			return true
		}
	}
	return len(g.carrying) > 0
}

// caughtUp tells whether all partitions that the agent reads are finished to their ends, and have an owner who would
// know if something of them could go on. An agent that failed for good never will be, and isn't waited for.
func (g *group) caughtUp(ctx context.Context, leases map[ledger.Key]ledger.Lease) (bool, error) {
	if g.failure() != nil || g.isPaused() {
		return true, nil //nolint:nilerr // told by Failed, or waits for a person
	}
	g.mu.Lock()
	topics := maps.Clone(g.topics)
	g.mu.Unlock()
	for _, t := range topics {
		ranges, err := g.eng.opts.Broker.Offsets(ctx, t.Name)
		if err != nil {
			return false, err
		}
		for n, r := range ranges {
			l := leases[ledger.Key{Group: g.spec.Name, TopicID: t.ID, Partition: int32(n)}]
			if !l.Held || l.Next < r.End {
				return false, nil
			}
		}
	}
	return true, nil
}
