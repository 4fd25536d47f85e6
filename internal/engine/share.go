package engine

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/ledger"
)

// Which partitions a worker takes and gives up. Where the plan wants a partition for a worker that lives, it goes
// there. All others (there's no plan, or it wants a worker that is gone, or one that doesn't take what it's given) are
// shared by number: nobody has to plan for every partition to be worked on.

// takenAtOnce is how many leases of an agent are taken at the same time.
const takenAtOnce = 8

// take acquires the partitions that this worker should have, and hands over those that others should.
func (g *group) take(ctx context.Context, v *view) {
	if g.failure() != nil {
		g.giveUp(ctx)
		if g.inKafka() {
			g.eng.goDo(g.leaveKafka)
		}
		return
	}
	if g.inKafka() {
		g.dropTaken(v)
		g.reclaim(ctx)
		return
	}
	if g.claimedByOthers(v) {
		return
	}
	workers := able(g.spec.Pool, v.workers)
	mine := mayRun(g.spec.Pool, g.eng.opts.Pool)
	share, keep := 0, 0
	if mine {
		share, keep = g.shares(v, workers)
	}
	g.dropTaken(v)
	for p, to := range g.surplus(v, workers, share, keep) {
		g.eng.goDo(func() { g.leave(context.WithoutCancel(ctx), p, to) })
	}
	if wanted := g.wanted(v, workers, share); mine && len(wanted) > 0 {
		g.takeAll(ctx, wanted, func(ctx context.Context, key ledger.Key, topic string, start int64) (ledger.Lease, error) {
			return g.eng.opts.Ledger.Acquire(ctx, key, topic, g.eng.opts.Worker, start, g.eng.opts.LeaseTime)
		})
	}
}

// planned is the worker, among some, that a partition is wanted for, or "".
func (v *view) planned(key ledger.Key, workers []ledger.Worker) string {
	w := v.plan[key].worker
	if w == "" || !slices.ContainsFunc(workers, func(x ledger.Worker) bool { return x.ID == w }) {
		return ""
	}
	return w
}

// surplus are the partitions to give up, and whom to: those that are wanted elsewhere, and, while nobody plans, those
// above this worker's share: above the largest share at once, and above the smallest one by one while another worker
// has less than that.
func (g *group) surplus(v *view, workers []ledger.Worker, share, keep int) map[*partition]string {
	g.mu.Lock()
	defer g.mu.Unlock()
	surplus := map[*partition]string{}
	own, unplanned := 0, []*partition(nil)
	for _, p := range g.parts {
		if p.leaving {
			continue
		}
		own++
		switch w := v.planned(p.fence.Key, workers); {
		case w == "":
			unplanned = append(unplanned, p)
		case w != g.eng.opts.Worker && v.at.Sub(v.plan[p.fence.Key].since) >= planKnown:
			surplus[p] = w
		}
	}
	if own > keep {
		keep = max(keep, min(own-1, share))
	}
	if v.planner == "" || share == 0 {
		slices.SortFunc(unplanned, func(a, b *partition) int { return cmp.Compare(b.born, a.born) })
		for _, p := range unplanned {
			if own-len(surplus) > keep {
				surplus[p] = ""
			}
		}
	}
	for p := range surplus {
		p.leaving = true
	}
	return surplus
}

// dropTaken drops partitions that somebody else has taken since: this worker was quiet for too long.
func (g *group) dropTaken(v *view) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, l := range v.leases {
		if p := g.parts[partID{l.Topic, l.Partition}]; p != nil && p.fence.Key == l.Key && p.fence.Epoch < l.Epoch && !p.handing {
			if l.Owner == g.eng.opts.Worker && !g.inKafka() {
				_ = g.eng.giveWay() // Run tells
				return
			}
			g.dropLocked(p)
		}
	}
}

// shares are the most partitions that a worker should have, and how many this one may keep: fewer, by one at most,
// while another has less than the smallest share.
func (g *group) shares(v *view, workers []ledger.Worker) (most, keep int) {
	g.mu.Lock()
	total := 0
	for _, t := range g.topics {
		total += int(t.Partitions)
	}
	g.mu.Unlock()
	alive := max(1, len(workers))
	most = (total + alive - 1) / alive
	counts := map[string]int{}
	for _, l := range v.leases {
		if l.Group == g.spec.Name && l.Held {
			counts[l.Owner]++
		}
	}
	for _, w := range workers {
		if w.ID != g.eng.opts.Worker && counts[w.ID] < total/alive {
			return most, total / alive
		}
	}
	return most, most
}

// wanted are the free partitions that this worker should take: those that the plan wants for it, and up to its share
// those that it wants for nobody, or for somebody who hasn't come for them in a lease's time.
func (g *group) wanted(v *view, workers []ledger.Worker, share int) (ids []partID) {
	free := g.free(v.leases)
	g.mu.Lock()
	own := len(g.parts)
	defer g.mu.Unlock()
	now := make(map[partID]time.Time, len(free))
	var others []partID
	for _, id := range free {
		since, ok := g.freeSince[id]
		if !ok {
			since = v.at
		}
		now[id] = since
		key := ledger.Key{Group: g.spec.Name, TopicID: g.topics[id.topic].ID, Partition: id.partition}
		switch v.planned(key, workers) {
		case g.eng.opts.Worker:
			ids = append(ids, id)
		case "":
			others = append(others, id)
		default:
			if v.at.Sub(since) > g.eng.opts.LeaseTime {
				others = append(others, id)
			}
		}
	}
	g.freeSince = now
	if room := share - own - len(ids); room > 0 {
		ids = append(ids, others[:min(room, len(others))]...)
	}
	return ids
}

// taker takes a lease, in the way of the group's membership.
type taker func(ctx context.Context, key ledger.Key, topic string, start int64) (ledger.Lease, error)

// takeAll takes partitions, some at a time, and has them read.
func (g *group) takeAll(ctx context.Context, ids []partID, take taker) {
	ranges := map[string][]broker.Range{}
	for _, id := range ids {
		if _, asked := ranges[id.topic]; asked {
			continue
		}
		var err error
		if ranges[id.topic], err = g.eng.opts.Broker.Offsets(ctx, id.topic); err != nil && ctx.Err() == nil {
			g.log.Warn("the log's ranges can't be asked", "topic", id.topic, "error", err)
		}
	}
	var mu sync.Mutex
	var taken []*partition
	var all sync.WaitGroup
	turns := make(chan struct{}, takenAtOnce)
	for _, id := range ids {
		if int(id.partition) >= len(ranges[id.topic]) {
			continue
		}
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			if p := g.acquire(ctx, id, ranges[id.topic][id.partition], take); p != nil {
				mu.Lock()
				taken = append(taken, p)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	g.read(taken)
}

// giveUp releases what a failed agent still holds, so that another worker may try. What the agent had committed before
// is published first: later rounds come back to this.
func (g *group) giveUp(ctx context.Context) {
	fences := g.fences()
	if len(fences) == 0 {
		return
	}
	for _, f := range fences {
		if rows, err := g.eng.opts.Ledger.Outbox(ctx, f, 0, 1); err != nil || len(rows) > 0 {
			return
		}
	}
	g.keepOnly(nil)
	if err := g.eng.opts.Ledger.Release(ctx, fences...); err != nil && ctx.Err() == nil {
		g.log.Warn("leases of a stopped agent can't be released", "error", err)
	}
}

// free lists the partitions that this worker doesn't own and that may be had: first those in its own name from before
// it was restarted, then those without a lease or with an expired one.
func (g *group) free(leases []ledger.Lease) []partID {
	taken, own := map[ledger.Key]bool{}, map[partID]bool{}
	for _, l := range leases {
		switch {
		case l.Group != g.spec.Name:
		case l.Owner == g.eng.opts.Worker:
			own[partID{l.Topic, l.Partition}] = true
		default:
			taken[l.Key] = l.Owner != "" && l.Held
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var free []partID
	for _, t := range g.topics {
		for n := range t.Partitions {
			id := partID{t.Name, n}
			if g.parts[id] == nil && !taken[ledger.Key{Group: g.spec.Name, TopicID: t.ID, Partition: n}] {
				free = append(free, id)
			}
		}
	}
	slices.SortFunc(free, func(a, b partID) int {
		if own[a] != own[b] {
			if own[a] {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
	})
	return free
}
