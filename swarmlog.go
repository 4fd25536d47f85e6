package swarmlog

import (
	"context"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// Handler is what an agent does with one event. It runs outside any
// transaction and may run more than once for an event, so it changes nothing
// itself: it hands to the step what it wants done. Returning nil commits all of
// that together; returning an error commits nothing of it, and the error's
// class decides what follows (see Permanent, Unavailable, Fatal).
//
// Events of one aggregate (one Subject) come one after the other, in order;
// those of different aggregates at the same time.
type Handler func(ctx context.Context, e event.Event, s *Step) error

// Agent is a handler with a name, made by Handle.
type Agent struct{ spec engine.Agent }

// Handle makes an agent. Its name is the identity of its progress: under
// another name it starts again at the beginning of what it reads.
func Handle(name string, h Handler, options ...AgentOption) Agent {
	a := Agent{engine.Agent{Name: name}}
	if h != nil { // without one Start refuses the agent
		a.spec.Handle = func(ctx context.Context, e event.Event, s *engine.Step) error { return h(ctx, e, &Step{s}) }
	}
	for _, o := range options {
		o(&a.spec)
	}
	return a
}

// Shadow makes the agents that run a new version of an agent beside it, without effects: what the version would emit is
// compared with what the agent does emit, and swarmlog agent shadow says how far they agree. Give Agents what it returns
// and the agent itself. Version reads what the agent reads, and emits to its topics where it names none; the shadow is
// called as the version is, or NAME.shadow where that's the agent's own name. As another agent's progress its own begins
// at the log's start.
//
// Of a shadow no SQL is run, neither Step.Tx nor Tables, nothing is published and nothing is dead-lettered; so a version
// whose emissions rest on its own SQL can't be compared. Its model calls are real calls, unless the model's answers are
// reused: then what it asks as the agent does is answered from the record.
func Shadow(of, version Agent) ([]Agent, error) {
	specs, err := engine.Shadow(of.spec, version.spec)
	if err != nil {
		return nil, err
	}
	beside := make([]Agent, len(specs))
	for i, s := range specs {
		beside[i] = Agent{s}
	}
	return beside, nil
}

// AgentOption sets one property of an agent.
type AgentOption func(*engine.Agent)

// Reads names the topics that the agent reads. Every agent reads at least one.
func Reads(topics ...string) AgentOption {
	return func(a *engine.Agent) { a.Reads = append(a.Reads, topics...) }
}

// Emits names the topics that the agent may emit to; Step.Emit goes to the first.
func Emits(topics ...string) AgentOption {
	return func(a *engine.Agent) { a.Emits = append(a.Emits, topics...) }
}

// Types limits the agent to events of these types; others are counted as ignored. The default is all.
func Types(types ...string) AgentOption {
	return func(a *engine.Agent) { a.Types = append(a.Types, types...) }
}

// Tables runs f in a transaction at each start, to create the agent's own tables (CREATE TABLE IF NOT EXISTS …).
func Tables(f func(ctx context.Context, tx ledger.Tx) error) AgentOption {
	return func(a *engine.Agent) { a.Setup = f }
}

// Weigh says how many bytes of memory handling an event will hold, for admission. The default is the record's size.
func Weigh(f func(event.Event) int64) AgentOption {
	return func(a *engine.Agent) { a.Weigh = f }
}

// SkipDead lets later events of an aggregate go on after one of them was dead-lettered. The default is to park the
// aggregate: they wait behind it, so that order is kept until a person has decided.
func SkipDead() AgentOption {
	return func(a *engine.Agent) { a.OnDead = engine.Skip }
}

// Limits bound what an agent does at once and how often it tries. A zero field means its default.
type Limits struct {
	Steps    int           // handlers that run at once; default 64
	Bytes    int64         // weight held until commit, and bytes of records that wait; default 64 MiB. Of it, light steps (up to a quarter each) share a quarter and heavier ones the rest, so that neither holds up the other.
	Timeout  time.Duration // of one run of the handler; default 5 minutes
	Attempts int           // runs of a step that fails for transient reasons before it's dead; default 8
	Backoff  time.Duration // first wait between runs, doubled each time, with full jitter; default 100 ms
	MaxWait  time.Duration // longest wait; default 30 s
	Hops     int           // events between an event and its origin, before a circle is assumed; default 64
	Waiting  int64         // records of a partition that may wait in the backlog before it isn't read any more; default 100,000
	GapWait  time.Duration // how long an aggregate waits for a missing event of its sequence before people are told; default 15 minutes
}

// Limit sets the agent's limits.
func Limit(l Limits) AgentOption {
	return func(a *engine.Agent) { a.Limits = engine.Limits(l) }
}

// Step collects what the handling of one event wants done. All of it commits in one transaction, together with the
// agent's progress, once the handler has returned nil. A step is void when its handler returns.
type Step struct{ step *engine.Step }

// Emit publishes an event to the agent's first topic after the commit. Id, source, time and subject (the handled
// event's) are filled in where they are empty; the id is the same on every attempt. An event that can't be emitted
// (its data can't be marshalled, it's too large, the agent has no topic) fails the step.
func (s *Step) Emit(e event.Event) { s.step.Emit(e) }

// EmitTo is Emit to another of the agent's topics.
func (s *Step) EmitTo(topic string, e event.Event) { s.step.EmitTo(topic, e) }

// Tx adds SQL to the commit transaction. f runs at commit, more than once if the commit has to be tried again, of
// which one run counts. It must do nothing but use tx, and has ten seconds. An error of f fails the step.
func (s *Step) Tx(f func(ctx context.Context, tx ledger.Tx) error) { s.step.Tx(f) }

// Uses says that the step depends on something, by the name that Down and Refused give it. Then only steps that say so
// prove by succeeding that it's there. Infer says so itself.
func (s *Step) Uses(dependency string) { s.step.Uses(dependency) }

// Infer asks a model. The answer is recorded before it's returned, under the event and name: asked again, after a
// crash too, the record answers and nothing is paid. Name may be "", then the request's own address names it.
//
// What can't be recorded can be paid twice: where an attempt ends after the request was sent and before its answer was
// recorded (a crash, a lost lease, a time-out, a connection that broke), the call is in doubt, and the next attempt
// sends it again with the same idempotency key. InferenceTotals.InDoubt counts that.
func (s *Step) Infer(ctx context.Context, name string, req inference.Request) (inference.Answer, error) {
	return s.step.Infer(ctx, name, req)
}

// Refuse ends the step as refused: nothing that it collected is done, and the event is counted so.
func (s *Step) Refuse(reason string) { s.step.Refuse(reason) }

// Skip ends the step as skipped: nothing that it collected is done, and the event is counted so.
func (s *Step) Skip(reason string) { s.step.Skip(reason) }

// Attempt counts the runs of the handler for this event since this worker took its partition, from 1.
func (s *Step) Attempt() int { return s.step.Attempt() }

// Position is where the event's record stands in the log.
func (s *Step) Position() event.Position { return s.step.Position() }

// Epoch is the epoch of the partition's lease; it rises with each owner. A write that carries it can be fenced by
// any store that keeps the highest one it has seen of the same aggregate (the event's subject): a partition may move on
// while steps of it still run, and other aggregates of it are at a higher epoch then.
func (s *Step) Epoch() int64 { return s.step.Epoch() }
