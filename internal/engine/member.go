package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// Membership is how workers come to their partitions.
type Membership string

const (
	MembershipLeases Membership = "leases" // workers take leases, as a plan of their own wants (the default)
	MembershipKafka  Membership = "kafka"  // a Kafka consumer group assigns partitions; each is then claimed in the ledger
)

// revokeTime bounds handing partitions over while the Kafka group waits for it.
const revokeTime = 2 * time.Second

// membership is a group's place in a Kafka group of the same name. The coordinator says who is to own a partition; that
// somebody does is still the ledger's to say, and every commit's to prove: a member that the coordinator has forgotten
// commits nothing once another has claimed its partition, and the generation in the lease only rises.
type membership struct {
	turn sync.Mutex // held while partitions are claimed or given up; group.mu comes under it

	// Guarded by group.mu.
	member   broker.Member
	assigned map[partID]struct{}
}

// inKafka tells whether the agent's partitions are assigned by a Kafka group.
func (g *group) inKafka() bool {
	return g.eng.opts.Membership == MembershipKafka && !g.spec.forwards && mayRun(g.spec.Pool, g.eng.opts.Pool)
}

func (g *group) kafkaName() string { return KafkaGroup(g.eng.opts.Swarm, g.spec.Name) }

// join becomes a member of the agent's Kafka group, trying until it succeeds or ctx ends.
func (g *group) join(ctx context.Context) {
	m := broker.Members{Assigned: g.assigned, Revoked: g.revoked, Lost: g.revoked}
	for failures := 0; ; {
		member, err := g.eng.opts.Broker.Join(ctx, g.kafkaName(), g.spec.Reads, m)
		if err == nil {
			g.mu.Lock()
			g.membership.member = member
			closed := g.closed
			g.mu.Unlock()
			if closed {
				member.Close()
			}
			return
		}
		if class := fault.ClassOf(err); class == fault.Fatal || class == fault.Permanent {
			g.fail(err)
			return
		}
		failures++
		if ctx.Err() == nil {
			g.log.Warn("the Kafka group can't be joined; trying again", "group", g.kafkaName(), "error", err)
		}
		if !sleep(ctx, backoff(failures, 500*time.Millisecond, 10*time.Second, g.eng.opts.Rand)) {
			return
		}
	}
}

// assigned claims partitions that the group has given to this member.
func (g *group) assigned(ctx context.Context, generation int64, partitions map[string][]int32) {
	g.membership.turn.Lock()
	defer g.membership.turn.Unlock()
	g.mu.Lock()
	if g.membership.assigned == nil {
		g.membership.assigned = map[partID]struct{}{}
	}
	var ids []partID
	for topic, ps := range partitions {
		for _, n := range ps {
			id := partID{topic, n}
			g.membership.assigned[id] = struct{}{}
			if g.parts[id] == nil {
				ids = append(ids, id)
			}
		}
	}
	g.mu.Unlock()
	g.claim(ctx, ids, generation)
}

// reclaim claims assigned partitions that this worker doesn't work on: claiming failed, or somebody has fenced it, or
// the agent was paused meanwhile.
func (g *group) reclaim(ctx context.Context) {
	if !g.membership.turn.TryLock() { // they are just being claimed or given up
		return
	}
	defer g.membership.turn.Unlock()
	g.mu.Lock()
	var ids []partID
	for id := range g.membership.assigned {
		if g.parts[id] == nil {
			ids = append(ids, id)
		}
	}
	member := g.membership.member
	g.mu.Unlock()
	if len(ids) == 0 || member == nil {
		return
	}
	if generation := member.Generation(); generation > 0 {
		g.claim(ctx, ids, generation)
	}
}

// claim takes the leases of assigned partitions. membership.turn is held.
func (g *group) claim(ctx context.Context, ids []partID, generation int64) {
	g.mu.Lock()
	idle := g.closed || g.paused.is
	g.mu.Unlock()
	if idle {
		return
	}
	g.takeAll(ctx, ids, func(ctx context.Context, key ledger.Key, topic string, start int64) (ledger.Lease, error) {
		return g.eng.opts.Ledger.Claim(ctx, key, topic, g.eng.opts.Worker, start, g.eng.opts.LeaseTime, generation)
	})
}

// revoked hands partitions over that others will have, or may have already; then the ledger refuses to pass what they
// have claimed, and it's dropped.
func (g *group) revoked(ctx context.Context, partitions map[string][]int32) {
	g.membership.turn.Lock()
	defer g.membership.turn.Unlock()
	g.mu.Lock()
	var leaving []*partition
	for topic, ps := range partitions {
		for _, n := range ps {
			id := partID{topic, n}
			delete(g.membership.assigned, id)
			if p := g.parts[id]; p != nil && (!p.leaving || p.pausing) {
				p.leaving, p.pausing = true, false
				leaving = append(leaving, p)
			}
		}
	}
	g.mu.Unlock()
	_ = bounded(ctx, revokeTime, func(ctx context.Context) error {
		var all sync.WaitGroup
		for _, p := range leaving {
			all.Go(func() { g.leave(ctx, p, "") })
		}
		all.Wait()
		return nil
	})
}

// leaveKafka ends the membership; it may be called again.
func (g *group) leaveKafka() {
	g.mu.Lock()
	member := g.membership.member
	g.membership.member, g.membership.assigned = nil, nil
	g.mu.Unlock()
	if member != nil {
		member.Close()
	}
}

// otherMode says what to do where a group's partitions are owned in another way, and stops the agent.
func (g *group) otherMode(err error) bool {
	if !errors.Is(err, ledger.ErrMode) {
		return false
	}
	other := MembershipKafka
	if g.inKafka() {
		other = MembershipLeases
	}
	g.fail(fault.As(fault.Fatal, fmt.Errorf("%w: workers with membership %q hold its partitions, and this one has %q: give all workers of the swarm the same, or stop the others first",
		err, other, g.eng.opts.Membership)))
	return true
}

// claimedByOthers tells whether members of a Kafka group hold partitions of an agent that this worker has by leases. It
// stops the agent: what they hold would never be free.
func (g *group) claimedByOthers(v *view) bool {
	for _, l := range v.leases {
		if l.Group == g.spec.Name && l.Held && l.Generation > 0 && l.Owner != g.eng.opts.Worker {
			return g.otherMode(ledger.ErrMode)
		}
	}
	return false
}

// reportProgress writes progress where Kafka's tools look for it: as the member that this is, where it's one.
func (g *group) reportProgress(ctx context.Context, next map[string]map[int32]int64) error {
	if !g.inKafka() {
		return g.eng.opts.Broker.Report(ctx, g.kafkaName(), next)
	}
	g.mu.Lock()
	member := g.membership.member
	g.mu.Unlock()
	if member == nil || member.Generation() == 0 {
		return errors.New("it isn't a member of its Kafka group at present")
	}
	return member.Report(ctx, next)
}
