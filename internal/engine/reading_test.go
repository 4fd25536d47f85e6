package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// one makes n events of one subject, and tells which partition they go to.
func (w *world) one(topic, subject string, n int) (events []event.Event, partition int32) {
	for i := range n {
		e := event.New("T", subject, map[string]int{"n": i})
		e.Source, e.ID = "//test", fmt.Sprintf("%s-%06d", subject, i)
		events = append(events, e)
	}
	return events, route.Partition([]byte(subject), w.topics[topic].Partitions)
}

// A partition that couldn't be read for once is read again, from where it was.
func TestPartitionIsReadAgainAfterAnError(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	b := &faulty{Broker: w.broker}
	o := w.options("w")
	o.Broker, o.Rand = b, soon
	e, _ := w.start(o, recorder("r", "a"))
	events, p := w.one("a", "s", 100)
	w.publish("a", events[:50]...)
	w.settle(e)
	for range 3 {
		b.interrupt("a", p, errors.New("broker: the disk can't be read"))
		b.interrupt("a", p+1, errors.New("broker: the disk can't be read"))
	}
	w.publish("a", events[50:]...)
	w.settle(e)
	checkOnce(t, w.rows("r"), 1, 100)
}

// Field case K3: retention deletes records before they were read. The agent goes on at the log's beginning, and says
// how many it never saw; what it still works on counts as what it becomes.
func TestK3RetentionOvertakesTheReader(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	b := &faulty{Broker: w.broker}
	events, p := w.one("a", "s", 100)
	o := w.options("w")
	o.Broker, o.Rand = b, soon
	e, stop := w.start(o, recorder("r", "a"))
	w.publish("a", events[:10]...)
	w.settle(e)
	stop()

	w.publish("a", events[10:]...)
	b.trim("a", p, 50)
	b.failOffsets(errors.New("broker: not reachable")) // at first the range can't be asked either
	e, stop = w.start(o, recorder("r", "a"))
	from := w.beat()
	w.until("leases were renewed", func() bool { return w.beat().After(from) })
	b.failOffsets(nil)
	w.settle(e)
	stop()
	rows := w.rows("r")
	if len(rows) != 60 || rows[9].id != events[9].ID || rows[10].id != events[50].ID {
		t.Fatalf("%d effects: %v", len(rows), rows)
	}
	if text := w.told(engine.NoticeLost); !strings.Contains(text, "40 records lost: offsets 10 to 49") {
		t.Errorf("people are told %q", text)
	}
	if c := w.counters("r"); c != (ledger.Counters{Applied: 60}) {
		t.Errorf("counters: %+v", c)
	}
}

// It overtakes a reader that is under way, with records in its lanes, and the range can't be asked at first.
func TestRetentionOvertakesARunningReader(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	b := &faulty{Broker: w.broker}
	o := w.options("w")
	o.Broker, o.Rand = b, soon
	release := make(chan struct{})
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
		select {
		case <-release:
		case <-ctx.Done():
			return ctx.Err()
		}
		record("r", e, s)
		return nil
	}}
	events, p := w.one("a", "s", 100)
	e, _ := w.start(o, agent)
	w.publish("a", events[:10]...)
	w.until("ten records are queued", func() bool { return e.Status()[0].Queued == 10 })
	b.failOffsets(errors.New("broker: not reachable"))
	b.trim("a", p, 50) // the reader is to go on at 10
	w.publish("a", events[10:]...)
	from := w.beat()
	w.until("leases were renewed", func() bool { return w.beat().After(from) })
	b.failOffsets(nil)
	close(release) // progress isn't moved past what is worked on
	w.settle(e)
	rows := w.rows("r")
	if len(rows) != 60 || rows[9].id != events[9].ID || rows[10].id != events[50].ID {
		t.Fatalf("%d effects: %v", len(rows), rows)
	}
	if text := w.told(engine.NoticeLost); !strings.Contains(text, "40 records lost: offsets 10 to 49") {
		t.Errorf("people are told %q", text)
	}
	if c := w.counters("r"); c != (ledger.Counters{Applied: 60}) {
		t.Errorf("counters: %+v", c)
	}
}

// Field case R4, input 2: compaction left only the records at 5, 9 and 10. They finish in any order, and progress is at
// 11, not stuck before a gap; nothing is handled again.
func TestR4GapsDoNotHoldProgressUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	left := []int64{5, 9, 10}
	o := w.options("w")
	o.Broker = &faulty{Broker: w.broker, compacted: func(offset int64) bool { return !slices.Contains(left, offset) }}
	var first, runs atomic.Int64
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		if runs.Add(1); s.Position().Offset == 5 && first.Add(1) < 4 {
			return errors.New("the earliest one finishes last")
		}
		record("r", e, s)
		return nil
	}}
	w.publishTo("a", 0, 11, 1)
	e, stop := w.start(o, agent)
	w.settle(e)
	stop()
	for _, l := range w.leases("r") {
		if l.Partition == 0 && (l.Next != 11 || len(l.Finished) > 0 || l.Counters != ledger.Counters{Applied: 3}) {
			t.Errorf("progress is %d, finished above it %v, counters %+v", l.Next, l.Finished, l.Counters)
		}
	}
	e, _ = w.start(o, agent)
	w.settle(e)
	if runs.Load() != 6 || len(w.rows("r")) != 3 {
		t.Errorf("%d runs and %d effects, expected 6 and 3", runs.Load(), len(w.rows("r")))
	}
}

// told is what people were last told of a kind.
func (w *world) told(kind engine.NoticeKind) (text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.notices {
		if n.Kind == kind {
			text = n.Text
		}
	}
	return text
}

// Progress beyond the log's end means that the log went back: the agent stops rather than pass over what comes next.
func TestLogThatWentBackStopsTheAgent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	b := &faulty{Broker: w.broker}
	o := w.options("w")
	o.Broker = b
	events, p := w.one("a", "s", 10)
	topic := w.topics["a"]
	// A lease that stands further on than the log ends.
	l, err := w.ledger.Acquire(t.Context(), ledger.Key{Group: "r", TopicID: topic.ID, Partition: p}, "a", o.Worker, 25, o.LeaseTime)
	must(t, err)
	must(t, w.ledger.Release(t.Context(), l.Fence))
	w.publish("a", events...)
	e, _ := w.start(o, recorder("r", "a"), recorder("other", "a"))
	w.until("the agent stopped", func() bool { return e.Failed()["r"] != nil })
	if text := e.Failed()["r"].Error(); !strings.Contains(text, fmt.Sprintf("topic a, partition %d ends at 10, but progress stands at 25", p)) {
		t.Errorf("it says %q", text)
	}
	w.settle(e) // the other one goes on
	checkOnce(t, w.rows("other"), 1, 10)
}

// Field case K4: a topic is deleted and created anew while agents read it. It's another topic: all of its records are
// handled, however many there are, and progress in the old one says nothing about them.
func TestK4TopicCreatedAnewIsReadFromItsBeginning(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5, 25} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "a", "b")
			e, _ := w.start(w.options("w"), recorder("first", "a", "b"), recorder("second", "b"))
			old, _ := w.one("a", "old", 10)
			w.publish("a", old...)
			w.settle(e)
			w.createAnew("a")
			fresh, _ := w.one("a", "new", n)
			w.publish("a", fresh...)
			w.until("all of the new topic are handled", func() bool { return len(w.rows("second")) == 10+n })
			w.settle(e)
			checkOnce(t, w.rows("first"), 1, 10+n)
			c := w.counters("first")
			if c != (ledger.Counters{Applied: int64(10 + n)}) {
				t.Errorf("counters: %+v", c)
			}
		})
	}
}

// createAnew deletes a topic and creates it again under its name.
func (w *world) createAnew(topic string) {
	w.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(w.addr))
	must(w.t, err)
	defer client.Close()
	deleted, err := kadm.NewClient(client).DeleteTopics(context.Background(), topic)
	must(w.t, err)
	must(w.t, deleted.Error())
	before := w.topics[topic]
	w.until("the topic is there anew", func() bool {
		if err := w.broker.Create(context.Background(), broker.TopicSpec{Name: topic, Partitions: before.Partitions}); err != nil {
			return false
		}
		found, err := w.broker.Topics(context.Background(), topic)
		if err != nil || found[0].ID == before.ID {
			return false
		}
		w.topics[topic] = found[0]
		return true
	})
}
