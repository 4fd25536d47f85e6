package engine_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// A handler that ignores its cancellation holds up its own aggregate alone, and a stop for no longer than the drain
// time. What the others did is kept; its own event is handled again, once.
func TestHandlerThatHangsBoundsTheStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	release := make(chan struct{})
	var hung atomic.Int64
	agent := func(hang bool) engine.Agent {
		return engine.Agent{Name: "r", Reads: []string{"a"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			if hang && e.ID == "0-000005" {
				hung.Add(1)
				<-release // whatever the context says
			}
			record("r", e, s)
			return nil
		}}
	}
	o := w.options("w")
	o.Drain = 300 * time.Millisecond
	_, stop := w.start(o, agent(true))
	w.publish("a", numbered(10, 20)...)
	w.until("all but the rest of its aggregate are done", func() bool { return len(w.rows("r")) == 185 })
	began := time.Now()
	stop()
	if took := time.Since(began); took > o.Drain+5*time.Second {
		t.Errorf("with a handler that hangs the stop took %s", took)
	}
	for _, l := range w.leases("r") {
		if l.Held {
			t.Errorf("partition %d is held after the stop", l.Partition)
		}
	}
	e, _ := w.start(w.options("w"), agent(false))
	w.settle(e)
	close(release) // the one that hung ends at last: nobody waits for it any more, and it commits nothing
	w.until("it hung once", func() bool { return hung.Load() == 1 })
	w.publish("a", numbered(10, 21)[200:]...)
	w.settle(e)
	checkOnce(t, w.rows("r"), 10, 21)
}

// A handler that runs over its time limit and ignores that isn't run a second time before it has returned.
func TestHandlerOverItsLimitRunsOnceAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var at, most, runs atomic.Int64
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Limits: engine.Limits{Timeout: 10 * time.Millisecond, Backoff: time.Millisecond},
		Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
			if n := at.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer at.Add(-1)
			if runs.Add(1) == 1 {
				<-ctx.Done()
				<-time.After(100 * time.Millisecond) // it goes on, well over its limit
				return errors.New("it never looked at its context")
			}
			record("r", e, s)
			return nil
		}}
	e, _ := w.start(w.options("w"), agent)
	w.publish("a", numbered(1, 5)...)
	w.settle(e)
	checkOnce(t, w.rows("r"), 1, 5)
	if most.Load() != 1 || runs.Load() != 6 {
		t.Errorf("%d runs of five events, %d at a time; expected 6, one at a time", runs.Load(), most.Load())
	}
}

// Stop in the middle of everything: what is done is kept, and a new start takes up the rest, again and again.
func TestStopAtAnyMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "b")
	agents := []engine.Agent{recorder("first", "a", "b"), recorder("second", "b")}
	w.publish("a", numbered(30, 60)...)
	o := w.options("w")
	for i := range 8 {
		enough := w.counters("second").Applied + int64(i)*20
		_, stop := w.start(o, agents...)
		w.until("some more is done", func() bool { return w.counters("second").Applied >= min(enough, 1800) })
		stop()
	}
	e, _ := w.start(o, agents...)
	w.settle(e)
	checkOnce(t, w.rows("first"), 30, 60)
	checkOnce(t, w.rows("second"), 30, 60)
}

// A source whose lease another worker takes ends, and goes on there; what was offered before isn't offered twice. One
// that doesn't notice that it lost its lease holds up no one else, and commits nothing.
func TestSourceIsFencedAndResumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var mu sync.Mutex
	var refused error
	release := make(chan struct{})
	source := func(stubborn bool) engine.Source {
		return engine.Source{Name: "finder", Emits: []string{"a"}, Run: func(ctx context.Context, f *engine.Feed) error {
			n := 40
			if stubborn {
				n = 20
			}
			if err := offer(ctx, f, 0, n); err != nil {
				return err
			}
			if stubborn {
				<-release // whatever the context says
				err := offer(context.Background(), f, 50, 51)
				mu.Lock()
				refused = err
				mu.Unlock()
				return err
			}
			f.Idle(true)
			<-ctx.Done()
			return nil
		}}
	}
	frozen := &freezer{Ledger: w.ledger}
	o := w.options("old")
	o.Ledger, o.Drain = frozen, time.Second
	old, _ := w.startSources(o, []engine.Source{source(true)}, recorder("r", "a"))
	w.until("the first half is handled", func() bool { return len(w.rows("r")) == 20 })
	frozen.freeze()
	fresh, _ := w.startSources(w.options("new"), []engine.Source{source(false)}, recorder("r", "a"))
	w.until("the new worker has offered all", func() bool { return len(w.rows("r")) == 40 })
	frozen.thaw()
	// The old worker takes part again, though its source hasn't returned.
	w.until("partitions are shared again", func() bool { return partitions(old) == 2 && partitions(fresh) == 2 })
	close(release)
	w.until("what it offers is refused", func() bool { mu.Lock(); defer mu.Unlock(); return errors.Is(refused, ledger.ErrFenced) })
	w.settle(fresh)
	if rows := w.rows("r"); len(rows) != 40 {
		t.Errorf("%d of 40 offers are handled", len(rows))
	}
	if c := w.counters("finder"); c.Applied != 40 {
		t.Errorf("counters of the source: %+v", c)
	}
}

// offer offers the things numbered from one to another.
func offer(ctx context.Context, f *engine.Feed, from, to int) error {
	for i := from; i < to; i++ {
		found := numbered(1, i+1)[i]
		if _, err := f.Offer(ctx, found, func(_ context.Context, e event.Event, s *engine.Step) error {
			s.Emit(event.New("FoundEvent", e.ID, nil))
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}
