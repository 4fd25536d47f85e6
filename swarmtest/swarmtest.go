// Package swarmtest runs a user's agents in memory, for tests: on the embedded
// broker, the ledger and the engine that they run on elsewhere, so what a test
// sees is what will happen. Nothing outlives the test.
package swarmtest

import (
	"context"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog"
	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/ledger"
)

// patience bounds how long Settle waits for agents.
const patience = 30 * time.Second

// Swarm is a swarm under test. Its methods fail the test where something is wrong with the harness or the agents'
// set-up; what agents do with events is for the test to judge.
type Swarm struct {
	t     testing.TB
	swarm *swarmlog.Swarm
}

// New starts agents. They are stopped at the end of the test.
func New(t testing.TB, agents ...swarmlog.Agent) *Swarm {
	t.Helper()
	s, err := swarmlog.Start(t.Context(), swarmlog.Name("test"), swarmlog.Agents(agents...), swarmlog.InMemory())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Errorf("stop the swarm: %v", err)
		}
	})
	return &Swarm{t, s}
}

// Publish appends events to a topic.
func (s *Swarm) Publish(topic string, events ...event.Event) {
	s.t.Helper()
	if err := s.swarm.Publish(s.t.Context(), topic, events...); err != nil {
		s.t.Fatal(err)
	}
}

// Settle waits until all that was published, and all that was emitted in consequence, is handled.
func (s *Swarm) Settle() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if err := s.swarm.Settled(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// Events are what a topic holds, in order within each aggregate.
func (s *Swarm) Events(topic string) []event.Event {
	s.t.Helper()
	messages, err := s.swarm.Messages(s.t.Context(), topic)
	if err != nil {
		s.t.Fatal(err)
	}
	events := make([]event.Event, len(messages))
	for i, m := range messages {
		if events[i], err = event.Decode(m, event.Position{Topic: topic}); err != nil {
			s.t.Fatalf("topic %s holds a record that is no event: %v", topic, err)
		}
	}
	return events
}

// Dead are the dead letters of a topic, as they were when they died, with headers that say why.
func (s *Swarm) Dead(topic string) []event.Message {
	s.t.Helper()
	messages, err := s.swarm.Messages(s.t.Context(), swarmlog.DeadTopic(topic))
	if err != nil {
		s.t.Fatal(err)
	}
	return messages
}

// Counters counts what was delivered to an agent, by outcome.
func (s *Swarm) Counters(agent string) ledger.Counters {
	s.t.Helper()
	c, err := s.swarm.Counters(s.t.Context(), agent)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// Read runs f in a read-only transaction on what is committed.
func (s *Swarm) Read(f func(ctx context.Context, tx ledger.Tx) error) {
	s.t.Helper()
	if err := s.swarm.Read(s.t.Context(), f); err != nil {
		s.t.Fatal(err)
	}
}
