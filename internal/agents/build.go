package agents

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// Deps are what agents are given.
type Deps struct {
	// Read is ledger.Ledger's Read.
	Read func(ctx context.Context, f func(context.Context, ledger.Tx) error) error
	// Exclude are folders that a finder passes over, such as the data folder.
	Exclude []string
	// Cache is a folder for the compiled PDF reader, which then starts in a tenth of a second instead of seconds;
	// "": none. It's made where it doesn't exist.
	Cache string
	// OnScan hears of each complete scan of a finder; nil: nobody.
	OnScan func(agent string, s Scan)
	Logger *slog.Logger // nil: none
}

// Built is an agent, or a source, and how to end what it holds.
type Built struct {
	Agent  *engine.Agent
	Source *engine.Source
	// Close frees what the agent holds, such as the PDF reader. It's never nil, and may be called twice.
	Close func()
}

// Build makes the engine's agent or source of a configured one.
func Build(a config.Agent, d Deps) (Built, error) {
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	d.Logger = d.Logger.With("agent", a.Name)
	switch a.Kind {
	case config.Finder:
		f := newFinder(a, d)
		return Built{Source: &engine.Source{Name: a.Name, Emits: a.Emits, Setup: setup,
			Run: func(ctx context.Context, feed *engine.Feed) error { return f.run(ctx, engineFeed{feed}) }}, Close: func() {}}, nil
	case config.Splitter:
		s := newSplitter(a, d)
		agent := agent(a, s.handle, []string{DocumentFound})
		agent.Weigh, agent.Setup = weighDocument, setup
		return Built{Agent: agent, Close: s.close}, nil
	case config.Reader:
		return Built{Agent: agent(a, (&reader{model: a.Model}).handle, []string{PageSplit}), Close: func() {}}, nil
	case config.Embedder:
		return Built{Agent: agent(a, (&embedder{model: a.Model}).handle, []string{PageSplit}), Close: func() {}}, nil
	case config.Indexer:
		agent := agent(a, index, []string{PageSplit, PageRead, PageEmbedded})
		agent.Setup = setup
		return Built{Agent: agent, Close: func() {}}, nil
	}
	return Built{}, fmt.Errorf("agent %s is of kind %q, which isn't built in; write one of finder, splitter, reader, embedder, indexer", a.Name, a.Kind)
}

// stepper is what handlers need of an engine.Step.
type stepper interface {
	Emit(e event.Event)
	Tx(f func(ctx context.Context, tx ledger.Tx) error)
	Infer(ctx context.Context, name string, req inference.Request) (inference.Answer, error)
	Skip(reason string)
}

type handler func(ctx context.Context, e event.Event, s stepper) error

// feed is what a finder needs of an engine.Feed.
type feed interface {
	Offer(ctx context.Context, e event.Event, h handler) (ledger.Outcome, error)
	Idle(idle bool)
}

type engineFeed struct{ *engine.Feed }

func (f engineFeed) Offer(ctx context.Context, e event.Event, h handler) (ledger.Outcome, error) {
	return f.Feed.Offer(ctx, e, func(ctx context.Context, e event.Event, s *engine.Step) error { return h(ctx, e, s) })
}

func agent(a config.Agent, h handler, types []string) *engine.Agent {
	if len(a.Types) > 0 {
		types = a.Types
	}
	l := a.Limits
	return &engine.Agent{
		Name: a.Name, Reads: a.Reads, Emits: a.Emits, Types: types, OnDead: engine.OnDead(a.OnDead),
		Handle: func(ctx context.Context, e event.Event, s *engine.Step) error { return h(ctx, e, s) },
		Limits: engine.Limits{Steps: l.Steps, Bytes: l.Bytes, Timeout: l.Timeout, Attempts: l.Attempts,
			Backoff: l.Backoff, MaxWait: l.MaxWait, Hops: l.Hops, Waiting: l.Waiting, GapWait: l.GapWait},
	}
}
