package engine_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// sluggish is an agent that takes a while for each event as long as it's told to.
func sluggish(each *slowness) engine.Agent {
	return engine.Agent{Name: "r", Reads: []string{"a"}, Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
		select {
		case <-each.gate():
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
		record("r", e, s)
		return nil
	}}
}

// slowness ends once.
type slowness struct{ over chan struct{} }

func (s *slowness) gate() <-chan struct{} { return s.over }

// An aggregate with more records than a partition may hold, each of which takes a while, goes to the backlog. Its owner
// loses the partition in the middle of that, with its first record unfinished in the log and later ones in the backlog:
// the next one handles all of them once and in order, and so it does where the owner ends in order.
func TestK6CrowdSurvivesItsOwners(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(frozen *freezer, stop func()){
		"frozen":  func(f *freezer, _ func()) { f.freeze() },
		"stopped": func(_ *freezer, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "a")
			slow := &slowness{make(chan struct{})}
			agent := sluggish(slow)
			frozen := &freezer{Ledger: w.ledger}
			o := w.options("old")
			o.Ledger = frozen
			_, stop := w.start(o, agent)
			const n = 4500
			w.publish("a", numbered(1, n)...)
			w.until("it's crowded", func() bool { return w.totals().Waiting > 500 })
			end(frozen, stop)
			_, stopFresh := w.start(w.options("new"), agent)
			w.until("the new owner has gone on", func() bool {
				rows := w.rows("r")
				return len(rows) > 0 && rows[len(rows)-1].epoch > 1
			})
			stopFresh() // and once more, in the middle of the backlog
			close(slow.over)
			fresh, _ := w.start(w.options("newer"), agent)
			w.publish("a", numberedFrom(1, n, n+100)...)
			for part := int64(1); part <= 4; part++ { // each of these is a commit: with patience
				w.until("a quarter more is applied", func() bool { return w.counters("r").Applied >= part*(n+100)/4 })
			}
			frozen.thaw()
			w.settle(fresh)
			checkOnce(t, w.rows("r"), 1, n+100)
			if c := w.counters("r"); c != (ledger.Counters{Applied: n + 100}) {
				t.Errorf("counters: %+v", c)
			}
		})
	}
}

// A crowded aggregate's owner ends while its first step still runs: the next owner has the records after that step
// from the log, and later ones from the backlog, and handles them in the order of the log once the step is done.
func TestCrowdGoesOnAfterACarriedStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	const n = 4500
	s := newSlow("0-000000")
	o := w.options("old")
	o.Drain = time.Minute
	_, stop := w.start(o, s.agent("r", "old", "a"))
	w.publish("a", numbered(1, n)...)
	w.until("it's crowded", func() bool { return w.totals().Waiting > 500 })
	next, _ := w.start(w.options("new"), s.agent("r", "new", "a"))
	w.until("they know of one another", func() bool { return partitions(next) > 0 })
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	w.until("the next owner has them", func() bool { return partitions(next) == 4 })
	beside := 1 // another aggregate of the same partition
	for route.Partition([]byte(fmt.Sprintf("subject-%d", beside)), 4) != route.Partition([]byte("subject-0"), 4) {
		beside++
	}
	w.publish("a", numbered(beside+1, 1)[beside])
	w.until("all is read", func() bool { return len(s.ran(fmt.Sprintf("%d-000000", beside))) > 0 })
	s.letGo("0-000000", nil)
	<-stopped
	for part := 1; part <= 4; part++ { // each of these is a commit: with patience
		w.until("a quarter more is applied", func() bool { return w.counters("r").Applied >= int64(part*n/4) })
	}
	w.settle(next)
	rows := w.rows("r")
	if len(rows) != n+1 {
		t.Errorf("%d effects of %d events", len(rows), n+1)
	}
	at := 0
	for _, r := range rows {
		if r.subject == "subject-0" {
			if want := fmt.Sprintf("0-%06d", at); r.id != want {
				t.Fatalf("effect %d is of %s, expected %s", at, r.id, want)
			}
			at++
		}
	}
}

// An owner ends with as many records of a crowded aggregate in the backlog as are allowed. Before those it hadn't
// finished some, so the next owner reads that far all the same: else nothing of what waits could ever go on.
func TestFullBacklogGoesOnWithItsNextOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	slow := &slowness{make(chan struct{})}
	agent := sluggish(slow)
	agent.Limits.Waiting = 1000
	frozen := &freezer{Ledger: w.ledger}
	o := w.options("old")
	o.Ledger = frozen
	w.start(o, agent)
	const n = 4500
	w.publish("a", numbered(1, n)...)
	w.until("the backlog is full", func() bool { return w.saw(engine.NoticeBacklog) && w.totals().Waiting > 2000 })
	frozen.freeze()
	next, _ := w.start(w.options("new"), agent)
	w.until("the next owner has them", func() bool { return partitions(next) == 4 })
	close(slow.over)
	for part := int64(1); part <= 4; part++ {
		w.until("a quarter more is applied", func() bool { return w.counters("r").Applied >= part*n/4 })
	}
	frozen.thaw()
	w.settle(next)
	checkOnce(t, w.rows("r"), 1, n)
}
