package engine

import (
	"cmp"
	"context"
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
	Running    int   // handlers
	Queued     int   // records admitted and not settled
	Weight     int64 // bytes of them
	Partitions []PartitionStatus
}

// PartitionStatus is what is known in this worker of a partition that it owns.
type PartitionStatus struct {
	Topic     string
	Partition int32
	Epoch     int64
	Next      int64 // the lowest offset that isn't finished
	End       int64 // high watermark, as of the last fetch
	Lanes     int   // aggregates with queued or running records
	Parked    int   // aggregates that wait in the backlog
	Held      bool  // reading is paused: too much is queued
	Oldest    time.Time
	LastTime  time.Time // append time of the last settled record
}

// Status is a snapshot of what this worker does; it asks neither the ledger nor the broker.
func (e *Engine) Status() []AgentStatus {
	var all []AgentStatus
	for _, s := range e.sources {
		all = append(all, AgentStatus{Name: s.spec.Name, Source: true, Idle: s.isIdle(), Failed: s.failure()})
	}
	for _, g := range e.groups {
		all = append(all, g.status())
	}
	return all
}

func (g *group) status() AgentStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	a := AgentStatus{Name: g.spec.Name, Failed: g.failed, Running: g.running, Weight: g.queued}
	for _, p := range g.parts {
		a.Queued += p.pending
		a.Partitions = append(a.Partitions, PartitionStatus{Topic: p.id.topic, Partition: p.id.partition, Epoch: p.fence.Epoch,
			Next: p.next, End: max(p.end, p.next), Lanes: len(p.lanes), Parked: len(p.parked), Held: p.held, Oldest: p.oldest(), LastTime: p.last})
	}
	slices.SortFunc(a.Partitions, func(x, y PartitionStatus) int {
		return cmp.Or(cmp.Compare(x.Topic, y.Topic), cmp.Compare(x.Partition, y.Partition))
	})
	return a
}

// Idle tells whether, over the whole swarm, no record is left that could settle by itself: sources have offered all,
// outboxes are empty and every agent's progress stands at the end of what it reads. Aggregates that wait for a
// person don't count.
//
// It looks in the order of the path: (1) commits are counted, (2) outboxes are empty, so all that was committed is
// published, (3) every partition is read to its end, (4) commits are counted again. If nothing was committed
// between 1 and 4, nothing can have been published after 3 looked.
func (e *Engine) Idle(ctx context.Context) (bool, error) {
	for _, s := range e.sources {
		if !s.isIdle() && s.failure() == nil {
			return false, nil
		}
	}
	before := e.commits.commits()
	totals, err := e.opts.Ledger.Totals(ctx)
	if err != nil {
		return false, err
	}
	if totals.Outbox > 0 || e.relay.backlog() > 0 {
		return false, nil
	}
	next := make(map[ledger.Key]int64, len(totals.Leases))
	for _, l := range totals.Leases {
		next[l.Key] = l.Next
	}
	for _, g := range e.groups {
		done, err := g.caughtUp(ctx, next)
		if err != nil || !done {
			return false, err
		}
	}
	return e.commits.commits() == before && e.commits.stalled() == nil, nil
}

// caughtUp tells whether all partitions that the agent reads are finished to their ends. An agent that failed for
// good never will be, and isn't waited for.
func (g *group) caughtUp(ctx context.Context, next map[ledger.Key]int64) (bool, error) {
	if g.failure() != nil {
		return true, nil
	}
	g.mu.Lock()
	topics := g.topics
	g.mu.Unlock()
	for _, t := range topics {
		ranges, err := g.eng.opts.Broker.Offsets(ctx, t.Name)
		if err != nil {
			return false, err
		}
		for n, r := range ranges {
			at, ok := next[ledger.Key{Group: g.spec.Name, TopicID: t.ID, Partition: int32(n)}]
			if (!ok && r.End > r.Start) || (ok && at < r.End) {
				return false, nil
			}
		}
	}
	return true, nil
}
