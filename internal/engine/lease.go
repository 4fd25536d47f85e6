package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// keepLeases renews what this worker owns and takes what is free, until ctx ends. Between heartbeats it looks at the
// leases while there are other workers, so that what one of them leaves, or was given up for this one, is soon taken.
//
// A worker that can't renew goes on only as long as its leases last by its own clock; what makes that safe isn't
// the clock but the epoch, which every commit compares.
func (e *Engine) keepLeases(ctx context.Context) {
	every := e.opts.LeaseTime / 3
	renewed := time.Now()
	reported := time.Now()
	failing := onset{say: e.log.Warn, more: e.log.Debug}
	for round := 0; ; round++ {
		began := time.Now()
		if err := bounded(ctx, e.opts.LeaseTime, e.renew); err == nil {
			if quiet := began.Sub(renewed); quiet > e.opts.LeaseTime {
				e.wasQuiet(quiet, int(e.lost.Load()), renewed)
			}
			e.lost.Store(0)
			renewed = began
			failing.over()
			// Whatever else there is to do has until the next heartbeat is due.
			_ = bounded(ctx, every, func(ctx context.Context) error {
				e.share(ctx, true)
				e.shared.Store(true)
				if time.Since(reported) >= min(every, 5*time.Second) {
					reported = time.Now()
					e.report(ctx)
				}
				if round%64 == 63 {
					e.prune(ctx)
				}
				return nil
			})
		} else if ctx.Err() == nil {
			failing.tell("leases can't be renewed; trying again", "error", err, "since", time.Since(renewed).Round(time.Second))
			if time.Since(renewed) > e.opts.LeaseTime {
				e.loseAll()
			}
		}
		e.watch()
		if !e.lookUntil(ctx, time.Now().Add(every), renewed == began) {
			return
		}
	}
}

// lookUntil waits for the next heartbeat, and looks at the leases meanwhile where that may bring something.
func (e *Engine) lookUntil(ctx context.Context, due time.Time, healthy bool) bool {
	for {
		left := time.Until(due)
		pace := e.pace()
		if !healthy || pace == 0 || pace >= left {
			return sleep(ctx, left)
		}
		if !sleep(ctx, pace) {
			return false
		}
		_ = bounded(ctx, max(time.Until(due), lookPace), func(ctx context.Context) error {
			e.share(ctx, false)
			return nil
		})
	}
}

// bounded runs f with a bound on its time.
func bounded(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return f(ctx)
}

// renew writes the heartbeat and drops what someone else owns by now.
func (e *Engine) renew(ctx context.Context) error {
	if e.usurped.Load() {
		return errUsurped
	}
	w := ledger.Worker{ID: e.opts.Worker, Pool: e.opts.Pool, Started: e.started}
	for _, g := range e.groups {
		running, oldest := g.load()
		w.Steps += g.spec.Limits.Steps
		w.Memory += g.spec.Limits.Bytes
		w.InFlight += running
		if !oldest.IsZero() && (w.Oldest.IsZero() || oldest.Before(w.Oldest)) {
			w.Oldest = oldest
		}
	}
	if e.draining.Load() {
		w.Steps = -1
	}
	held, err := e.opts.Ledger.Beat(ctx, w, e.opts.LeaseTime)
	if err != nil {
		return err
	}
	mine := make(map[ledger.Key]int64, len(held))
	for _, f := range held {
		mine[f.Key] = f.Epoch
	}
	for _, g := range e.groups {
		if g.usurped(mine) {
			return e.giveWay()
		}
	}
	for _, g := range e.groups {
		g.keepOnly(mine)
	}
	for _, s := range e.sources {
		s.keepOnly(mine)
	}
	if !e.draining.Load() && e.planner.fence.Epoch != 0 && mine[plannerKey] != e.planner.fence.Epoch {
		e.planner = planner{}
	}
	return nil
}

// share takes what this worker should have and gives up what others should. all: with what a look between two
// heartbeats leaves out.
func (e *Engine) share(ctx context.Context, all bool) {
	if e.draining.Load() {
		return
	}
	v, err := e.look(ctx, all)
	if err != nil {
		if ctx.Err() == nil {
			e.log.Warn("leases can't be listed", "error", err)
		}
		return
	}
	e.coverKnown(v.leases)
	e.planning(ctx, v) // before anything is shared by number, which is for when nobody plans
	for _, g := range e.groups {
		g.take(ctx, v)
	}
	for _, s := range e.sources {
		s.take(ctx, v.leases)
	}
	if all {
		e.disown(ctx, v.leases)
	}
}

// disown gives back leases in this worker's name that it doesn't work on. Its heartbeat renews all of them, also
// those that a life before it had and that are above its share by now: without this nobody would ever have them.
func (e *Engine) disown(ctx context.Context, leases []ledger.Lease) {
	mine := map[ledger.Key]bool{}
	if e.planner.fence.Epoch != 0 {
		mine[plannerKey] = true
	}
	claiming := map[string]bool{}
	for _, g := range e.groups {
		if g.inKafka() { // what is just being claimed isn't among its partitions yet
			if !g.membership.turn.TryLock() {
				claiming[g.spec.Name] = true
				continue
			}
			defer g.membership.turn.Unlock()
		}
		for _, f := range g.fences() {
			mine[f.Key] = true
		}
	}
	for _, s := range e.sources {
		for _, f := range s.fences() {
			mine[f.Key] = true
		}
	}
	var others []ledger.Fence
	for _, l := range leases {
		if l.Owner == e.opts.Worker && !mine[l.Key] && !claiming[l.Group] {
			others = append(others, l.Fence)
		}
	}
	if len(others) == 0 {
		return
	}
	if err := e.opts.Ledger.Release(ctx, others...); err != nil && ctx.Err() == nil {
		e.log.Warn("leases that this worker doesn't work on can't be released", "leases", len(others), "error", err)
	}
}

func (e *Engine) loseAll() {
	for _, g := range e.groups {
		g.keepOnly(nil)
		g.dropCarried()
	}
	for _, s := range e.sources {
		s.keepOnly(nil)
	}
}

func (e *Engine) prune(ctx context.Context) {
	rows, err := e.opts.Ledger.Prune(ctx, e.opts.Horizon, e.opts.Keep)
	if err != nil && ctx.Err() == nil {
		e.log.Warn("old rows can't be removed", "error", err)
	}
	if rows > 0 {
		e.log.Info("old rows removed", "rows", rows)
	}
}

// report writes progress where Kafka's tools look for it. It's for people: nothing reads it back.
func (e *Engine) report(ctx context.Context) {
	for _, g := range e.groups {
		next := g.progress()
		if len(next) == 0 {
			continue
		}
		if err := g.reportProgress(ctx, next); err != nil && ctx.Err() == nil {
			g.log.Debug("progress can't be reported to the broker", "error", err)
			continue
		}
		g.reported(next)
	}
}

func (g *group) fences() []ledger.Fence {
	g.mu.Lock()
	defer g.mu.Unlock()
	var fences []ledger.Fence
	for _, p := range g.parts {
		fences = append(fences, p.fence)
	}
	return slices.AppendSeq(fences, maps.Values(g.estates.open))
}

// progress is the next offset of each owned partition, by topic.
func (g *group) progress() map[string]map[int32]int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := map[string]map[int32]int64{}
	for _, p := range g.parts {
		if p.next == p.reported {
			continue
		}
		if next[p.id.topic] == nil {
			next[p.id.topic] = map[int32]int64{}
		}
		next[p.id.topic][p.id.partition] = p.next
	}
	return next
}

// reported notes what the broker has been told.
func (g *group) reported(next map[string]map[int32]int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.parts {
		if n, ok := next[p.id.topic][p.id.partition]; ok {
			p.reported = n
		}
	}
}

// load is how many handlers run and when the oldest of them was started.
func (g *group) load() (running int, oldest time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.carrying {
		if at := p.oldest(); !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	for _, p := range g.parts {
		if at := p.oldest(); !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	return g.running, oldest
}

func (p *partition) oldest() (oldest time.Time) {
	for _, l := range p.lanes {
		if l.busy && len(l.queue) > 0 {
			if at := l.queue[0].started; !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
				oldest = at
			}
		}
	}
	return oldest
}
