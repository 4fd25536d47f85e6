package engine_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// inHistory is the nth event of a history.
func inHistory(n int64) event.Event {
	e := event.New("T", "s", nil)
	e.Source, e.ID = "//h", fmt.Sprintf("%06d", n)
	e.SetSequence(n)
	return e
}

// Rows that a closed gap let go are worked on once each, however many wait.
func TestClosedGapRunsEachRowOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var runs atomic.Int64
	inner := recorder("r", "a")
	agent := inner
	agent.Handle = func(ctx context.Context, e event.Event, s *engine.Step) error {
		runs.Add(1)
		return inner.Handle(ctx, e, s)
	}
	e, _ := w.start(w.options("w"), agent)
	const n = 600 // more than one page of the backlog
	for i := int64(2); i <= n; i++ {
		w.publish("a", inHistory(i))
	}
	w.settle(e)
	before := runs.Load()
	w.publish("a", inHistory(1))
	w.settle(e)
	checkOnce(t, w.rows("r"), 1, n)
	if got := runs.Load() - before; got != n {
		t.Errorf("%d runs of the handler for %d events", got, n)
	}
	if c := w.counters("r"); c != (ledger.Counters{Applied: n}) {
		t.Errorf("counters: %+v", c)
	}
}

// What a closed gap let go and nobody had committed yet goes on under the next owner.
func TestClosedGapSurvivesItsOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var stuck atomic.Bool
	inner := recorder("r", "a")
	agent := inner
	agent.Handle = func(ctx context.Context, e event.Event, s *engine.Step) error {
		if stuck.Load() && e.ID != "000001" && e.ID != "000002" {
			<-ctx.Done()
			return ctx.Err()
		}
		return inner.Handle(ctx, e, s)
	}
	o := w.options("w")
	o.Drain = 1 // nanosecond: whatever runs is cancelled
	e, stop := w.start(o, agent)
	w.publish("a", inHistory(1))
	w.settle(e)
	w.publish("a", inHistory(3), inHistory(4), inHistory(5))
	w.settle(e)
	stuck.Store(true)
	w.publish("a", inHistory(2))
	w.until("the gap is closed", func() bool { return len(w.rows("r")) == 2 })
	stop()
	stuck.Store(false)
	e, _ = w.start(w.options("v"), agent)
	w.settle(e)
	checkOnce(t, w.rows("r"), 1, 5)
	if c := w.counters("r"); c != (ledger.Counters{Applied: 5}) {
		t.Errorf("counters: %+v", c)
	}
}

// An event that dies where it closes a gap parks its aggregate, and dies once.
func TestDeadEventClosesNoGap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var deaths atomic.Int64
	inner := recorder("r", "a")
	agent := inner
	agent.Handle = func(ctx context.Context, e event.Event, s *engine.Step) error {
		if e.ID == "000002" {
			deaths.Add(1)
			return fault.Permanentf("poison")
		}
		return inner.Handle(ctx, e, s)
	}
	e, stop := w.start(w.options("w"), agent)
	w.publish("a", inHistory(1), inHistory(3), inHistory(4))
	w.settle(e)
	w.publish("a", inHistory(2))
	w.settle(e)
	want := ledger.Counters{Applied: 1, Dead: 1, Waiting: 2}
	if c := w.counters("r"); c != want || deaths.Load() != 1 || len(w.dead("a")) != 1 {
		t.Errorf("counters %+v, %d deaths, %d letters", c, deaths.Load(), len(w.dead("a")))
	}
	stop()
	e, _ = w.start(w.options("v"), agent)
	w.publish("a", inHistory(5))
	w.settle(e)
	want.Waiting++
	if c := w.counters("r"); c != want || deaths.Load() != 1 {
		t.Errorf("under the next owner: counters %+v, %d deaths", c, deaths.Load())
	}
}
