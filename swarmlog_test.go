package swarmlog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog"
	"github.com/swarmlog/swarmlog/event"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An agent that stopped for good is told by Stop, so that a program can tell it from a swarm that couldn't go on.
func TestFailedAgentIsTold(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	reason := errors.New("the schema is of another version")
	strict := swarmlog.Handle("strict", func(context.Context, event.Event, *swarmlog.Step) error {
		return swarmlog.Fatal(reason)
	}, swarmlog.Reads("orders"))
	other := swarmlog.Handle("other", func(context.Context, event.Event, *swarmlog.Step) error { return nil }, swarmlog.Reads("orders"))
	swarm, err := swarmlog.Start(ctx, swarmlog.Agents(strict, other), swarmlog.InMemory())
	if err != nil {
		t.Fatal(err)
	}
	if err := swarm.Publish(ctx, "orders", event.New("OrderPlacedEvent", "customer-7", nil)); err != nil {
		t.Fatal(err)
	}
	if err := swarm.Settled(ctx); !errors.Is(err, swarmlog.ErrAgentFailed) { // it isn't waited for, and it's told
		t.Fatalf("Settled says %v, want ErrAgentFailed", err)
	}
	err = swarm.Stop(ctx)
	if !errors.Is(err, swarmlog.ErrAgentFailed) || !errors.Is(err, reason) {
		t.Errorf("Stop says %v, want ErrAgentFailed and the handler's own error", err)
	}
	if _, err := swarmlog.Start(ctx, swarmlog.Agents(swarmlog.Handle("none", nil, swarmlog.Reads("orders"))), swarmlog.InMemory()); err == nil {
		t.Error("an agent without a handler was started")
	}
	c, err := swarmlog.Start(ctx, swarmlog.Agents(other), swarmlog.InMemory())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(ctx); err != nil {
		t.Errorf("Stop of a swarm whose agents are well: %v", err)
	}
}

// A new version of an agent runs beside it, and what it does takes no effect.
func TestShadowTakesNoEffect(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	emits := func(typ string) swarmlog.Handler {
		return func(_ context.Context, e event.Event, s *swarmlog.Step) error {
			s.Emit(event.New(typ, e.Subject, nil))
			return nil
		}
	}
	old := swarmlog.Handle("old", emits("OldEvent"), swarmlog.Reads("orders"), swarmlog.Emits("bills"))
	beside, err := swarmlog.Shadow(old, swarmlog.Handle("new", emits("NewEvent")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := swarmlog.Shadow(old, swarmlog.Handle("new", nil)); err == nil {
		t.Error("a version without a handler was taken")
	}
	swarm, err := swarmlog.Start(ctx, swarmlog.Agents(old), swarmlog.Agents(beside...), swarmlog.InMemory())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := swarm.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if err := swarm.Publish(ctx, "orders", event.New("OrderPlacedEvent", "customer-7", nil)); err != nil {
		t.Fatal(err)
	}
	if err := swarm.Settled(ctx); err != nil {
		t.Fatal(err)
	}
	bills, err := swarm.Messages(ctx, "bills")
	if err != nil || len(bills) != 1 {
		t.Fatalf("%d bills, %v", len(bills), err)
	}
	if c, err := swarm.Counters(ctx, "new"); err != nil || c.Applied != 1 {
		t.Errorf("the shadow's counters: %+v, %v", c, err)
	}
}
