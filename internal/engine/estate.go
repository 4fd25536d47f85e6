package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/swarmlog/swarmlog/ledger"
)

// estates are a group's leases of topics that are gone: deleted, or created anew under their names. Nothing is left to
// read of such a topic, and its lease rows stay for the record. But what its steps committed before it went may be in
// the outbox, and nobody who reads the topic's successor would publish that: so each such lease is taken once more,
// until its outbox is empty.
type estates struct {
	settled bool                        // nothing is left to look for, until another topic goes
	open    map[ledger.Key]ledger.Fence // taken, and being published
	empty   map[ledger.Key]bool
}

// settleEstates publishes what the outboxes of topics hold that are gone.
func (e *Engine) settleEstates(ctx context.Context) {
	for _, g := range e.groups {
		if err := g.settleEstates(ctx); err != nil && ctx.Err() == nil {
			g.log.Warn("what agents emitted for topics that are gone can't be looked at", "error", err)
		}
	}
}

func (g *group) settleEstates(ctx context.Context) error {
	g.mu.Lock()
	settled := g.estates.settled || g.closed
	g.mu.Unlock()
	if settled {
		return nil
	}
	leases, err := g.eng.opts.Ledger.Leases(ctx, g.spec.Name)
	if err != nil {
		return err
	}
	left := false
	for _, l := range leases {
		if !g.isEstate(l) {
			continue
		}
		done, err := g.settleEstate(ctx, l)
		if err != nil {
			return err
		}
		left = left || !done
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.estates.settled = !left
	return nil
}

// isEstate tells whether a lease is of a topic that is gone, and not known to be empty.
func (g *group) isEstate(l ledger.Lease) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Contains(g.spec.Reads, l.Topic) || g.estates.empty[l.Key] {
		return false
	}
	t := g.topics[l.Topic]
	return t.Partitions > 0 && t.ID != l.TopicID
}

// settleEstate takes a lease, or looks whether what it holds is published by now.
func (g *group) settleEstate(ctx context.Context, l ledger.Lease) (done bool, err error) {
	db := g.eng.opts.Ledger
	g.mu.Lock()
	f, open := g.estates.open[l.Key]
	g.mu.Unlock()
	if !open {
		if l.Held && l.Owner != g.eng.opts.Worker {
			return false, nil
		}
		l, err := db.Acquire(ctx, l.Key, l.Topic, g.eng.opts.Worker, l.Next, g.eng.opts.LeaseTime)
		if errors.Is(err, ledger.ErrHeld) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		f = l.Fence
		g.mu.Lock()
		if g.estates.open == nil {
			g.estates.open, g.estates.empty = map[ledger.Key]ledger.Fence{}, map[ledger.Key]bool{}
		}
		g.estates.open[f.Key] = f
		g.mu.Unlock()
		g.eng.relay.adopt(f, l.Seq)
	}
	rows, err := db.Outbox(ctx, f, 0, 1)
	if err != nil && !errors.Is(err, ledger.ErrFenced) {
		return false, err
	}
	if len(rows) > 0 {
		return false, nil
	}
	g.mu.Lock()
	delete(g.estates.open, f.Key)
	g.estates.empty[f.Key] = err == nil
	g.mu.Unlock()
	g.eng.relay.leave(f)
	return err == nil, db.Release(ctx, f) // one that was lost may hold something still
}

// keepEstates forgets those whose lease isn't held any more. g.mu is held.
func (g *group) keepEstates(held map[ledger.Key]int64) {
	for key, f := range g.estates.open {
		if held[key] != f.Epoch {
			delete(g.estates.open, key)
			g.eng.relay.leave(f)
		}
	}
}
