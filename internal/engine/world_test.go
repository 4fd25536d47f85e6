package engine_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a broker and a ledger in memory, and engines on them.
type world struct {
	t      *testing.T
	broker *kafka.Broker
	ledger *sqlite.DB
	addr   string // of the broker
	mode   engine.Membership
	topics map[string]broker.Topic

	mu      sync.Mutex
	notices []engine.Notice
}

func newWorld(t *testing.T, topics ...string) *world {
	t.Helper()
	ctx := t.Context()
	server, err := embedded.Start(ctx, embedded.Options{})
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	b, err := kafka.Open(ctx, kafka.Options{Seeds: []string{server.Addr()}, OneInflight: true, MaxWait: 50 * time.Millisecond,
		Group: kafka.Group{Heartbeat: 200 * time.Millisecond}})
	must(t, err)
	t.Cleanup(b.Close)
	db, err := sqlite.Open(ctx, ":memory:", sqlite.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	w := &world{t: t, broker: b, ledger: db, addr: server.Addr(), topics: map[string]broker.Topic{}}
	for _, name := range topics {
		must(t, b.Create(ctx, broker.TopicSpec{Name: name, Partitions: 4}, broker.TopicSpec{Name: engine.DeadTopic(name), Partitions: 4}))
		found, err := b.Topics(ctx, name)
		must(t, err)
		w.topics[name] = found[0]
	}
	must(t, db.Setup(ctx, func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, `CREATE TABLE done (n INTEGER PRIMARY KEY AUTOINCREMENT, agent TEXT, subject TEXT, id TEXT, epoch INTEGER)`)
		return err
	}))
	return w
}

// inBothModes runs a test with leases and with Kafka groups.
func inBothModes(t *testing.T, test func(t *testing.T, mode engine.Membership)) {
	t.Parallel()
	for _, mode := range []engine.Membership{engine.MembershipLeases, engine.MembershipKafka} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			test(t, mode)
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// options are an engine's, quick enough for tests.
func (w *world) options(worker string) engine.Options {
	return engine.Options{Swarm: "test", Worker: worker, Membership: w.mode, Ledger: w.ledger, Broker: w.broker, LeaseTime: 2 * time.Second,
		Drain: 5 * time.Second, Logger: slog.New(slog.DiscardHandler), Notify: func(n engine.Notice) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.notices = append(w.notices, n)
		}}
}

// start runs an engine until the test ends or stop is called.
func (w *world) start(o engine.Options, agents ...engine.Agent) (e *engine.Engine, stop func()) {
	w.t.Helper()
	return w.startSources(o, nil, agents...)
}

func (w *world) startSources(o engine.Options, sources []engine.Source, agents ...engine.Agent) (*engine.Engine, func()) {
	w.t.Helper()
	e, err := engine.New(o, agents, sources)
	must(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("engine %s: %v", o.Worker, err)
			}
		})
	}
	w.t.Cleanup(stop)
	return e, stop
}

// publish appends events to a topic.
func (w *world) publish(topic string, events ...event.Event) {
	w.t.Helper()
	messages := make([]event.Message, len(events))
	for i, e := range events {
		var err error
		messages[i], err = e.Encode()
		must(w.t, err)
	}
	w.publishRaw(topic, messages...)
}

func (w *world) publishRaw(topic string, messages ...event.Message) {
	w.t.Helper()
	answers := make(chan error, len(messages))
	for _, m := range messages {
		p := route.Partition(m.Key, w.topics[topic].Partitions)
		w.broker.Publisher().Publish(broker.Record{Message: m, Position: event.Position{Topic: topic, Partition: p}},
			func(_ int64, err error) { answers <- err })
	}
	for range messages {
		must(w.t, <-answers)
	}
}

// settle waits until the engine is idle.
func (w *world) settle(e *engine.Engine) {
	w.t.Helper()
	w.until("the swarm is idle", func() bool {
		idle, err := e.Idle(context.Background())
		return err == nil && idle
	})
}

// until waits for a condition, for a bounded time.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain until %s; totals: %+v", what, w.totals())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (w *world) totals() ledger.Totals {
	t, err := w.ledger.Totals(context.Background())
	must(w.t, err)
	return t
}

func (w *world) counters(agent string) (c ledger.Counters) {
	leases, err := w.ledger.Leases(context.Background(), agent)
	must(w.t, err)
	for _, l := range leases {
		c.Add(l.Counters)
	}
	return c
}

// row is an effect, in the order of commits.
type row struct {
	agent, subject, id string
	epoch              int64
}

func (w *world) rows(agent string) (rows []row) {
	w.t.Helper()
	must(w.t, w.ledger.Read(context.Background(), func(ctx context.Context, tx ledger.Tx) error {
		rs, err := tx.Query(ctx, `SELECT agent, subject, id, epoch FROM done WHERE agent = $1 ORDER BY n`, agent)
		if err != nil {
			return err
		}
		defer rs.Close()
		for rs.Next() {
			var r row
			if err := rs.Scan(&r.agent, &r.subject, &r.id, &r.epoch); err != nil {
				return err
			}
			rows = append(rows, r)
		}
		return rs.Err()
	}))
	return rows
}

// record is an effect that notes the event.
func record(agent string, e event.Event, s *engine.Step) {
	epoch := s.Epoch()
	s.Tx(func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO done (agent, subject, id, epoch) VALUES ($1, $2, $3, $4)`, agent, e.Subject, e.ID, epoch)
		return err
	})
}

// numbered makes n events for each of a number of subjects, whose ids tell their order.
func numbered(subjects, n int) []event.Event {
	var all []event.Event
	for i := range n {
		for s := range subjects {
			e := event.New("NumberedEvent", fmt.Sprintf("subject-%d", s), map[string]int{"n": i})
			e.Source, e.ID = "//test", fmt.Sprintf("%d-%06d", s, i)
			all = append(all, e)
		}
	}
	return all
}

// checkOnce checks that each event had one effect, in order within its subject.
func checkOnce(t *testing.T, rows []row, subjects, n int) {
	t.Helper()
	last := map[string]string{}
	for _, r := range rows {
		if r.id <= last[r.subject] {
			t.Fatalf("%s: %s after %s", r.subject, r.id, last[r.subject])
		}
		last[r.subject] = r.id
	}
	if len(rows) != subjects*n {
		t.Fatalf("%d effects, expected %d", len(rows), subjects*n)
	}
}

func (w *world) saw(kind engine.NoticeKind) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.notices {
		if n.Kind == kind {
			return true
		}
	}
	return false
}

// dead reads the dead letters of a topic.
func (w *world) dead(topic string) (all []event.Message) {
	w.t.Helper()
	name := engine.DeadTopic(topic)
	topics, err := w.broker.Topics(context.Background(), name)
	must(w.t, err)
	ranges, err := w.broker.Offsets(context.Background(), name)
	must(w.t, err)
	reader, err := w.broker.Reader("dead")
	must(w.t, err)
	defer reader.Close()
	want := int64(0)
	for n, r := range ranges {
		want += r.End
		reader.Add(topics[0], int32(n), 0)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for int64(len(all)) < want {
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
