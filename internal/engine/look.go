package engine

import (
	"context"
	"errors"
	"time"
)

// Look has the engine act at once on what people have decided in the ledger: agents that were paused or may go on, and
// parked aggregates that may. Without it the engine looks about as often as it renews its leases.
func (e *Engine) Look(ctx context.Context) error {
	return errors.Join(e.lookAtControls(ctx), e.lookAtAsks(ctx))
}

// Poke is Look without waiting for it: for those who have just decided something in the same process.
func (e *Engine) Poke() { signal(e.poked) }

// standingDown is how often an agent that was paused is looked at, until it has given back its leases.
const standingDown = 100 * time.Millisecond

// watchPeople looks at what people decide until ctx ends: every third of a lease time, and when poked.
func (e *Engine) watchPeople(ctx context.Context) {
	every := e.opts.LeaseTime / 3
	failing := onset{say: e.log.Warn, more: e.log.Debug}
	for {
		if err := bounded(ctx, e.opts.LeaseTime, e.Look); err == nil {
			failing.over()
		} else if ctx.Err() == nil {
			failing.tell("what people have decided can't be looked up; trying again", "error", err)
		}
		for _, g := range e.groups {
			g.watchGaps(ctx)
		}
		due := time.After(every)
		for waits := true; waits; {
			var soon <-chan time.Time
			if e.standDown(ctx) {
				soon = time.After(standingDown)
			}
			select {
			case <-ctx.Done():
				return
			case <-soon:
			case <-due:
				waits = false
			case <-e.poked:
				waits = false
			}
		}
	}
}
