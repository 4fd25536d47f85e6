package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// A partition whose records aren't worked on is held back once enough of them wait, by number or by size, and goes on
// below that. That it was held back isn't remembered where it's taken anew.
func TestPartitionIsHeldBackAtItsBound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		n, size int // records, and bytes of each
		bound   int // that may be queued at most: the bound, and what fetches bring beyond it
	}{
		{"many", 9000, 10, 9000},
		{"large", 300, 100 << 10, 24 << 20 / (100 << 10)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "a")
			release := make(chan struct{})
			agent := engine.Agent{Name: "r", Reads: []string{"a"}, Limits: engine.Limits{Bytes: 32 << 20},
				Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
					select {
					case <-release:
					case <-ctx.Done():
						return ctx.Err()
					}
					record("r", e, s)
					return nil
				}}
			w.publishTo("a", 0, c.n, c.size)
			held := func(e *engine.Engine) (held bool, queued int) {
				s := e.Status()[0]
				for _, p := range s.Partitions {
					held = held || p.Held
				}
				return held, s.Queued
			}
			first, stop := w.start(w.options("w"), agent)
			w.until("the partition is held back", func() bool { yes, _ := held(first); return yes })
			if _, queued := held(first); queued > c.bound {
				t.Errorf("%d of %d records are queued", queued, c.n)
			}
			stop()
			second, _ := w.start(w.options("w"), agent)
			w.until("it is held back again", func() bool { yes, _ := held(second); return yes })
			close(release)
			w.settle(second)
			if rows := w.rows("r"); len(rows) != c.n {
				t.Errorf("%d effects of %d records", len(rows), c.n)
			}
			if yes, queued := held(second); yes || queued != 0 {
				t.Errorf("at the end %d are queued; held back: %v", queued, yes)
			}
		})
	}
}

// publishTo appends n events of a hundred subjects, which lead there, and a size to one partition.
func (w *world) publishTo(topic string, partition int32, n, size int) {
	w.t.Helper()
	answers := make(chan error, n)
	var subjects []string
	for i := 0; len(subjects) < 100; i++ {
		if s := fmt.Sprintf("subject-%d", i); route.Partition([]byte(s), w.topics[topic].Partitions) == partition {
			subjects = append(subjects, s)
		}
	}
	for i := range n {
		e := event.New("T", subjects[i%100], make([]byte, size))
		e.Source, e.ID = "//test", fmt.Sprintf("%06d", i)
		m, err := e.Encode()
		must(w.t, err)
		w.broker.Publisher().Publish(broker.Record{Message: m, Position: event.Position{Topic: topic, Partition: partition}},
			func(_ int64, err error) { answers <- err })
	}
	for range n {
		must(w.t, <-answers)
	}
}

// Copies come within one fetch, in other fetches, and on other partitions, whose steps run at the same time.
func TestCopiesWithinAFetchAndOnOtherPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	const subjects, n = 8, 40
	random := rand.New(rand.NewPCG(1, 2))
	answers := make(chan error, 10*subjects*n)
	sent := 0
	for _, e := range numbered(subjects, n) {
		m, err := e.Encode()
		must(t, err)
		home := int32(random.IntN(4)) // the same for the event's copies or not; its first one decides when it's handled
		for range 1 + random.IntN(4) {
			w.broker.Publisher().Publish(broker.Record{Message: m, Position: event.Position{Topic: "a", Partition: home}}, func(_ int64, err error) { answers <- err })
			sent++
			home = int32(random.IntN(4))
		}
	}
	for range sent {
		must(t, <-answers)
	}
	e, _ := w.start(w.options("w"), recorder("r", "a"))
	w.settle(e)
	seen := map[string]bool{}
	for _, r := range w.rows("r") {
		if seen[r.id] {
			t.Fatalf("%s has two effects", r.id)
		}
		seen[r.id] = true
	}
	if len(seen) != subjects*n {
		t.Errorf("%d of %d events have an effect", len(seen), subjects*n)
	}
	c := w.counters("r") // what isn't where it belongs is forwarded, and then told as a copy like any other
	if c.Misrouted == 0 || c != (ledger.Counters{Applied: subjects * n, Duplicate: int64(sent - subjects*n), Misrouted: c.Misrouted}) {
		t.Errorf("%d records: %+v", sent, c)
	}
}

// Records without a key have no order and hold each other up in nothing: one that waits or dies stops no other.
func TestKeylessRecordsRunSideBySide(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	const n = 60
	var running sync.WaitGroup // of those that wait for each other
	running.Add(10)
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		var i int
		fmt.Sscanf(e.ID, "%d", &i)
		switch {
		case i < 10:
			running.Done()
			running.Wait() // they all run at the same time, or none gets on
		case i%10 == 3:
			return fault.Permanentf("poison")
		}
		record("r", e, s)
		return nil
	}}
	e, _ := w.start(w.options("w"), agent)
	var events []event.Event
	for i := range n {
		e := event.New("T", "", nil)
		e.Source, e.ID = "//test", fmt.Sprintf("%06d", i)
		events = append(events, e)
	}
	w.publish("a", events...) // to one partition, since they have no key
	w.settle(e)
	if c := w.counters("r"); c != (ledger.Counters{Applied: n - 5, Dead: 5}) {
		t.Errorf("counters: %+v", c)
	}
	if rows := w.rows("r"); len(rows) != n-5 {
		t.Errorf("%d effects", len(rows))
	}
	for _, m := range w.dead("a") {
		if m.Key != nil {
			t.Errorf("the dead letter of a record without a key has the key %q", m.Key)
		}
	}
}

// A ledger that can't commit for a while holds everything up, says so, and loses nothing.
func TestCommitsStandStillAndGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "b")
	l := &stalling{Ledger: w.ledger}
	o := w.options("w")
	o.Ledger, o.Batch, o.Rand = l, 32, soon
	e, _ := w.start(o, recorder("first", "a", "b"), recorder("second", "b"))
	events := numbered(20, 50)
	w.publish("a", events[:500]...)
	w.until("work has begun", func() bool { return len(w.rows("first")) > 0 })
	l.stall(true)
	w.publish("a", events[500:]...)
	w.until("commits stand still", func() bool { return e.Stalled() != nil && l.refusals() > 5 })
	before := len(w.rows("first"))
	from := w.beat()
	w.until("leases were renewed meanwhile", func() bool { return w.beat().Sub(from) > o.LeaseTime })
	if idle, err := e.Idle(t.Context()); idle || err != nil {
		t.Errorf("while commits stand still the swarm counts as idle: %v, %v", idle, err)
	}
	if after := len(w.rows("first")); after != before {
		t.Errorf("%d effects were committed by a ledger that can't", after-before)
	}
	l.stall(false)
	w.settle(e)
	if err := e.Stalled(); err != nil || w.told(engine.NoticeStall) != "commits go on" {
		t.Errorf("stalled: %v; people were last told %q", err, w.told(engine.NoticeStall))
	}
	checkOnce(t, w.rows("first"), 20, 50)
	checkOnce(t, w.rows("second"), 20, 50)
}

// stalling is a ledger whose commits can be made to fail.
type stalling struct {
	ledger.Ledger
	mu      sync.Mutex
	stalled bool
	refused int
}

func (s *stalling) stall(on bool) { s.mu.Lock(); s.stalled = on; s.mu.Unlock() }

func (s *stalling) refusals() int { s.mu.Lock(); defer s.mu.Unlock(); return s.refused }

func (s *stalling) Commit(ctx context.Context, b *ledger.Batch) ([]ledger.Result, error) {
	s.mu.Lock()
	if s.stalled {
		s.refused++
		s.mu.Unlock()
		return nil, fmt.Errorf("ledger: disk is full")
	}
	s.mu.Unlock()
	return s.Ledger.Commit(ctx, b)
}

// A ledger that doesn't answer at all, heartbeats included, for longer than leases last: the worker lets go of its
// partitions, and takes them again when the ledger is back. Its log has one line about each thing that fails.
func TestLedgerIsAwayForLongerThanALease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	l := &stalling{Ledger: w.ledger}
	o := w.options("w")
	s := &silent{stalling: l}
	o.Ledger, o.LeaseTime, o.Rand = s, 200*time.Millisecond, soon
	log := &said{Handler: slog.DiscardHandler}
	o.Logger = slog.New(log)
	e, _ := w.start(o, recorder("r", "a"))
	events := numbered(10, 40)
	w.publish("a", events[:200]...)
	w.until("work has begun", func() bool { return len(w.rows("r")) > 0 })
	l.stall(true)
	w.publish("a", events[200:]...)
	w.until("the worker let go of its partitions", func() bool { return partitions(e) == 0 })
	w.until("heartbeats and looks have failed several times", func() bool { return s.beats.Load() > 4 && s.looks.Load() > 4 })
	for _, what := range []string{"leases can't be renewed", "what people have decided can't be looked up"} {
		if n := log.times(what); n != 1 {
			t.Errorf("the log says %d times: %s", n, what)
		}
	}
	l.stall(false)
	w.settle(e)
	checkOnce(t, w.rows("r"), 10, 40)
}

// silent is a ledger that while it's stalled answers nothing that has to do with leases either.
type silent struct {
	*stalling
	beats, looks atomic.Int64 // that failed
}

var errSilent = fmt.Errorf("ledger: no answer")

func (s *silent) Beat(ctx context.Context, worker ledger.Worker, ttl time.Duration) ([]ledger.Fence, error) {
	s.mu.Lock()
	stalled := s.stalled
	s.mu.Unlock()
	if stalled {
		s.beats.Add(1)
		return nil, errSilent
	}
	return s.Ledger.Beat(ctx, worker, ttl)
}

func (s *silent) Controls(ctx context.Context) ([]ledger.Control, error) {
	s.mu.Lock()
	stalled := s.stalled
	s.mu.Unlock()
	if stalled {
		s.looks.Add(1)
		return nil, errSilent
	}
	return s.Ledger.Controls(ctx)
}

// said counts warnings. It takes no attributes over, which are of no interest here.
type said struct {
	slog.Handler
	mu       sync.Mutex
	warnings []string
}

func (s *said) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (s *said) WithAttrs([]slog.Attr) slog.Handler { return s }

func (s *said) WithGroup(string) slog.Handler { return s }

func (s *said) Handle(_ context.Context, r slog.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings = append(s.warnings, r.Message)
	return nil
}

func (s *said) times(what string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.warnings {
		if strings.HasPrefix(w, what) {
			n++
		}
	}
	return n
}
