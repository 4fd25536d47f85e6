package engine

import (
	"cmp"
	"context"
	"slices"

	"github.com/swarmlog/swarmlog/ledger"
)

// take acquires partitions that nobody owns, up to a share, or gives back what is above it: above the largest share
// at once, and above the smallest one by one while another worker has less than that.
func (g *group) take(ctx context.Context, leases []ledger.Lease, workers []ledger.Worker) {
	if g.failure() != nil || !mayRun(g.spec.Pool, g.eng.opts.Pool) {
		g.giveUp(ctx)
		return
	}
	workers = able(g.spec.Pool, workers)
	free := g.free(leases)
	g.mu.Lock()
	own := len(g.parts)
	total := 0
	for _, t := range g.topics {
		total += int(t.Partitions)
	}
	var surplus []*partition
	share, keep := g.shares(total, leases, workers)
	if own > keep {
		keep = max(keep, min(own-1, share))
	}
	for _, p := range g.parts {
		if own-len(surplus) > keep && !p.leaving {
			p.leaving = true
			surplus = append(surplus, p)
		}
	}
	g.mu.Unlock()
	for _, p := range surplus {
		g.eng.goDo(func() { g.leave(context.WithoutCancel(ctx), p, "") })
	}
	var taken []*partition
	for _, id := range free {
		if own >= share || ctx.Err() != nil {
			break
		}
		if p := g.acquire(ctx, id); p != nil {
			own++
			taken = append(taken, p)
		}
	}
	g.read(taken)
}

// shares are the most partitions that a worker should have, and how many this one may keep: fewer, by one at most,
// while another has less than the smallest share.
func (g *group) shares(total int, leases []ledger.Lease, workers []ledger.Worker) (most, keep int) {
	alive := max(1, len(workers))
	most = (total + alive - 1) / alive
	counts := map[string]int{}
	for _, l := range leases {
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
