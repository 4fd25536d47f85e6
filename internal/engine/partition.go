package engine

import (
	"context"
	"errors"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/ledger"
)

// read has partitions read that were just taken: all at once, since a reader asks for those that it knows, and for
// others only once that has been answered.
func (g *group) read(taken []*partition) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range taken {
		if g.reader != nil && g.parts[p.id] == p && !p.leaving {
			g.reader.Add(p.topic, p.id.partition, p.from)
			if p.full {
				g.reader.Pause(p.id.topic, p.id.partition)
			}
		}
	}
}

// acquire takes one lease and makes its partition, which is to be read then.
func (g *group) acquire(ctx context.Context, id partID, held broker.Range, take taker) *partition {
	g.mu.Lock()
	topic, paused := g.topics[id.topic], g.paused.is
	g.mu.Unlock()
	if paused {
		return nil
	}
	key := ledger.Key{Group: g.spec.Name, TopicID: topic.ID, Partition: id.partition}
	lease, err := take(ctx, key, topic.Name, held.Start)
	if err != nil {
		if !g.otherMode(err) && !errors.Is(err, ledger.ErrHeld) && ctx.Err() == nil {
			g.log.Warn("lease can't be taken", "topic", id.topic, "partition", id.partition, "error", err)
		}
		return nil
	}
	p, err := g.begin(ctx, topic, id, lease, held.End)
	if errors.Is(err, ErrWentBack) {
		g.release(ctx, lease.Fence)
		g.fail(err)
		return nil
	}
	if err != nil {
		g.log.Warn("a partition that was taken can't be begun; its lease is given back", "topic", id.topic, "partition", id.partition, "error", err)
		g.release(ctx, lease.Fence)
		return nil
	}
	return p
}

// release gives a lease back that isn't begun with, also where the engine ends. Where that fails it expires, or is given
// back with the next round.
func (g *group) release(ctx context.Context, f ledger.Fence) {
	_ = bounded(context.WithoutCancel(ctx), lookPace, func(ctx context.Context) error { return g.eng.opts.Ledger.Release(ctx, f) })
}

// begin makes a partition whose lease was taken, with what of its backlog may go on.
func (g *group) begin(ctx context.Context, topic broker.Topic, id partID, lease ledger.Lease, end int64) (*partition, error) {
	p := &partition{id: id, topic: topic, fence: lease.Fence, from: lease.Next, next: lease.Next, end: end,
		finished: lease.Finished.Clone(), lanes: map[string]*lane{}, ids: map[ident]int{}}
	err := g.wentBack(ctx, lease, end)
	if err != nil {
		return nil, err
	}
	if p.parked, err = g.eng.opts.Ledger.Parked(ctx, lease.Fence); err != nil {
		return nil, err
	}
	if p.parked == nil {
		p.parked = map[string]string{}
	}
	p.drives, p.flying, p.dead = map[string]*drive{}, flights{}, lease.Counters.Dead > 0
	p.waiting, p.gaps = lease.Counters.Waiting, map[string]*missing{}
	if n := len(lease.Finished); n > 0 {
		p.known = lease.Finished[n-1].To + 1
	}
	p.block(lease.Carried)
	p.ctx, p.lose = context.WithCancel(context.Background())
	g.eng.relay.adopt(lease.Fence, lease.Seq)
	g.mu.Lock()
	g.haunt(p)
	g.births++
	p.born = g.births
	g.parts[id] = p
	g.limitBacklog(p)
	if p.leaving, p.pausing = g.paused.is, g.paused.is; p.pausing { // since it was asked for
		g.eng.Poke()
	} else {
		g.resume(p)
	}
	g.dispatch()
	g.mu.Unlock()
	if len(lease.Carried) > 0 {
		signal(g.eng.carriedWake)
	}
	g.eng.opts.Meter.LeaseTaken(g.spec.Name)
	g.log.Debug("partition taken", "topic", id.topic, "partition", id.partition, "epoch", lease.Epoch, "next", lease.Next)
	g.notice(NoticeLease, p, lease.Next, "", "taken")
	g.moved(p, "taken", "", len(lease.Carried))
	return p, nil
}

// keepOnly drops partitions whose lease isn't among those held.
func (g *group) keepOnly(held map[ledger.Key]int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.parts {
		if epoch, ok := held[p.fence.Key]; (!ok || epoch != p.fence.Epoch) && !p.handing {
			g.dropLocked(p)
		}
	}
	g.keepEstates(held)
}

func (g *group) drop(p *partition) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked(p)
}

// dropLocked forgets a partition: its running steps are cancelled, and what they did can't commit under the old
// epoch. g.mu is held.
func (g *group) dropLocked(p *partition) {
	if g.parts[p.id] != p {
		return
	}
	p.lose()
	g.forgetPart(p)
	g.eng.lost.Add(1)
	g.log.Info("partition left", "topic", p.id.topic, "partition", p.id.partition, "epoch", p.fence.Epoch)
	g.notice(NoticeLease, p, p.next, "", "left")
	g.moved(p, "lost", "", 0)
}

// forgetPart takes a partition off those that this worker owns. g.mu is held.
func (g *group) forgetPart(p *partition) {
	delete(g.parts, p.id)
	if p.clog != nil {
		p.clog.Stop()
	}
	if g.reader != nil {
		g.reader.Remove(p.id.topic, p.id.partition)
	}
	g.eng.relay.leave(p.fence)
	g.forgetQueued(p)
	g.announce()
	g.eng.opts.Meter.LeaseLost(g.spec.Name)
}

// forgetQueued drops tasks of a partition that haven't been started: they will be read again. g.mu is held.
func (g *group) forgetQueued(p *partition) {
	g.forgetHeld(p)
	g.forgetDrives(p)
	its := func(l *lane) bool { return l.p == p }
	g.ready.Remove(its)
	g.heavy.Remove(its)
	for key, l := range p.lanes {
		keep := 0
		if l.busy {
			keep = 1
		}
		for _, t := range l.queue[keep:] {
			g.forget(p, t)
		}
		l.queue = l.queue[:keep]
		if keep == 0 {
			delete(p.lanes, key)
		}
	}
	signal(g.room)
}

// await waits until a condition on what g.mu guards holds, or ctx ends.
func (g *group) await(ctx context.Context, done func() bool) {
	for {
		g.mu.Lock()
		ok, changed := done(), g.changed
		g.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
