package letters_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/internal/letters"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const topic = "in"

// world is an embedded pair, and an engine whose agents fail at what they're told to.
type world struct {
	t      *testing.T
	broker *kafka.Broker
	ledger *sqlite.DB
	tray   letters.Tray
	topic  broker.Topic
	mended atomic.Bool // agents fail no more
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx := t.Context()
	server, err := embedded.Start(ctx, embedded.Options{})
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	b, err := kafka.Open(ctx, kafka.Options{Seeds: []string{server.Addr()}, OneInflight: true, MaxWait: 50 * time.Millisecond})
	must(t, err)
	t.Cleanup(b.Close)
	db, err := sqlite.Open(ctx, ":memory:", sqlite.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	must(t, b.Create(ctx, broker.TopicSpec{Name: topic, Partitions: 2}, broker.TopicSpec{Name: engine.DeadTopic(topic), Partitions: 2,
		Config: map[string]string{"max.message.bytes": "4096"}}))
	found, err := b.Topics(ctx, topic)
	must(t, err)
	return &world{t: t, broker: b, ledger: db, tray: letters.Tray{Broker: b, Ledger: db}, topic: found[0]}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bad is the type of events that agents fail at, with their data's "why" as reason.
const bad = "BadEvent"

// run lets agents of the given ways with dead records work until all is settled.
func (w *world) run(agents map[string]engine.OnDead) {
	w.t.Helper()
	var specs []engine.Agent
	for name, onDead := range agents {
		specs = append(specs, engine.Agent{Name: name, Reads: []string{topic}, OnDead: onDead,
			Handle: func(_ context.Context, e event.Event, _ *engine.Step) error {
				if e.Type == bad && !w.mended.Load() {
					return fault.Permanentf("no good: %s", e.Data)
				}
				return nil
			}})
	}
	e, err := engine.New(engine.Options{Swarm: "test", Worker: "w", Ledger: w.ledger, Broker: w.broker, LeaseTime: 2 * time.Second,
		Logger: slog.New(slog.DiscardHandler)}, specs, nil)
	must(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	deadline := time.Now().Add(time.Minute)
	for {
		idle, err := e.Idle(ctx)
		if err == nil && idle {
			break
		}
		if time.Now().After(deadline) {
			w.t.Error("the swarm doesn't settle")
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	cancel()
	must(w.t, <-done)
}

func (w *world) publish(messages ...event.Message) {
	w.t.Helper()
	answers := make(chan error, len(messages))
	for _, m := range messages {
		w.broker.Publisher().Publish(broker.Record{Message: m, Position: event.Position{Topic: topic,
			Partition: route.Partition(m.Key, w.topic.Partitions)}}, func(_ int64, err error) { answers <- err })
	}
	for range messages {
		must(w.t, <-answers)
	}
}

func numbered(typ, subject string, n int) event.Message {
	e := event.New(typ, subject, map[string]int{"n": n})
	e.Source, e.ID = "//test", fmt.Sprintf("%s-%d", subject, n)
	m, err := e.Encode()
	if err != nil {
		panic(err)
	}
	return m
}

func (w *world) list(f letters.Filter, o letters.Options) (all []letters.Letter) {
	w.t.Helper()
	must(w.t, w.tray.List(w.t.Context(), f, o, func(l *letters.Letter) error { all = append(all, *l); return nil }))
	return all
}

func (w *world) act(verb letters.Verb, f letters.Filter, dry bool) letters.Account {
	w.t.Helper()
	a, err := w.tray.Act(w.t.Context(), verb, f, dry, letters.Options{}, nil)
	must(w.t, err)
	if a.Matched != a.Done+a.Raced+a.Refused {
		w.t.Errorf("the account doesn't add up: %+v", a)
	}
	if left := a.Before - a.Done - a.Raced; !dry && a.Left != left || dry && a.Left != a.Before {
		w.t.Errorf("the account doesn't add up: %+v", a)
	}
	return a
}

func (w *world) counters(agent string) (c ledger.Counters) {
	leases, err := w.ledger.Leases(w.t.Context(), agent)
	must(w.t, err)
	for _, l := range leases {
		c.Add(l.Counters)
	}
	return c
}

// publishDead appends to the dead-letter topic, as the relay does.
func (w *world) publishDead(partition int32, m event.Message) {
	w.t.Helper()
	answer := make(chan error, 1)
	w.broker.Publisher().Publish(broker.Record{Message: m, Position: event.Position{Topic: engine.DeadTopic(topic), Partition: partition}},
		func(_ int64, err error) { answer <- err })
	must(w.t, <-answer)
}

// noLetters is a broker whose dead-letter topics are gone.
type noLetters struct{ broker.Broker }

func (n noLetters) Topics(ctx context.Context, names ...string) ([]broker.Topic, error) {
	if names[0] == engine.DeadTopic(topic) {
		return nil, fmt.Errorf("describe: %w", broker.ErrNoTopic)
	}
	return n.Broker.Topics(ctx, names...)
}
