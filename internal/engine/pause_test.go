package engine_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// A paused agent finishes what runs, starts nothing more and gives its leases back, so that it can be rewound; told to
// go on, it goes on from there.
func TestPausedAgentGivesItsLeasesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "b")
	started, finish := make(chan struct{}, 100), make(chan struct{})
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Emits: []string{"b"}, Limits: engine.Limits{Steps: 1},
		Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
			started <- struct{}{}
			select {
			case <-finish:
			case <-ctx.Done():
				return ctx.Err()
			}
			record("r", e, s)
			s.Emit(event.New("T", e.Subject, nil))
			return nil
		}}
	other := recorder("other", "a")
	e, _ := w.start(w.options("w"), agent, other)
	w.publish("a", numbered(5, 4)...)
	<-started
	must(t, w.ledger.SetControl(t.Context(), ledger.Control{Group: "r", Paused: true, Reason: "looking at it"}))
	must(t, e.Look(t.Context()))
	if s := e.Status()[0]; !s.Paused || s.Reason != "looking at it" || s.Since.IsZero() || s.Running != 1 {
		t.Errorf("status: %+v", s)
	}
	close(finish)
	w.until("all leases are given back", func() bool {
		leases, err := w.ledger.Leases(context.Background(), "r")
		must(t, err)
		for _, l := range leases {
			if l.Held {
				return false
			}
		}
		return true
	})
	if n := len(w.rows("r")); n != 1 {
		t.Errorf("%d steps were done, expected that which ran", n)
	}
	if n := w.totals().Outbox; n != 0 {
		t.Errorf("%d events aren't published", n)
	}
	w.settle(e) // others go on
	if n := len(w.rows("other")); n != 20 {
		t.Errorf("another agent did %d of 20", n)
	}
	must(t, w.ledger.SetControl(t.Context(), ledger.Control{Group: "r"}))
	must(t, e.Look(t.Context()))
	w.until("all is done", func() bool { return len(w.rows("r")) == 20 })
	w.settle(e)
	checkOnce(t, w.rows("r"), 5, 4)
	if w.count(engine.NoticePaused) != 2 {
		t.Error("it wasn't told")
	}
}

// An agent that is paused when its worker starts takes nothing; nor does a source.
func TestPausedFromTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	for _, name := range []string{"r", "source"} {
		must(t, w.ledger.SetControl(t.Context(), ledger.Control{Group: name, Paused: true}))
	}
	w.publish("a", numbered(5, 4)...)
	offered := make(chan struct{}, 1)
	source := engine.Source{Name: "source", Run: func(ctx context.Context, f *engine.Feed) error {
		f.Idle(true)
		select {
		case offered <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return nil
	}}
	o := w.options("w")
	e, _ := w.startSources(o, []engine.Source{source}, recorder("r", "a"))
	w.settle(e) // nothing goes on by itself
	if n := len(w.rows("r")); n != 0 || len(offered) > 0 {
		t.Fatalf("%d steps were done, the source ran %d times", n, len(offered))
	}
	for _, name := range []string{"r", "source"} {
		must(t, w.ledger.SetControl(t.Context(), ledger.Control{Group: name}))
	}
	e.Poke()
	w.until("all is done", func() bool { return len(w.rows("r")) == 20 })
	<-offered
	must(t, w.ledger.SetControl(t.Context(), ledger.Control{Group: "source", Paused: true}))
	e.Poke()
	w.until("the source's lease is given back", func() bool {
		leases, err := w.ledger.Leases(context.Background(), "source")
		must(t, err)
		return len(leases) == 1 && leases[0].Owner == ""
	})
	if s := e.Status()[0]; !s.Source || !s.Paused {
		t.Errorf("status: %+v", s)
	}
}

// latecomer is a ledger whose answers to Acquire wait until they are let go.
type latecomer struct {
	ledger.Ledger
	once   sync.Once
	asked  chan struct{}
	answer chan struct{}
}

func (l *latecomer) Acquire(ctx context.Context, k ledger.Key, topic, owner string, start int64, ttl time.Duration) (ledger.Lease, error) {
	lease, err := l.Ledger.Acquire(ctx, k, topic, owner, start, ttl)
	if k.Group == "r" {
		l.once.Do(func() { close(l.asked) })
		<-l.answer
	}
	return lease, err
}

// An agent that is paused while a lease of it is just being taken doesn't begin with it, and gives it back.
func TestPausedWhileLeasesAreTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	w.publish("a", numbered(5, 4)...)
	late := &latecomer{Ledger: w.ledger, asked: make(chan struct{}), answer: make(chan struct{})}
	o := w.options("w")
	o.Ledger = late
	e, _ := w.start(o, recorder("r", "a"))
	<-late.asked
	must(t, w.ledger.SetControl(t.Context(), ledger.Control{Group: "r", Paused: true}))
	must(t, e.Look(t.Context()))
	close(late.answer)
	w.until("all leases are given back", func() bool {
		leases, err := w.ledger.Leases(context.Background(), "r")
		must(t, err)
		for _, l := range leases {
			if l.Held {
				return false
			}
		}
		return partitions(e) == 0
	})
	if n := len(w.rows("r")); n != 0 {
		t.Errorf("a paused agent did %d steps", n)
	}
	must(t, w.ledger.SetControl(t.Context(), ledger.Control{Group: "r"}))
	must(t, e.Look(t.Context()))
	w.settle(e)
	checkOnce(t, w.rows("r"), 5, 4)
}
