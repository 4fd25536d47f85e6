package engine_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// A partition whose backlog is as large as is allowed isn't read any more, also by the next owner, until some of it has
// gone on.
func TestBacklogQuotaPausesItsPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var poison atomic.Bool
	poison.Store(true)
	agent := poisonable(func(e event.Event) bool { return poison.Load() && e.ID == "0-000000" })
	agent.Limits.Waiting = 50
	e, stop := w.start(w.options("w"), agent)
	full := func() int64 {
		for _, p := range e.Status()[0].Partitions {
			if p.Full {
				return p.Waiting
			}
		}
		return 0
	}
	w.publish("a", numbered(1, 60)...)
	w.until("the partition is full", func() bool { return full() == 59 })
	if !w.said("wait in the backlog, as many as are allowed") || w.count(engine.NoticeBacklog) != 1 {
		t.Error("nobody was told")
	}
	stop()
	e, _ = w.start(w.options("v"), agent)
	w.until("the next owner knows", func() bool { return full() == 59 })
	w.publish("a", numberedFrom(1, 60, 100)...)
	before := w.counters("r")
	w.redrive("r", "a", "subject-0") // it dies again, and nothing has been read meanwhile
	must(t, e.Look(t.Context()))
	w.until("it died again", func() bool { return len(w.dead("a")) == 2 })
	if c := w.counters("r"); c != before {
		t.Errorf("counters: %+v, expected %+v", c, before)
	}
	poison.Store(false)
	w.redrive("r", "a", "subject-0")
	must(t, e.Look(t.Context()))
	w.until("all is applied", func() bool { return w.counters("r") == ledger.Counters{Applied: 100} })
	checkOnce(t, w.rows("r"), 1, 100)
	if full() != 0 || !w.said("read again") {
		t.Error("it isn't told that the partition is read again")
	}
}

// An aggregate that waits too long for a missing event is told of, once and by the next owner too, and waits on.
func TestGapPastItsBoundIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	agent := recorder("r", "a")
	agent.Limits.GapWait = time.Nanosecond
	e, stop := w.start(w.options("w"), agent)
	w.publish("a", inHistory(1), inHistory(3))
	late := func() []engine.GapStatus { return e.Status()[0].Gaps }
	w.until("it's told", func() bool { e.Poke(); return len(late()) == 1 })
	if n := e.Status()[0].LateGaps; n != 1 {
		t.Errorf("%d gaps are late", n)
	}
	if g := late()[0]; g.Subject != "s" || g.Topic != "a" || g.Since.IsZero() || !strings.Contains(g.Reason, "event 3 came before event 2") {
		t.Errorf("gap: %+v", g)
	}
	must(t, e.Look(t.Context()))
	if n := w.count(engine.NoticeGap); n != 1 {
		t.Errorf("told %d times", n)
	}
	if ok, err := w.ledger.Redrive(t.Context(), w.key("r", "a", "s"), "s", -1); ok || err != nil {
		t.Errorf("a gap was redriven: %v, %v", ok, err) // nothing died: only the event, or a rewind, can close it
	}
	stop()
	e, _ = w.start(w.options("v"), agent)
	w.until("the next owner tells too", func() bool { e.Poke(); return len(late()) == 1 })
	w.publish("a", inHistory(2))
	w.until("the gap is closed", func() bool { return w.counters("r") == ledger.Counters{Applied: 3} })
	w.until("nothing is late", func() bool { e.Poke(); return len(late()) == 0 })
	checkOnce(t, w.rows("r"), 1, 3)
}
