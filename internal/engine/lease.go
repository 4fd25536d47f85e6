package engine

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// keepLeases renews what this worker owns and takes what is free, until ctx ends.
//
// A worker that can't renew goes on only as long as its leases last by its own clock; what makes that safe isn't
// the clock but the epoch, which every commit compares.
func (e *Engine) keepLeases(ctx context.Context) {
	every := e.opts.LeaseTime / 3
	renewed := time.Now()
	reported := time.Now()
	for round := 0; ; round++ {
		began := time.Now()
		if err := bounded(ctx, e.opts.LeaseTime, e.renew); err == nil {
			renewed = began
			// Whatever else there is to do has until the next heartbeat is due.
			_ = bounded(ctx, every, func(ctx context.Context) error {
				e.share(ctx)
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
			e.log.Warn("leases can't be renewed", "error", err, "since", time.Since(renewed).Round(time.Second))
			if time.Since(renewed) > e.opts.LeaseTime {
				e.loseAll()
			}
		}
		e.watch()
		if !sleep(ctx, every) {
			return
		}
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
		g.keepOnly(mine)
	}
	for _, s := range e.sources {
		s.keepOnly(mine)
	}
	return nil
}

// share takes free partitions up to this worker's share of each group, and gives back what is above it.
func (e *Engine) share(ctx context.Context) {
	if e.draining.Load() {
		return
	}
	leases, err := e.opts.Ledger.Leases(ctx, "")
	if err == nil {
		var workers []ledger.Worker
		if workers, err = e.opts.Ledger.Workers(ctx, e.opts.LeaseTime); err == nil {
			workers = slices.DeleteFunc(workers, func(w ledger.Worker) bool { return w.Steps < 0 })
			e.coverKnown(leases)
			e.others.Store(int32(othersAmong(workers, e.opts.Worker)))
			for _, g := range e.groups {
				g.take(ctx, leases, workers)
			}
			for _, s := range e.sources {
				s.take(ctx)
			}
			e.disown(ctx, leases)
			return
		}
	}
	if ctx.Err() == nil {
		e.log.Warn("leases can't be listed", "error", err)
	}
}

// othersAmong counts the workers beside one that may take something.
func othersAmong(workers []ledger.Worker, self string) (n int) {
	for _, w := range workers {
		if w.ID != self && w.Steps >= 0 {
			n++
		}
	}
	return n
}

// plannedFor is the worker that a partition is planned for, or "".
func (e *Engine) plannedFor(ledger.Key) string { return "" }

// disown gives back leases in this worker's name that it doesn't work on. Its heartbeat renews all of them, also
// those that a life before it had and that are above its share by now: without this nobody would ever have them.
func (e *Engine) disown(ctx context.Context, leases []ledger.Lease) {
	mine := map[ledger.Key]bool{}
	for _, g := range e.groups {
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
		if l.Owner == e.opts.Worker && !mine[l.Key] {
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
		if err := e.opts.Broker.Report(ctx, e.opts.Swarm+"."+g.spec.Name, next); err != nil && ctx.Err() == nil {
			g.log.Debug("progress can't be reported to the broker", "error", err)
			continue
		}
		g.reported(next)
	}
}

// watch tells of handlers that run on after their time is up.
func (e *Engine) watch() {
	for _, g := range e.groups {
		_, oldest := g.load()
		if over := time.Since(oldest) - g.spec.Limits.Timeout; !oldest.IsZero() && over > 30*time.Second {
			g.log.Error("a handler ignores its cancellation; its aggregate stands still until it returns", "over", over.Round(time.Second))
		}
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
