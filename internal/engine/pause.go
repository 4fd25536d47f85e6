package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// Pausing an agent, in order:
//
//  1. Nothing more of it is read or started in any worker, and what hasn't been started is forgotten. What waits for
//     another attempt is forgotten too: it's tried again when the agent goes on.
//  2. What runs may finish and commit, for as long as it's allowed to run, and what it emits is published.
//  3. Each partition's lease is given back as soon as that is so. Once none is held, the agent can be rewound.
//
// It stays so until it's told to go on: then it takes leases as ever, and begins where they stand.

// paused is why and since when an agent is paused; the zero value: it isn't.
type paused struct {
	is     bool
	reason string
	since  time.Time
}

// lookAtControls pauses agents, or lets them go on.
func (e *Engine) lookAtControls(ctx context.Context) error {
	controls, err := e.opts.Ledger.Controls(ctx)
	if err != nil {
		return fmt.Errorf("ask which agents are paused: %w", err)
	}
	wanted := map[string]paused{}
	for _, c := range controls {
		if c.Paused {
			wanted[c.Group] = paused{true, c.Reason, c.At}
		}
	}
	for _, g := range e.groups {
		g.setPaused(wanted[g.spec.Name])
	}
	for _, s := range e.sources {
		s.setPaused(wanted[s.spec.Name])
	}
	return nil
}

// setPaused begins a pause, or ends it.
func (g *group) setPaused(to paused) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.paused
	g.paused = to
	if was.is == to.is {
		return
	}
	g.tellPaused(to)
	if !to.is {
		return
	}
	for _, p := range g.parts {
		if p.leaving {
			continue // it's on its way to another worker, and that one gives it back
		}
		p.leaving, p.pausing = true, true
		if g.reader != nil {
			g.reader.Remove(p.id.topic, p.id.partition)
		}
		g.forgetQueued(p)
		g.forgetResting(p)
	}
}

func (g *group) tellPaused(to paused) {
	text := "goes on"
	if to.is {
		text = "paused"
		if to.reason != "" {
			text += ": " + to.reason
		}
	}
	g.log.Info("agent "+text, "since", to.since)
	g.notice(NoticePaused, nil, 0, "", text)
}

func (g *group) isPaused() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.paused.is
}

// standDown gives back what paused agents are done with, and tells whether there's more to come.
func (e *Engine) standDown(ctx context.Context) (more bool) {
	for _, g := range e.groups {
		more = g.standDown(ctx) || more
	}
	return more
}

func (g *group) standDown(ctx context.Context) (more bool) {
	g.mu.Lock()
	var done []*partition
	for _, p := range g.parts {
		switch {
		case !p.pausing:
		case p.pending == 0 && g.eng.relay.held(p.fence.Key).rows == 0:
			done = append(done, p)
		default:
			more = true
		}
	}
	var fences []ledger.Fence
	for _, p := range done {
		fences = append(fences, p.fence)
		g.dropLocked(p)
	}
	g.mu.Unlock()
	if len(fences) == 0 {
		return more
	}
	if err := g.eng.opts.Ledger.Release(ctx, fences...); err != nil && ctx.Err() == nil {
		// They aren't worked on, so the next round of leases gives them back.
		g.log.Warn("leases of a paused agent can't be given back; trying again", "leases", len(fences), "error", err)
	}
	return more
}

// setPaused ends a source's run, or has its lease taken again with the next round. The lease isn't worked on then, so
// the next round gives it back.
func (s *source) setPaused(to paused) {
	s.mu.Lock()
	was := s.paused
	s.paused = to
	if to.is && !was.is && s.end != nil {
		s.end()
	}
	s.mu.Unlock()
	if was.is != to.is {
		s.log.Info("source paused or let go on", "paused", to.is, "reason", to.reason)
		text := "goes on"
		if to.is {
			text = "paused"
		}
		s.eng.opts.Notify(Notice{Time: time.Now(), Kind: NoticePaused, Agent: s.spec.Name, Text: text})
	}
}
