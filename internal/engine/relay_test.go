package engine_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// soon leaves no wait before another attempt.
func soon() float64 { return 0 }

// A publisher fails records all the time: some never arrive, of some the answer is lost. Nothing is lost, each stream
// keeps its order, and copies are absorbed.
func TestPublisherThatFailsLosesNothingAndKeepsOrder(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(n int, r broker.Record) (bool, bool){
		"records don't arrive": func(n int, _ broker.Record) (bool, bool) { return n%41 == 0, false },
		"answers are lost":     func(n int, _ broker.Record) (bool, bool) { return n%41 == 0, true },
		"both":                 func(n int, _ broker.Record) (bool, bool) { return n%23 == 0, n%2 == 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "a", "b")
			publisher := &flaky{Publisher: w.broker.Publisher(), fails: fails}
			o := w.options("w")
			o.Broker, o.Rand = &faulty{Broker: w.broker, publisher: publisher}, soon
			e, _ := w.start(o, recorder("first", "a", "b"), recorder("second", "b"))
			w.publish("a", numbered(20, 50)...)
			w.settle(e)
			checkOnce(t, w.rows("first"), 20, 50)
			checkOnce(t, w.rows("second"), 20, 50)
			if publisher.failures() == 0 || !w.saw(engine.NoticeStall) {
				t.Errorf("%d records failed, and people were told so: %v", publisher.failures(), w.saw(engine.NoticeStall))
			}
			published := int64(len(w.messages("b")))
			c := w.counters("second")
			if c.Applied != 1000 || c.Delivered() != published || c.Duplicate != published-1000 {
				t.Errorf("topic b holds %d records; counted are %+v", published, c)
			}
			if w.totals().Outbox != 0 {
				t.Errorf("%d rows are left in the outbox", w.totals().Outbox)
			}
		})
	}
}

// The first error stops the stream of its target partition alone.
func TestFailingTargetHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "down", "fine")
	var down atomic.Bool
	down.Store(true)
	o := w.options("w")
	o.Broker = &faulty{Broker: w.broker, publisher: gate(w.broker.Publisher(), func(r broker.Record) bool { return r.Topic == "down" && down.Load() })}
	o.Rand = soon
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Emits: []string{"down", "fine"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		s.EmitTo("down", event.New("T", e.Subject, nil))
		s.EmitTo("fine", event.New("T", e.Subject, nil))
		return nil
	}}
	e, _ := w.start(o, agent)
	w.publish("a", numbered(20, 20)...)
	w.until("all of the other target are published", func() bool { return w.size("fine") >= 400 && w.different("fine") == 400 })
	if n := w.size("down"); n != 0 {
		t.Errorf("%d records came to the target that is down", n)
	}
	down.Store(false)
	w.settle(e)
	if n := w.different("down"); n != 400 {
		t.Errorf("%d records came to the target that was down, expected 400", n)
	}
}

// silentPublisher never answers, as a client whose broker is away, and nothing arrives.
type silentPublisher struct{}

func (silentPublisher) Publish(broker.Record, func(int64, error)) {}

// gate is a publisher that refuses what a function names.
func gate(p broker.Publisher, closed func(broker.Record) bool) broker.Publisher {
	return &flaky{Publisher: p, fails: func(_ int, r broker.Record) (bool, bool) { return closed(r), false }}
}

// While the broker is away the outbox grows beyond what the relay keeps in memory; a restart publishes all of it, in
// order, once the broker is back.
func TestOutboxLargerThanMemoryOutlivesARestart(t *testing.T) {
	t.Parallel()
	const events, each = 180, 100 // 18,000 rows of one lease; the relay keeps 16,384
	w := newWorld(t, "a", "b")
	agent := engine.Agent{Name: "first", Reads: []string{"a"}, Emits: []string{"b"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		for i := range each {
			next := event.New("T", e.Subject, nil)
			next.Source, next.ID = "//next", fmt.Sprintf("%s-%03d", e.ID, i)
			s.Emit(next)
		}
		return nil
	}}
	o := w.options("w")
	o.Broker = &faulty{Broker: w.broker, publisher: silentPublisher{}}
	o.Drain = 50 * time.Millisecond
	e, stop := w.start(o, agent)
	w.publish("a", numbered(1, events)...)
	w.until("all is committed", func() bool { return w.counters("first").Applied == events })
	if rows := w.totals().Outbox; rows != events*each {
		t.Fatalf("the outbox holds %d rows, expected %d", rows, events*each)
	}
	for _, p := range e.Status()[0].Partitions {
		if p.Outbox > 16384+512 { // and a page more
			t.Errorf("the relay keeps %d rows in memory", p.Outbox)
		}
	}
	stop()
	e, _ = w.start(w.options("other"), agent)
	w.settle(e)
	// A lease that runs out on a slow machine makes copies, which have the ids of their originals.
	seen, last := map[string]bool{}, ""
	for _, m := range w.messages("b") {
		got, err := event.Decode(m, event.Position{})
		must(t, err)
		if !seen[got.ID] && got.ID <= last {
			t.Fatalf("%s was published after %s", got.ID, last)
		}
		seen[got.ID], last = true, max(last, got.ID)
	}
	if len(seen) != events*each {
		t.Fatalf("%d events were published, expected %d", len(seen), events*each)
	}
}

// What an agent had committed before it stopped for good is still published, and nobody waits for it for ever.
func TestFailedAgentsEventsArePublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "b")
	var down atomic.Bool
	down.Store(true)
	agent := engine.Agent{Name: "first", Reads: []string{"a"}, Emits: []string{"b"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		if e.ID == "0-000009" {
			return fault.Fatalf("it can't go on")
		}
		s.Emit(event.New("T", e.Subject, nil))
		return nil
	}}
	o := w.options("w")
	o.Broker = &faulty{Broker: w.broker, publisher: gate(w.broker.Publisher(), func(broker.Record) bool { return down.Load() })}
	o.Rand = soon
	e, _ := w.start(o, agent)
	w.publish("a", numbered(1, 20)...)
	w.until("the agent stopped", func() bool { return e.Failed()["first"] != nil })
	// Rounds of leases pass while the broker is away.
	from := w.beat()
	w.until("leases were renewed several times", func() bool { return w.beat().Sub(from) > 2*o.LeaseTime })
	down.Store(false)
	w.settle(e)
	if n := w.different("b"); n != 9 || w.totals().Outbox != 0 {
		t.Errorf("%d events were published and %d rows are left, expected 9 and none", n, w.totals().Outbox)
	}
	w.until("its leases are given back", func() bool {
		for _, l := range w.leases("first") {
			if l.Held {
				return false
			}
		}
		return true
	})
}

func (w *world) leases(agent string) []ledger.Lease {
	leases, err := w.ledger.Leases(context.Background(), agent)
	must(w.t, err)
	return leases
}

// beat is when a worker wrote its last heartbeat.
func (w *world) beat() (last time.Time) {
	for _, b := range w.totals().Workers {
		if b.Beat.After(last) {
			last = b.Beat
		}
	}
	return last
}

// size is how many records a topic holds.
func (w *world) size(topic string) (n int64) {
	ranges, err := w.broker.Offsets(context.Background(), topic)
	must(w.t, err)
	for _, r := range ranges {
		n += r.End - r.Start
	}
	return n
}

// different counts the events of a topic without their copies, which a lease makes that runs out on a slow machine.
func (w *world) different(topic string) int {
	ids := map[string]bool{}
	for _, m := range w.messages(topic) {
		e, err := event.Decode(m, event.Position{})
		must(w.t, err)
		ids[e.ID] = true
	}
	return len(ids)
}

// messages reads a topic from its beginning to its end, in order within each partition.
func (w *world) messages(topic string) (all []event.Message) {
	w.t.Helper()
	topics, err := w.broker.Topics(context.Background(), topic)
	must(w.t, err)
	reader, err := w.broker.Reader("messages")
	must(w.t, err)
	defer reader.Close()
	for p := range topics[0].Partitions {
		reader.Add(topics[0], p, 0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for size := w.size(topic); int64(len(all)) < size; {
		fetches, err := reader.Poll(ctx)
		must(w.t, err)
		for _, f := range fetches {
			for _, r := range f.Records {
				all = append(all, r.Message)
			}
		}
	}
	return all
}
