package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
)

func noter(name string) engine.Agent {
	return engine.Agent{Name: name, Reads: []string{"in"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		record(name, e, s)
		return nil
	}}
}

// forgetful is a world whose ledger is made anew, as an empty database that was restored: the broker has what was
// reported to it.
func (w *world) forgetful() {
	w.t.Helper()
	db, err := sqlite.Open(context.Background(), ":memory:", sqlite.Options{})
	must(w.t, err)
	w.t.Cleanup(func() { must(w.t, db.Close()) })
	w.ledger = db
}

func TestALedgerThatWentBackStopsTheAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "in")
	w.publish("in", numbered(4, 5)...)
	e, stop := w.start(w.options("a"), noter("reader"))
	w.settle(e)
	stop() // which reports progress to Kafka
	e, stop = w.start(w.options("a"), noter("reader"))
	w.settle(e)
	stop()
	if err := e.Failed()["reader"]; err != nil {
		t.Fatalf("a ledger that is as far as Kafka: %v", err)
	}
	w.forgetful()
	e, stop = w.start(w.options("b"), noter("reader"))
	w.until("the agent stops", func() bool { return e.Failed()["reader"] != nil })
	if err := e.Failed()["reader"]; !errors.Is(err, engine.ErrWentBack) || !strings.Contains(err.Error(), "swarmlog recover") {
		t.Errorf("it stopped with %v", err)
	}
	stop()
	if c := w.counters("reader"); c.Delivered() != 0 {
		t.Errorf("%d records were handled", c.Delivered())
	}
	leases, err := w.ledger.Leases(t.Context(), "reader")
	must(t, err)
	for _, l := range leases {
		if l.Held {
			t.Errorf("a stopped agent holds %+v", l)
		}
	}
}

// What is beyond the log's end tells of another log, and what can't be read tells nothing.
func TestWhatTellsNothingOfTheLedgerStopsNobody(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]func(*world) broker.Broker{
		"beyond the end": func(w *world) broker.Broker {
			must(w.t, w.broker.Report(context.Background(), engine.KafkaGroup("test", "reader"), map[string]map[int32]int64{"in": {0: 1000, 1: 1000, 2: 1000, 3: 1000}}))
			return w.broker
		},
		"not allowed": func(w *world) broker.Broker { return lockedGroups{w.broker} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "in")
			w.publish("in", numbered(4, 5)...)
			o := w.options("a")
			o.Broker = b(w)
			e, _ := w.start(o, noter("reader"))
			w.settle(e)
			if got := len(w.rows("reader")); got != 20 || e.Failed()["reader"] != nil {
				t.Errorf("%d effects, failed: %v", got, e.Failed())
			}
		})
	}
}

// lockedGroups is a broker that doesn't let its groups be read.
type lockedGroups struct{ broker.Broker }

func (lockedGroups) Committed(context.Context, string) (map[string]map[int32]int64, error) {
	return nil, broker.ErrDenied
}
