package engine_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// poisonable is an agent for which an event is poison while it says so.
func poisonable(poison func(e event.Event) bool) engine.Agent {
	return engine.Agent{Name: "r", Reads: []string{"a"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		if poison(e) {
			return fault.Permanentf("poison")
		}
		record("r", e, s)
		return nil
	}}
}

// key is the lease under which something of a subject waits.
func (w *world) key(agent, topic, subject string) ledger.Key {
	w.t.Helper()
	rows, err := w.ledger.Waits(context.Background(), ledger.WaitQuery{Group: agent, Topic: topic, Subject: subject, Limit: 1})
	must(w.t, err)
	if len(rows) == 0 {
		w.t.Fatalf("nothing of %s waits", subject)
	}
	return rows[0].Key
}

func (w *world) redrive(agent, topic, subject string) {
	w.t.Helper()
	ok, err := w.ledger.Redrive(context.Background(), w.key(agent, topic, subject), subject, -1)
	must(w.t, err)
	if !ok {
		w.t.Fatalf("%s isn't parked", subject)
	}
}

// D5 and P: an aggregate is parked behind a dead event; once that is let go on, all of it is handled in order, also what
// comes meanwhile, and others aren't held up.
func TestD5RedriveGoesOnInOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var poison atomic.Bool
	poison.Store(true)
	agent := poisonable(func(e event.Event) bool { return poison.Load() && e.ID == "0-000010" })
	e, _ := w.start(w.options("w"), agent)
	const n = 700 // many pages
	w.publish("a", numbered(3, n)...)
	w.settle(e)
	if c := w.counters("r"); c != (ledger.Counters{Applied: 2*n + 10, Dead: 1, Waiting: n - 11}) {
		t.Fatalf("counters: %+v", c)
	}
	w.redrive("r", "a", "subject-0")
	must(t, e.Look(t.Context())) // it's poison still
	w.settle(e)
	if c := w.counters("r"); c != (ledger.Counters{Applied: 2*n + 10, Dead: 1, Waiting: n - 11}) {
		t.Fatalf("it died again, and counters are %+v", c)
	}
	poison.Store(false)
	w.redrive("r", "a", "subject-0")
	e.Poke()
	for i := n; i < n+300; i += 30 { // what comes meanwhile
		w.publish("a", numberedFrom(3, i, i+30)...)
	}
	w.until("all is applied", func() bool { return w.counters("r").Applied == 3*(n+300) })
	w.settle(e)
	checkOnce(t, w.rows("r"), 3, n+300)
	if c := w.counters("r"); c != (ledger.Counters{Applied: 3 * (n + 300)}) {
		t.Errorf("counters: %+v", c)
	}
	w.publish("a", numberedFrom(3, n+300, n+301)...)
	w.settle(e)
	checkOnce(t, w.rows("r"), 3, n+301)
	if s := e.Status()[0]; s.Partitions[0].Parked+s.Partitions[1].Parked+s.Partitions[2].Parked+s.Partitions[3].Parked != 0 {
		t.Errorf("status: %+v", s.Partitions)
	}
}

// An aggregate that dies again further on is parked there.
func TestRedriveParksAgainAtTheNextDeath(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var good atomic.Int64
	agent := poisonable(func(e event.Event) bool {
		var subject, i int64
		_, err := fmt.Sscanf(e.ID, "%d-%d", &subject, &i)
		must(t, err)
		return i%100 == 50 && i >= good.Load()
	})
	e, _ := w.start(w.options("w"), agent)
	w.publish("a", numbered(1, 300)...)
	w.settle(e)
	for i := int64(0); i < 3; i++ {
		if c := w.counters("r"); c != (ledger.Counters{Applied: i*100 + 50, Dead: 1, Waiting: 300 - i*100 - 51}) {
			t.Fatalf("counters: %+v", c)
		}
		good.Store(i*100 + 51)
		w.redrive("r", "a", "subject-0")
		must(t, e.Look(t.Context()))
		w.settle(e)
	}
	checkOnce(t, w.rows("r"), 1, 300)
	if n := len(w.dead("a")); n != 3 {
		t.Errorf("%d letters", n)
	}
}

// A dead event that is discarded lets what waits behind it go on; so does the next owner, where the last one didn't see it.
func TestDiscardedHeadLetsTheRestGoOn(t *testing.T) {
	t.Parallel()
	for _, seen := range []bool{true, false} {
		w := newWorld(t, "a")
		agent := poisonable(func(e event.Event) bool { return strings.HasSuffix(e.ID, "000010") })
		e, stop := w.start(w.options("w"), agent)
		w.publish("a", numbered(2, 200)...)
		w.settle(e)
		if !seen {
			stop()
		}
		ok, err := w.ledger.Discard(t.Context(), w.key("r", "a", "subject-0"), "subject-0", -1)
		must(t, err)
		if !ok {
			t.Fatal("nothing to discard")
		}
		if seen {
			must(t, e.Look(t.Context()))
		} else {
			e, _ = w.start(w.options("v"), agent)
		}
		w.settle(e)
		if c := w.counters("r"); c != (ledger.Counters{Applied: 199 + 10, Dead: 2, Waiting: 189}) {
			t.Errorf("counters: %+v", c)
		}
		for i, r := range w.rows("r") {
			if r.subject == "subject-0" && r.id == "0-000010" {
				t.Errorf("the discarded event was handled, as effect %d", i)
			}
		}
	}
}

// Leases move, and owners end, while aggregates go on: the next owner goes on with what is left, in order and once.
func TestRedriveSurvivesItsOwners(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var poison atomic.Bool
	poison.Store(true)
	agent := poisonable(func(e event.Event) bool { return poison.Load() && strings.HasSuffix(e.ID, "000010") })
	e, stop := w.start(w.options("w0"), agent)
	const subjects, n = 40, 150 // more than go on at once
	w.publish("a", numbered(subjects, n)...)
	w.settle(e)
	poison.Store(false)
	for i := range subjects {
		w.redrive("r", "a", fmt.Sprintf("subject-%d", i))
	}
	must(t, e.Look(t.Context()))
	for i := 1; i <= 3; i++ {
		before := w.counters("r").Applied
		w.until("some went on", func() bool { a := w.counters("r").Applied; return a > before+200 || a == subjects*n })
		stop()
		w.publish("a", numberedFrom(subjects, n+i-1, n+i)...)
		e, stop = w.start(w.options(fmt.Sprint("w", i)), agent)
	}
	w.until("all is applied", func() bool { return w.counters("r").Applied == subjects*(n+3) })
	w.settle(e)
	checkOnce(t, w.rows("r"), subjects, n+3)
	if c := w.counters("r"); c != (ledger.Counters{Applied: subjects * (n + 3)}) {
		t.Errorf("counters: %+v", c)
	}
}

// A dead record that is put back is handled alone: what came after it has gone on, and where it dies again nothing waits
// for it.
func TestRequeuedRecordRunsAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var poison atomic.Bool
	poison.Store(true)
	agent := poisonable(func(e event.Event) bool { return poison.Load() && e.ID == "0-000003" })
	agent.OnDead = engine.Skip
	e, _ := w.start(w.options("w"), agent)
	w.publish("a", numbered(1, 10)...)
	w.settle(e)
	leases, err := w.ledger.Leases(t.Context(), "r")
	must(t, err)
	var key ledger.Key
	for _, l := range leases {
		if l.Counters.Dead > 0 {
			key = l.Key
		}
	}
	m, err := numbered(1, 10)[3].Encode()
	must(t, err)
	for _, want := range []ledger.Counters{{Applied: 9, Dead: 1}, {Applied: 10}} {
		ok, err := w.ledger.Requeue(t.Context(), key, ledger.Wait{Subject: "subject-0", Offset: 3, Reason: "put back", Message: m})
		must(t, err)
		if !ok {
			t.Fatal("the record can't be put back")
		}
		must(t, e.Look(t.Context()))
		w.settle(e)
		if c := w.counters("r"); c != want {
			t.Errorf("counters: %+v, expected %+v", c, want)
		}
		poison.Store(false)
	}
	w.publish("a", numberedFrom(1, 10, 12)...)
	w.settle(e)
	if c := w.counters("r"); c != (ledger.Counters{Applied: 12}) {
		t.Errorf("counters: %+v", c)
	}
}

// However many records of a parked aggregate come, and however slow it goes on, they hold up nobody.
func TestParkedAggregateHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	goOn := make(chan struct{})
	var poison atomic.Bool
	poison.Store(true)
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
		if e.Subject == "subject-0" {
			if poison.Load() {
				return fault.Permanentf("poison")
			}
			select {
			case <-goOn:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		record("r", e, s)
		return nil
	}}
	e, _ := w.start(w.options("w"), agent)
	const n = 6000 // more than a partition may have queued
	w.publish("a", numbered(1, n/2)...)
	w.settle(e)
	poison.Store(false)
	w.redrive("r", "a", "subject-0")
	must(t, e.Look(t.Context()))
	w.publish("a", numberedFrom(1, n/2, n)...)
	others := numbered(9, 20)[9:]
	w.publish("a", others...)
	want := int64(0)
	for _, other := range others {
		if other.Subject != "subject-0" {
			want++
		}
	}
	w.until("others were handled although none of subject-0 was", func() bool { return w.counters("r").Applied == want })
	for _, p := range e.Status()[0].Partitions {
		if p.Held {
			t.Error("a partition is held back")
		}
	}
	if s := e.Status()[0]; s.Queued > 64+16 {
		t.Errorf("%d records are in memory", s.Queued)
	}
	close(goOn)
	w.until("it goes on", func() bool { return w.counters("r").Applied > want+300 })
}

// Records that can't be decoded wait behind the first of their aggregate, also where they came together.
func TestUndecodableRecordsWaitBehindTheFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	for range 4 {
		w.publishRaw("a", event.Message{Key: []byte("s"), Value: []byte("neither")})
	}
	e, _ := w.start(w.options("w"), recorder("r", "a"))
	w.settle(e)
	if c := w.counters("r"); c.Dead != 1 || c.Waiting != 3 {
		t.Errorf("counters: %+v", c)
	}
}
