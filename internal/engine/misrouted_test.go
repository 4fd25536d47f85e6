package engine_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// at appends messages to one partition, wherever their keys lead.
func (w *world) at(topic string, partition int32, messages ...event.Message) {
	w.t.Helper()
	answers := make(chan error, len(messages))
	for _, m := range messages {
		w.broker.Publisher().Publish(broker.Record{Message: m, Position: event.Position{Topic: topic, Partition: partition}},
			func(_ int64, err error) { answers <- err })
	}
	for range messages {
		must(w.t, <-answers)
	}
}

func elsewhere(key string) int32 { return (route.Partition([]byte(key), 4) + 1) % 4 }

// A record that stands wrong comes to where it belongs as it is: key, value and headers, with where it stood behind them.
// One that can't be decoded does too, and dies there, once; one without a key stays where it is.
func TestForwardedRecordIsTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	e, _ := w.start(w.options("w"), recorder("r", "a"))
	one := event.New("T", "s", map[string]int{"n": 1})
	one.ID, one.Source = "one", "//test"
	m, err := one.Encode()
	must(t, err)
	m.Headers = append(m.Headers, event.Header{Key: "x-foreign", Value: []byte{0, 255}})
	broken := event.Message{Key: []byte("s"), Value: []byte("neither")}
	odd := event.Message{Key: []byte{0xff, 0}, Value: []byte(`{"type":"T","payload":{}}`)}
	w.at("a", elsewhere("s"), m, broken)
	w.at("a", elsewhere(string(odd.Key)), odd)
	w.at("a", 3, event.Message{Value: []byte(`{"type":"T","payload":{}}`)})
	w.until("all is counted", func() bool {
		c := w.counters("r")
		return c.Misrouted == 3 && c.Applied == 2 && c.Dead == 2
	})
	w.settle(e)
	var there []broker.Record
	must(t, broker.ReadAll(context.Background(), w.broker, "a", func(r broker.Record) error {
		if string(r.Key) == "s" && r.Partition == route.Partition([]byte("s"), 4) {
			there = append(there, r)
		}
		return nil
	}))
	if len(there) != 2 || !bytes.Equal(there[0].Value, m.Value) || !bytes.Equal(there[1].Value, broken.Value) {
		t.Fatalf("%d records: %+v", len(there), there)
	}
	headers := there[0].Headers
	last := headers[len(headers)-1]
	if !slices.EqualFunc(headers[:len(headers)-1], m.Headers, func(a, b event.Header) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) }) ||
		last.Key != event.HeaderFrom || !strings.HasPrefix(string(last.Value), fmt.Sprintf("a/%d@0.", elsewhere("s"))) {
		t.Errorf("headers: %q", headers)
	}
	if c := w.counters(engine.ForwardAgent); c.Applied != 3 || c.Dead != 0 {
		t.Errorf("counters of the forwarding agent: %+v", c)
	}
}

// Where two swarms disagree about a topic's slots they don't send its records to and fro for ever.
func TestForwardingEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	e, _ := w.start(w.options("w"), recorder("r", "a"))
	m := event.Message{Key: []byte("s"), Value: []byte(`{"type":"T","payload":{}}`)}
	for n := range int64(4) {
		m = m.Forwarded(event.Position{Topic: "a", Partition: 1, Offset: n})
	}
	w.at("a", elsewhere("s"), m)
	w.until("it's dead", func() bool { return w.counters(engine.ForwardAgent).Dead == 1 })
	w.settle(e)
	if c := w.counters("r"); c != (ledger.Counters{Misrouted: 1}) {
		t.Errorf("counters: %+v", c)
	}
	dead := w.dead("a")
	if len(dead) != 1 || !slices.ContainsFunc(dead[0].Headers, func(h event.Header) bool {
		return h.Key == engine.HeaderDeadReason && strings.Contains(string(h.Value), "two swarms count different slots")
	}) {
		t.Errorf("letters: %+v", dead)
	}
}

// A worker that passed records over may end before they're forwarded: the next one learns of it from the leases.
func TestForwardingIsTakenUpByTheNextWorker(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	o := w.options("first")
	o.Ledger = noForwarding{w.ledger}
	_, stop := w.start(o, recorder("r", "a"))
	one := event.New("T", "s", nil)
	one.ID, one.Source = "one", "//test"
	m, err := one.Encode()
	must(t, err)
	w.at("a", elsewhere("s"), m)
	w.until("it's passed over", func() bool { return w.counters("r").Misrouted == 1 })
	stop()
	e, _ := w.start(w.options("second"), recorder("r", "a"))
	w.until("it's handled", func() bool { return w.counters("r").Applied == 1 })
	w.settle(e)
}

// noForwarding is a ledger that gives the forwarding agent no lease.
type noForwarding struct{ ledger.Ledger }

func (n noForwarding) Acquire(ctx context.Context, key ledger.Key, topic, owner string, start int64, ttl time.Duration) (ledger.Lease, error) {
	if key.Group == engine.ForwardAgent {
		return ledger.Lease{}, ledger.ErrHeld
	}
	return n.Ledger.Acquire(ctx, key, topic, owner, start, ttl)
}
