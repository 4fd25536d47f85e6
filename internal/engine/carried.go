package engine

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// The lanes of a partition whose last owner still carries steps: each such lane queues and runs nothing until the step
// is known to be over. The carrier's commit removes its row, so a look at the lease tells both at once: that a row is
// gone, and how far progress was when it went. Its offset finished: it was committed, and isn't run again. Not
// finished: it was put down, or its time is over, and it's the first of its lane.

// Looks at what is carried follow one another quickly at first: most steps end soon.
const (
	carriedSoon  = 100 * time.Millisecond
	carriedLater = 250 * time.Millisecond
)

// LaneKey names the lane of a record, in a backlog row too: its aggregate, or its own where it has none.
func LaneKey(subject string, offset int64) string {
	if subject != "" {
		return subject
	}
	return "\x00" + strconv.FormatInt(offset, 10)
}

// block closes the lanes of what others still carry.
func (p *partition) block(carried []ledger.Carried) {
	for _, c := range carried {
		if p.carried == nil {
			p.carried, p.blocked = map[int64]string{}, map[string]int{}
		}
		key := LaneKey(c.Subject, c.Offset)
		p.carried[c.Offset] = key
		p.blocked[key]++
	}
}

// watchCarried looks at what others carry of this worker's partitions until ctx ends. While nothing is, it asks nothing.
func (e *Engine) watchCarried(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.carriedWake:
		}
		for wait := carriedSoon; e.lookAtCarried(ctx); wait = min(wait+carriedSoon/20, carriedLater) {
			if !sleep(ctx, wait) {
				return
			}
		}
	}
}

// lookAtCarried looks once, and tells whether anything is still carried.
func (e *Engine) lookAtCarried(ctx context.Context) (any bool) {
	for _, g := range e.groups {
		g.mu.Lock()
		var parts []*partition
		for _, p := range g.parts {
			if len(p.carried) > 0 {
				parts = append(parts, p)
			}
		}
		g.mu.Unlock()
		for _, p := range parts {
			if err := g.followCarried(ctx, p); err != nil && ctx.Err() == nil {
				g.log.Warn("what others carry can't be looked up; trying again", "topic", p.id.topic, "partition", p.id.partition, "error", err)
			}
			any = true
		}
	}
	return any
}

// followCarried lets lanes of a partition go on whose carried steps are over.
func (g *group) followCarried(ctx context.Context, p *partition) error {
	lease, err := g.eng.opts.Ledger.Progress(ctx, p.fence)
	if errors.Is(err, ledger.ErrFenced) {
		g.drop(p)
		return nil
	}
	if err != nil {
		return err
	}
	left := map[int64]bool{}
	for _, c := range lease.Carried {
		left[c.Offset] = true
	}
	finished := func(offset int64) bool { return offset < lease.Next || lease.Finished.Contains(offset) }
	over := map[int64]string{}
	committed := false
	g.mu.Lock()
	for offset, key := range p.carried {
		if !left[offset] {
			over[offset] = key
			committed = committed || finished(offset)
		}
	}
	g.mu.Unlock()
	if len(over) == 0 {
		return nil
	}
	var parked map[string]string
	if committed { // one of them may have died, and parked its aggregate
		if parked, err = g.eng.opts.Ledger.Parked(ctx, p.fence); err != nil {
			return err
		}
		g.eng.relay.learn(p.fence, lease.Seq)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.parts[p.id] != p || p.handing {
		return nil
	}
	p.catchUp(lease)
	for offset, key := range over {
		if finished(offset) && !g.carriedCommitted(p, key, offset, parked) {
			return nil // the partition is taken again
		}
		g.unblock(p, key, offset)
	}
	g.dispatch()
	return nil
}

// catchUp adds to what is known of a partition's progress what the lease says. g.mu is held.
func (p *partition) catchUp(lease ledger.Lease) {
	for _, s := range lease.Finished {
		p.finished = p.finished.Add(s)
	}
	if lease.Next > p.next {
		p.finished = p.finished.Add(ledger.Span{From: p.next, To: lease.Next - 1})
	}
	p.next, p.finished = p.finished.Advance(p.next)
}

// carriedCommitted takes a record out of its lane that its carrier has committed, and notes whether its aggregate is
// parked by that. While the lane was blocked nothing else of the aggregate can have been settled. g.mu is held.
func (g *group) carriedCommitted(p *partition, key string, offset int64, parked map[string]string) bool {
	switch reason, ok := parked[key]; {
	case p.drives[key] != nil:
		g.driveOn(p, key) // its backlog is being gone through, and tells
	case ok:
		p.parked[key] = reason
	default:
		delete(p.parked, key)
	}
	l := p.lanes[key]
	if l == nil || l.busy {
		return true
	}
	for i, t := range l.queue {
		if t.row != nil || t.record.Offset != offset {
			continue
		}
		l.queue = append(l.queue[:i:i], l.queue[i+1:]...)
		if len(l.queue) == 0 {
			delete(p.lanes, key)
		}
		g.forget(p, t)
		g.relieve(p)
		if next, _ := p.finished.Advance(max(t.from, p.next)); next <= offset {
			// Its task would also have finished a hole that compaction has made below it since its carrier read it.
			// Taking the partition again leaves that to the next record.
			g.dropLocked(p)
			return false
		}
		break
	}
	return true
}

// unblock opens a lane once nothing of it is carried any more. g.mu is held.
func (g *group) unblock(p *partition, key string, offset int64) {
	delete(p.carried, offset)
	if d := p.drives[key]; d != nil {
		d.grow(offset)
	}
	g.openLane(p, key)
}

// openLane takes away one reason for which a lane is closed. g.mu is held.
func (g *group) openLane(p *partition, key string) {
	if p.blocked[key]--; p.blocked[key] > 0 {
		return
	}
	delete(p.blocked, key)
	if l := p.lanes[key]; l != nil && !l.busy && len(l.queue) > 0 {
		g.makeReady(l)
	}
	if d := p.drives[key]; d != nil {
		g.readOn(d)
	}
}
