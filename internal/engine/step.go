package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// Step collects what the handling of one event wants done; all of it commits in
// one transaction once the handler has returned nil, or nothing does. A step
// belongs to its handler's goroutine and is void when the handler returns.
type Step struct {
	agent    string
	targets  []string
	call     Call
	infer    Inferrer
	position event.Position
	attempt  int
	failures int // of earlier attempts that count against the limit

	emits   []emission
	effects []func(context.Context, ledger.Tx) error
	outcome ledger.Outcome
	reason  string
	err     error

	mu      sync.Mutex
	unnamed map[[32]byte]int // calls without a name, by address
	uses    []string
}

type emission struct {
	topic string
	event event.Event
}

// Emit publishes an event to the agent's first topic once the step has committed. Its id, source, time and hop
// count are filled in; the id is the same on every attempt. An event that can't be emitted fails the step.
func (s *Step) Emit(e event.Event) {
	if len(s.targets) == 0 {
		s.fail(fault.Fatalf("agent %s emits %s, but has no topic to emit to: give it one with emits", s.agent, e.Type))
		return
	}
	s.EmitTo(s.targets[0], e)
}

// EmitTo is Emit to a named topic, which must be one of the agent's.
func (s *Step) EmitTo(topic string, e event.Event) {
	if err := e.Err(); err != nil {
		s.fail(fault.As(fault.Permanent, err))
		return
	}
	for _, t := range s.targets {
		if t == topic {
			s.emits = append(s.emits, emission{topic, e})
			return
		}
	}
	s.fail(fault.Fatalf("agent %s emits to topic %q, which isn't among its own (%v): add it to emits", s.agent, topic, s.targets))
}

// Tx adds SQL to the commit transaction. f may run more than once, of which one run commits; it must do nothing
// but use tx, within ten seconds.
func (s *Step) Tx(f func(ctx context.Context, tx ledger.Tx) error) { s.effects = append(s.effects, f) }

// Infer asks a model and returns its complete answer, which is recorded before it's returned: asked again by the
// same event under the same name, after a crash too, the record answers. Name may be "": then the request's
// address and occurrence name it. It may be called by several goroutines of a handler at once.
func (s *Step) Infer(ctx context.Context, name string, req inference.Request) (inference.Answer, error) {
	if s.infer == nil {
		return inference.Answer{}, fault.Fatalf("agent %s asks a model, but none is configured: add models to swarm.yaml", s.agent)
	}
	call := s.call
	call.Occurrence, call.Uses = s.occurrence, s.Uses
	return s.infer.Infer(ctx, call, name, req)
}

func (s *Step) occurrence(address [32]byte) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unnamed == nil {
		s.unnamed = map[[32]byte]int{}
	}
	s.unnamed[address]++
	return s.unnamed[address]
}

// Uses says that the step depends on something which may be down for all that use it, by the name that fault.On gives
// it in an error. A step that doesn't say so proves nothing of it by succeeding. Infer says so itself. Safe for use by
// several goroutines of a handler.
func (s *Step) Uses(dependency string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.uses, dependency) {
		s.uses = append(s.uses, dependency)
	}
}

func (s *Step) used() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.uses)
}

// Refuse ends the step as refused: nothing that it collected is done, and the reason is kept.
func (s *Step) Refuse(reason string) { s.outcome, s.reason = ledger.Refused, reason }

// Skip ends the step as skipped: nothing that it collected is done, and the reason is kept.
func (s *Step) Skip(reason string) { s.outcome, s.reason = ledger.Skipped, reason }

// Attempt counts the handler's runs for this event since the partition was taken, from 1.
func (s *Step) Attempt() int { return s.attempt }

// Position is where the event's record stands.
func (s *Step) Position() event.Position { return s.position }

// Epoch is the lease's epoch under which the step will commit; it rises with each owner of the partition.
func (s *Step) Epoch() int64 { return s.call.Fence.Epoch }

func (s *Step) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

func (e emission) String() string { return fmt.Sprintf("%s to %s", e.event.Type, e.topic) }
