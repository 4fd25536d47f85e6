package engine

import (
	"context"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/ledger"
)

// Feed is where a Source offers what it finds.
type Feed struct {
	offer func(ctx context.Context, e event.Event, h Handler) (ledger.Outcome, error)
	idle  func(bool)
}

// Offer commits one found thing: h runs as a step of e, whose Source and ID (both required) decide whether it was
// committed before; then it's a duplicate and nothing is done. It returns when the commit is durable. Safe for
// concurrent use: offers that wait at the same time share a commit.
func (f *Feed) Offer(ctx context.Context, e event.Event, h Handler) (ledger.Outcome, error) {
	return f.offer(ctx, e, h)
}

// Idle tells whether the source has, for now, offered all that there is.
func (f *Feed) Idle(idle bool) { f.idle(idle) }
