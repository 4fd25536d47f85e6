package engine_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
)

// refusing is a publisher that lets nothing through to a topic while it's told to.
type refusing struct {
	broker.Publisher
	topic string
	on    atomic.Bool
}

func (r *refusing) Publish(rec broker.Record, done func(int64, error)) {
	if r.on.Load() && rec.Topic == r.topic {
		go done(-1, errors.New("broker: not reachable"))
		return
	}
	r.Publisher.Publish(rec, done)
}

// What was emitted by steps of a topic that is then deleted and created anew is published nevertheless, by whoever comes
// next too.
func TestWhatAnOldTopicsStepsEmittedIsPublished(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"going on": false, "after a restart": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "a", "b")
			out := &refusing{Publisher: w.broker.Publisher(), topic: "b"}
			out.on.Store(true)
			o := w.options("w")
			o.Broker, o.Rand, o.Look, o.Drain = &faulty{Broker: w.broker, publisher: out}, soon, 50*time.Millisecond, 100*time.Millisecond
			agent := engine.Agent{Name: "r", Reads: []string{"a"}, Emits: []string{"b"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
				s.Emit(event.New("T", e.Subject, nil))
				return nil
			}}
			_, stop := w.start(o, agent)
			events, _ := w.one("a", "old", 10)
			w.publish("a", events...)
			w.until("all is in the outbox", func() bool { return w.totals().Outbox == 10 })
			if restart {
				stop()
			}
			w.createAnew("a")
			if !restart {
				w.until("the topic is given up", func() bool { return w.saw(engine.NoticeTopic) })
			} else {
				_, _ = w.start(o, agent)
			}
			out.on.Store(false)
			w.until("the outbox is empty", func() bool { return w.totals().Outbox == 0 })
			n := int64(0)
			ranges, err := w.broker.Offsets(context.Background(), "b")
			must(t, err)
			for _, r := range ranges {
				n += r.End
			}
			if n < 10 {
				t.Errorf("%d of 10 events were published", n)
			}
		})
	}
}

// An emitter takes on a target that was created anew with fewer partitions: what waited for it goes to those.
func TestTargetCreatedAnewWithFewerPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "b")
	out := &refusing{Publisher: w.broker.Publisher(), topic: "b"}
	out.on.Store(true)
	o := w.options("w")
	o.Broker, o.Rand, o.Look = &faulty{Broker: w.broker, publisher: out}, soon, 50*time.Millisecond
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Emits: []string{"b"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		s.Emit(event.New("T", e.Subject, nil))
		return nil
	}}
	e, _ := w.start(o, agent)
	w.publish("a", numbered(20, 3)...)
	w.until("all is in the outbox", func() bool { return w.totals().Outbox == 60 })
	before := w.topics["b"]
	before.Partitions = 1
	w.topics["b"] = before
	w.createAnew("b")
	w.until("it's noticed", func() bool { return w.saw(engine.NoticeTopic) })
	out.on.Store(false)
	w.settle(e)
	ranges, err := w.broker.Offsets(context.Background(), "b")
	must(t, err)
	if len(ranges) != 1 || ranges[0].End < 60 {
		t.Errorf("the topic holds %v, expected 60 records in one partition", ranges)
	}
}

// A topic that is missing is waited for.
func TestTopicThatIsMissingIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "b")
	b := &forgetful{Broker: w.broker}
	o := w.options("w")
	o.Broker, o.Look = b, 20*time.Millisecond
	agent := recorder("r", "a")
	agent.Reads = []string{"a", "b"}
	e, _ := w.start(o, agent)
	w.publish("a", numbered(4, 5)...)
	w.settle(e)
	b.missing.Store(true)
	w.until("it's noticed", func() bool { return w.saw(engine.NoticeTopic) })
	w.publish("b", numbered(4, 5)...) // copies: another topic goes on meanwhile
	w.until("the other one goes on", func() bool { return w.counters("r").Duplicate == 20 })
	b.missing.Store(false)
	more, _ := w.one("a", "more", 5)
	w.publish("a", more...)
	w.until("it's read again", func() bool { return w.counters("r").Applied == 25 })
}

// forgetful is a broker that doesn't know topic a for a while.
type forgetful struct {
	broker.Broker
	missing atomic.Bool
}

func (f *forgetful) Topics(ctx context.Context, names ...string) ([]broker.Topic, error) {
	for _, n := range names {
		if n == "a" && f.missing.Load() {
			return nil, broker.ErrNoTopic
		}
	}
	return f.Broker.Topics(ctx, names...)
}
