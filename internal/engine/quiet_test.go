package engine_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// pausable is a ledger whose worker can be held up: nothing goes through until it goes on.
type pausable struct {
	ledger.Ledger
	mu sync.RWMutex
}

func (p *pausable) Beat(ctx context.Context, w ledger.Worker, ttl time.Duration) ([]ledger.Fence, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.Ledger.Beat(context.WithoutCancel(ctx), w, ttl)
}

func (p *pausable) Commit(ctx context.Context, b *ledger.Batch) ([]ledger.Result, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.Ledger.Commit(ctx, b)
}

func (p *pausable) Leases(ctx context.Context, group string) ([]ledger.Lease, error) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.Ledger.Leases(ctx, group)
}

// journalled reads the events of a topic, by type.
func (w *world) journalled(topic string) map[string][]event.Event {
	w.t.Helper()
	ranges, err := w.broker.Offsets(context.Background(), topic)
	must(w.t, err)
	reader, err := w.broker.Reader("journal")
	must(w.t, err)
	defer reader.Close()
	left := int64(0)
	for n, r := range ranges {
		left += r.End
		reader.Add(w.topics[topic], int32(n), 0)
	}
	all := map[string][]event.Event{}
	for left > 0 {
		fetches, err := reader.Poll(w.t.Context())
		must(w.t, err)
		for _, f := range fetches {
			for _, r := range f.Records {
				e, err := event.Decode(r.Message, r.Position)
				must(w.t, err)
				all[e.Type] = append(all[e.Type], e)
				left--
			}
		}
	}
	return all
}

// Field case R6: a worker is held up for longer than its leases last while its steps wait for their commit. What it
// began commits nothing once others have taken over; it says so, and carries on with new leases.
func TestR6PausedWorkerSaysSoAndCarriesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "journal")
	paused := &pausable{Ledger: w.ledger}
	one := w.options("one")
	one.Ledger, one.Journal = paused, "journal"
	first, _ := w.start(one, recorder("r", "a"))
	two := w.options("two")
	two.Journal = "journal"
	second, _ := w.start(two, recorder("r", "a"))
	w.until("they share", func() bool { return partitions(first) == 2 && partitions(second) == 2 })
	w.publish("a", numbered(20, 5)...)
	w.until("both are at work", func() bool { return len(w.rows("r")) > 0 })
	paused.mu.Lock()
	w.publish("a", numbered(20, 10)[100:]...)
	w.until("the other has taken over", func() bool { return partitions(second) == 4 && len(w.rows("r")) == 200 })
	paused.mu.Unlock()
	w.until("it says that it was quiet", func() bool { return w.saw(engine.NoticeQuiet) })
	w.until("it has leases again", func() bool { return partitions(first) == 2 && partitions(second) == 2 })
	w.publish("a", numbered(20, 15)[200:]...)
	w.settle(second)
	w.settle(first)
	checkOnce(t, w.rows("r"), 20, 15)
	w.until("it's in the journal", func() bool { return len(w.journalled("journal")[engine.TypeWorkerQuiet]) > 0 })
	all := w.journalled("journal")
	var quiet engine.QuietData
	must(t, json.Unmarshal(all[engine.TypeWorkerQuiet][0].Data, &quiet))
	if quiet.Worker != "one" || quiet.Quiet < one.LeaseTime.Milliseconds() {
		t.Errorf("the journal says %+v", quiet)
	}
	taken := 0
	ids := map[string]bool{}
	for _, e := range all[engine.TypeLeaseMoved] {
		var d engine.LeaseData
		must(t, json.Unmarshal(e.Data, &d))
		if d.What == "taken" {
			taken++
		}
		if ids[e.ID] {
			t.Errorf("two events have the id %s: %s", e.ID, e.Data)
		}
		ids[e.ID] = true
	}
	if taken < 4+2+2 {
		t.Errorf("%d partitions were taken, by the journal", taken)
	}
}

// A handler that never returns ends its worker in the end, with an error that names it, so that others can go on.
func TestStuckHandlerEndsTheWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "journal")
	release := make(chan struct{})
	defer close(release)
	var runs atomic.Int64
	agent := func(hangs bool) engine.Agent {
		return engine.Agent{Name: "r", Reads: []string{"a"}, Limits: engine.Limits{Timeout: 50 * time.Millisecond},
			Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
				if hangs && e.ID == "3-000002" {
					runs.Add(1)
					<-release // whatever the context says
				}
				record("r", e, s)
				return nil
			}}
	}
	o := w.options("one")
	o.StuckAfter, o.Drain, o.LeaseTime, o.Journal = 500*time.Millisecond, 100*time.Millisecond, time.Second, "journal"
	e, err := engine.New(o, []engine.Agent{agent(true)}, nil)
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- e.Run(t.Context()) }()
	w.publish("a", numbered(10, 5)...)
	select {
	case err = <-done:
	case <-time.After(time.Minute):
		t.Fatal("the worker goes on")
	}
	if err == nil || !strings.Contains(err.Error(), `agent r: the handler of "subject-3" at a/`) {
		t.Errorf("it ended with %v", err)
	}
	if runs.Load() != 1 {
		t.Errorf("the handler that hangs ran %d times", runs.Load())
	}
	if n := len(w.journalled("journal")[engine.TypeAgentStuck]); n != 1 {
		t.Errorf("%d events in the journal tell of it", n)
	}
	next, _ := w.start(w.options("two"), agent(false))
	w.settle(next)
	checkOnce(t, w.rows("r"), 10, 5)
}

// A worker that has lost a partition and takes it again runs no handler beside an earlier run of it that doesn't look
// at its context: the aggregate waits for that one, and the others go on.
func TestLostHandlerThatGoesOnIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	release := make(chan struct{})
	var at, most, runs atomic.Int64
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		if e.ID == "0-000000" {
			if n := at.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer at.Add(-1)
			if runs.Add(1) == 1 {
				<-release
			}
		}
		record("r", e, s)
		return nil
	}}
	e, _ := w.start(w.options("one"), agent)
	w.publish("a", numbered(10, 10)...)
	w.until("all others are done", func() bool { return len(w.rows("r")) == 90 })
	for _, l := range w.leases("r") { // somebody takes all, and goes away again
		must(t, w.ledger.Release(t.Context(), l.Fence))
		got, err := w.ledger.Acquire(t.Context(), l.Key, l.Topic, "stranger", 0, time.Minute)
		must(t, err)
		must(t, w.ledger.Release(t.Context(), got.Fence))
	}
	epochs := func() (sum int64) {
		for _, l := range w.leases("r") {
			sum += l.Epoch
		}
		return sum
	}
	w.until("it has taken them again", func() bool { return partitions(e) == 4 && epochs() == 12 })
	w.publish("a", numbered(10, 12)[100:]...)
	w.until("all others are done again", func() bool { return len(w.rows("r")) == 108 })
	if runs.Load() != 1 {
		t.Errorf("it ran %d times before its first run returned", runs.Load())
	}
	close(release)
	w.settle(e)
	checkOnce(t, w.rows("r"), 10, 12)
	if most.Load() != 1 || runs.Load() != 2 {
		t.Errorf("%d runs, %d at a time", runs.Load(), most.Load())
	}
}
