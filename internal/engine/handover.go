package engine

import (
	"context"
)

// leave gives a partition back in order: nothing more is admitted, running steps get the drain time, then the
// lease is released for another worker.
func (g *group) leave(ctx context.Context, p *partition) {
	ctx, cancel := context.WithTimeout(ctx, g.eng.opts.Drain)
	defer cancel()
	g.mu.Lock()
	if g.reader != nil {
		g.reader.Remove(p.id.topic, p.id.partition)
	}
	g.forgetQueued(p)
	g.mu.Unlock()
	g.await(ctx, func() bool { return p.pending == 0 || g.parts[p.id] != p })
	g.drop(p)
	err := bounded(context.WithoutCancel(ctx), g.eng.opts.Drain, func(ctx context.Context) error {
		return g.eng.opts.Ledger.Release(ctx, p.fence)
	})
	if err != nil {
		g.log.Warn("lease can't be released; it will expire", "topic", p.id.topic, "partition", p.id.partition, "error", err)
	}
}

// stopAdmitting ends reading and forgets what hasn't been started.
func (g *group) stopAdmitting() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, p := range g.parts {
		p.leaving = true
		g.forgetQueued(p)
	}
}

// awaitRunning waits for running handlers until ctx ends, and cancels those that are left.
func (g *group) awaitRunning(ctx context.Context) {
	g.await(ctx, func() bool { return g.running == 0 })
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running > 0 {
		g.log.Warn("steps still run after the drain time; they are cancelled and will run again", "steps", g.running)
		for _, p := range g.parts {
			p.lose()
		}
	}
}
