package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

func recorder(name string, reads string, emits ...string) engine.Agent {
	return engine.Agent{Name: name, Reads: []string{reads}, Emits: emits, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		record(name, e, s)
		if len(emits) > 0 {
			next := event.New("NextEvent", e.Subject, nil)
			next.ID, next.Source = e.ID, "//next" // keeps ids in order for checkOnce
			s.Emit(next)
		}
		return nil
	}}
}

func TestChainOfAgentsHandlesEachEventOnceInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "b")
	e, _ := w.start(w.options("w"), recorder("first", "a", "b"), recorder("second", "b"))
	w.publish("a", numbered(40, 50)...)
	w.settle(e)
	checkOnce(t, w.rows("first"), 40, 50)
	checkOnce(t, w.rows("second"), 40, 50)
	if c := w.counters("second"); c != (ledger.Counters{Applied: 2000}) {
		t.Errorf("second: %+v", c)
	}
	if n := w.totals().Outbox; n != 0 {
		t.Errorf("%d rows left in the outbox", n)
	}
}

// Steps fail at random, in the handler and in the commit; each event still has one effect, in order.
func TestFailingStepsKeepOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var n atomic.Int64
	agent := engine.Agent{Name: "flaky", Reads: []string{"a"}, Limits: engine.Limits{Backoff: time.Millisecond, Attempts: 50},
		Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			i := n.Add(1)
			if i%7 == 0 {
				return errors.New("handler fails")
			}
			record("flaky", e, s)
			s.Tx(func(context.Context, ledger.Tx) error {
				if i%5 == 0 {
					return errors.New("effect fails")
				}
				return nil
			})
			return nil
		}}
	e, _ := w.start(w.options("w"), agent)
	w.publish("a", numbered(20, 50)...)
	w.settle(e)
	checkOnce(t, w.rows("flaky"), 20, 50)
}

func TestCopiesAndConflicts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	e, _ := w.start(w.options("w"), recorder("r", "a"))
	one := event.New("T", "s", map[string]int{"amount": 10})
	one.Source, one.ID = "//x", "e1"
	other := event.New("T", "s", map[string]int{"amount": 99})
	other.Source, other.ID = "//x", "e1"
	w.publish("a", one, one) // the copy may find its original in the lane, or in the ledger
	w.settle(e)
	w.publish("a", one, other)
	after := event.New("T", "s", nil)
	after.Source, after.ID = "//x", "e2"
	w.publish("a", after) // a conflict parks nothing
	w.settle(e)
	if c := w.counters("r"); c != (ledger.Counters{Applied: 2, Duplicate: 2, Dead: 1}) {
		t.Errorf("counters: %+v", c)
	}
	if got := len(w.rows("r")); got != 2 {
		t.Errorf("%d effects", got)
	}
}

func TestDeadRecordParksItsAggregateOnly(t *testing.T) {
	t.Parallel()
	for _, policy := range []engine.OnDead{engine.Park, engine.Skip} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "a")
			agent := engine.Agent{Name: "r", Reads: []string{"a"}, OnDead: policy, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
				if e.ID == "0-000003" {
					return fault.Permanentf("poison")
				}
				record("r", e, s)
				return nil
			}}
			e, stop := w.start(w.options("w"), agent)
			w.publish("a", numbered(5, 10)...)
			w.settle(e)
			want := ledger.Counters{Applied: 43, Dead: 1, Waiting: 6}
			if policy == engine.Skip {
				want = ledger.Counters{Applied: 49, Dead: 1}
			}
			if c := w.counters("r"); c != want {
				t.Errorf("counters: %+v, expected %+v", c, want)
			}
			stop()
			// Another worker knows what is parked.
			e, _ = w.start(w.options("v"), agent)
			late := event.New("T", "subject-0", nil)
			late.Source, late.ID = "//test", "0-000099"
			w.publish("a", late)
			w.settle(e)
			if policy == engine.Park {
				want.Waiting++
			} else {
				want.Applied++
			}
			if c := w.counters("r"); c != want {
				t.Errorf("after a move: %+v, expected %+v", c, want)
			}
		})
	}
}

// Field case P1: what can't be decoded is dead-lettered byte for byte.
func TestP1BrokenBytesAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	e, _ := w.start(w.options("w"), recorder("r", "a"))
	values := [][]byte{[]byte("{\"a\":\"\xff\xfe\"}"), []byte("{\"a\":\"caf\xe9\"}"), []byte(`{"a":"\ud83d"}`), {}}
	for i, v := range values {
		w.publishRaw("a", event.Message{Key: fmt.Appendf(nil, "k%d", i), Value: v, Headers: []event.Header{
			{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: fmt.Appendf(nil, "%d", i)}, {Key: "ce_source", Value: []byte("//x")},
			{Key: "ce_type", Value: []byte("T")}, {Key: "content-type", Value: []byte("application/json")}, {Key: "own", Value: []byte{0, 255}}}})
	}
	w.settle(e)
	if c := w.counters("r"); c.Dead != 4 || c.Delivered() != 4 {
		t.Fatalf("counters: %+v", c)
	}
	for _, m := range w.dead("a") {
		var n int
		fmt.Sscanf(string(m.Key), "k%d", &n)
		if !bytes.Equal(m.Value, values[n]) {
			t.Errorf("dead letter of %q holds %x, expected %x", m.Key, m.Value, values[n])
		}
		if header(m, "own") != "\x00\xff" || header(m, engine.HeaderDeadReason) == "" {
			t.Errorf("dead letter of %q: headers %v", m.Key, m.Headers)
		}
	}
}

func header(m event.Message, key string) string {
	for _, h := range m.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

func TestHeavyStepDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	release := make(chan struct{})
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Limits: engine.Limits{Steps: 4, Bytes: 1 << 20},
		Weigh: func(e event.Event) int64 {
			if e.ID == "0-000000" {
				return 100 << 20
			}
			return 1
		},
		Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
			if e.ID == "0-000000" {
				select {
				case <-release:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			record("r", e, s)
			return nil
		}}
	e, _ := w.start(w.options("w"), agent)
	w.publish("a", numbered(10, 20)...)
	w.until("all but the heavy aggregate are done", func() bool { return len(w.rows("r")) == 180 })
	close(release)
	w.settle(e)
	checkOnce(t, w.rows("r"), 10, 20)
}

func TestCycleEndsAtTheHopLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	agent := engine.Agent{Name: "loop", Reads: []string{"a"}, Emits: []string{"a"}, Limits: engine.Limits{Hops: 10},
		Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			s.Emit(event.New("AgainEvent", e.Subject, nil))
			return nil
		}}
	e, _ := w.start(w.options("w"), agent)
	w.publish("a", numbered(1, 1)...)
	w.settle(e)
	if c := w.counters("loop"); c != (ledger.Counters{Applied: 11, Dead: 1}) {
		t.Errorf("counters: %+v", c)
	}
}

func TestErrorClasses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "b")
	var down atomic.Bool
	down.Store(true)
	var tries atomic.Int64
	classes := engine.Agent{Name: "classes", Reads: []string{"a"}, Limits: engine.Limits{Attempts: 3, Backoff: time.Millisecond, MaxWait: 2 * time.Millisecond, Timeout: 50 * time.Millisecond},
		Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
			switch e.Subject {
			case "subject-0":
				return errors.New("transient, always")
			case "subject-1":
				panic("oh")
			case "subject-2":
				if tries.Add(1); down.Load() {
					return fault.As(fault.Unavailable, errors.New("model is down"))
				}
			case "subject-3":
				<-ctx.Done()
				return ctx.Err()
			case "subject-4":
				s.Refuse("no")
			case "subject-5":
				s.Skip("not now")
			case "subject-6":
				s.Emit(event.New("Large", "x", strings.Repeat("x", 2<<20)))
			}
			record("classes", e, s)
			return nil
		}}
	fatal := engine.Agent{Name: "fatal", Reads: []string{"b"}, Handle: func(context.Context, event.Event, *engine.Step) error {
		return fault.Fatalf("this agent can't work")
	}}
	classes.Emits = []string{"b"}
	e, _ := w.start(w.options("w"), classes, fatal)
	w.publish("a", numbered(8, 1)...)
	w.until("the unavailable dependency was asked often", func() bool { return tries.Load() > 20 })
	down.Store(false)
	w.settle(e)
	if c := w.counters("classes"); c != (ledger.Counters{Applied: 2, Dead: 4, Refused: 1, Skipped: 1}) {
		t.Errorf("counters: %+v", c)
	}
	for _, m := range w.dead("a") {
		if reason := header(m, engine.HeaderDeadReason); string(m.Key) == "subject-3" && !strings.Contains(reason, "50ms") {
			t.Errorf("reason of a time-out: %s", reason)
		}
	}
	w.publish("b", numbered(1, 1)...)
	w.until("the fatal agent stopped", func() bool { return e.Failed()["fatal"] != nil })
	if c := w.counters("fatal"); c.Delivered() != 0 {
		t.Errorf("the event of a fatal error counts as handled: %+v", c)
	}
	if !w.saw(engine.NoticeFailed) {
		t.Error("nobody was told that an agent stopped")
	}
}

func TestStopAndStartGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "b")
	agents := []engine.Agent{recorder("first", "a", "b"), recorder("second", "b")}
	events := numbered(30, 60)
	for i := range 6 {
		e, stop := w.start(w.options("w"), agents...)
		w.publish("a", events[i*300:(i+1)*300]...)
		if i == 5 {
			w.settle(e)
		}
		stop()
	}
	checkOnce(t, w.rows("first"), 30, 60)
	checkOnce(t, w.rows("second"), 30, 60)
	for _, l := range w.totals().Leases {
		if l.Held {
			t.Errorf("lease of %s is held after all engines stopped", l.Group)
		}
	}
}

// Field case R6, with workers whose leases are taken while they go on: the old owner's commits are refused, and in
// the order of commits no partition's epoch falls.
func TestR6FencedWorkerCommitsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	agent := recorder("r", "a")
	frozen := &freezer{Ledger: w.ledger}
	o := w.options("old")
	o.Ledger = frozen
	old, _ := w.start(o, agent)
	events := numbered(20, 100)
	w.publish("a", events[:600]...)
	w.until("the old worker has begun", func() bool { return len(w.rows("r")) > 0 })
	frozen.freeze()
	fresh, _ := w.start(w.options("new"), agent)
	w.publish("a", events[600:1200]...)
	w.until("the new worker owns partitions", func() bool {
		for _, a := range fresh.Status() {
			return len(a.Partitions) > 0
		}
		return false
	})
	w.publish("a", events[1200:]...)
	w.settle(fresh)
	frozen.thaw()
	w.settle(old)
	checkOnce(t, w.rows("r"), 20, 100)
	last := map[string]int64{}
	for _, r := range w.rows("r") {
		if r.epoch < last[r.subject] {
			t.Fatalf("%s: epoch %d committed after %d", r.subject, r.epoch, last[r.subject])
		}
		last[r.subject] = r.epoch
	}
}

// freezer is a ledger that stops renewing leases and doesn't tell its worker.
type freezer struct {
	ledger.Ledger
	mu     sync.Mutex
	frozen bool
	last   []ledger.Fence
}

func (f *freezer) freeze() { f.mu.Lock(); f.frozen = true; f.mu.Unlock() }
func (f *freezer) thaw()   { f.mu.Lock(); f.frozen = false; f.mu.Unlock() }

func (f *freezer) Beat(ctx context.Context, w ledger.Worker, ttl time.Duration) ([]ledger.Fence, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.frozen {
		return f.last, nil
	}
	var err error
	f.last, err = f.Ledger.Beat(ctx, w, ttl)
	return f.last, err
}

func (f *freezer) Acquire(ctx context.Context, k ledger.Key, topic, owner string, start int64, ttl time.Duration) (ledger.Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.frozen {
		return ledger.Lease{}, ledger.ErrHeld
	}
	l, err := f.Ledger.Acquire(ctx, k, topic, owner, start, ttl)
	if err == nil {
		f.last = append(f.last, l.Fence)
	}
	return l, err
}

// A commit whose outcome is unknown is read back, whichever it was.
func TestUnknownOutcomeIsReadBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "b")
	o := w.options("w")
	o.Batch = 16
	o.Ledger = &doubtful{Ledger: w.ledger}
	e, _ := w.start(o, recorder("first", "a", "b"), recorder("second", "b"))
	w.publish("a", numbered(20, 30)...)
	w.settle(e)
	checkOnce(t, w.rows("first"), 20, 30)
	checkOnce(t, w.rows("second"), 20, 30)
}

// doubtful loses the answers of commits: some were done, some not.
type doubtful struct {
	ledger.Ledger
	n    int
	done map[*ledger.Batch][]ledger.Result
}

func (d *doubtful) Commit(ctx context.Context, b *ledger.Batch) ([]ledger.Result, error) {
	switch d.n++; d.n % 6 {
	case 1:
		results, err := d.Ledger.Commit(ctx, b)
		if err != nil {
			return nil, err
		}
		d.done = map[*ledger.Batch][]ledger.Result{b: results}
		return nil, ledger.ErrUnknown
	case 3:
		return nil, ledger.ErrUnknown
	case 5:
		return nil, errors.New("connection refused")
	}
	return d.Ledger.Commit(ctx, b)
}

func (d *doubtful) Resolve(_ context.Context, b *ledger.Batch) ([]ledger.Result, bool, error) {
	if d.n++; d.n%3 == 0 {
		return nil, false, errors.New("connection refused")
	}
	results, ok := d.done[b]
	return results, ok, nil
}

func TestSequenceGapWaitsAndClosesInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	e, _ := w.start(w.options("w"), recorder("r", "a"))
	at := func(n int64) event.Event {
		e := event.New("T", "s", nil)
		e.Source, e.ID = "//h", fmt.Sprintf("%03d", n)
		e.SetSequence(n)
		return e
	}
	w.publish("a", at(1), at(3), at(4), at(3), at(1), at(6))
	w.settle(e)
	if c := w.counters("r"); c.Applied != 1 || c.Waiting < 3 {
		t.Fatalf("with a gap: %+v", c)
	}
	w.publish("a", at(2))
	w.until("the gap is closed", func() bool { return len(w.rows("r")) == 4 })
	w.publish("a", at(5), at(7))
	w.until("all are done", func() bool { return len(w.rows("r")) == 7 })
	w.settle(e)
	checkOnce(t, w.rows("r"), 1, 7)
	if c := w.counters("r"); c.Waiting != 0 || c.Delivered() != 9 {
		t.Errorf("at the end: %+v", c)
	}
}

// The history of an aggregate goes on past events that have no effect.
func TestSequenceGoesOnPastIgnoredAndDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Types: []string{"T", "Poison"}, OnDead: engine.Skip,
		Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			if e.Type == "Poison" {
				return fault.Permanentf("poison")
			}
			record("r", e, s)
			return nil
		}}
	e, _ := w.start(w.options("w"), agent)
	for i, typ := range []string{"T", "Other", "Poison", "T", "T"} {
		ev := event.New(typ, "s", nil)
		ev.Source, ev.ID = "//h", fmt.Sprintf("%03d", i+1)
		ev.SetSequence(int64(i + 1))
		w.publish("a", ev)
	}
	w.settle(e)
	if c := w.counters("r"); c != (ledger.Counters{Applied: 3, Ignored: 1, Dead: 1}) {
		t.Errorf("counters: %+v", c)
	}
}

func TestSourceOffersOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var runs atomic.Int64
	source := engine.Source{Name: "finder", Emits: []string{"a"}, Run: func(ctx context.Context, f *engine.Feed) error {
		runs.Add(1)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				found := event.New("Found", fmt.Sprintf("doc-%d", i), nil)
				found.Source, found.ID = "//files", fmt.Sprintf("%06d", i)
				_, err := f.Offer(ctx, found, func(_ context.Context, e event.Event, s *engine.Step) error {
					out := event.New("FoundEvent", e.Subject, nil)
					out.Source, out.ID = e.Source, e.ID
					s.Emit(out)
					return nil
				})
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		f.Idle(true)
		<-ctx.Done()
		return nil
	}}
	for range 2 {
		e, stop := w.startSources(w.options("w"), []engine.Source{source}, recorder("r", "a"))
		w.settle(e)
		stop()
	}
	if runs.Load() != 2 {
		t.Errorf("the source ran %d times", runs.Load())
	}
	if got := len(w.rows("r")); got != 50 {
		t.Errorf("%d documents handled, expected 50", got)
	}
}

func TestIgnoredTypesAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	agent := recorder("r", "a")
	agent.Types = []string{"Wanted"}
	e, _ := w.start(w.options("w"), agent)
	w.publish("a", numbered(3, 3)...)
	w.settle(e)
	if c := w.counters("r"); c != (ledger.Counters{Ignored: 9}) {
		t.Errorf("counters: %+v", c)
	}
}
