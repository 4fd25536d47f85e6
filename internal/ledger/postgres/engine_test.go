package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// The engine on this ledger: a chain of two agents handles 2,000 events once each, in order within each aggregate.
func TestChainOfAgentsOnPostgreSQL(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	server, err := embedded.Start(ctx, embedded.Options{})
	must(err)
	t.Cleanup(func() { _ = server.Close() })
	b, err := kafka.Open(ctx, kafka.Options{Seeds: []string{server.Addr()}, OneInflight: true, MaxWait: 50 * time.Millisecond})
	must(err)
	t.Cleanup(b.Close)
	const partitions = 4
	for _, name := range []string{"a", "b"} {
		must(b.Create(ctx, broker.TopicSpec{Name: name, Partitions: partitions}, broker.TopicSpec{Name: engine.DeadTopic(name), Partitions: partitions}))
	}
	setup(t, db, "CREATE TABLE done (n bigserial, agent text, subject text, id text)")
	agent := func(name, reads string, emits ...string) engine.Agent {
		return engine.Agent{Name: name, Reads: []string{reads}, Emits: emits, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			s.Tx(exec("INSERT INTO done (agent, subject, id) VALUES ($1, $2, $3)", name, e.Subject, e.ID))
			if len(emits) > 0 {
				next := event.New("NextEvent", e.Subject, nil)
				next.ID, next.Source = e.ID, "//next"
				s.Emit(next)
			}
			return nil
		}}
	}
	e, err := engine.New(engine.Options{Swarm: "test", Worker: "w", Ledger: db, Broker: b, LeaseTime: 2 * time.Second, Drain: 5 * time.Second},
		[]engine.Agent{agent("first", "a", "b"), agent("second", "b")}, nil)
	must(err)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- e.Run(running) }()
	defer func() {
		stop()
		must(<-ended)
	}()
	const subjects, each = 40, 50
	publish(t, b, partitions, subjects, each)
	until(t, "the swarm is idle", func() bool {
		idle, err := e.Idle(ctx)
		return err == nil && idle
	})
	for _, name := range []string{"first", "second"} {
		var rows, events, disordered int
		scan(t, db, "SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE id <= before) FROM "+
			"(SELECT id, lag(id) OVER (PARTITION BY subject ORDER BY n) AS before FROM done WHERE agent = '"+name+"') d", &rows, &events, &disordered)
		if rows != subjects*each || events != rows || disordered != 0 {
			t.Errorf("%s: %d effects of %d events, %d out of order", name, rows, events, disordered)
		}
	}
	totals, err := db.Totals(ctx)
	must(err)
	var c ledger.Counters
	for _, l := range totals.Leases {
		c.Add(l.Counters)
	}
	if c != (ledger.Counters{Applied: 2 * subjects * each}) || totals.Outbox != 0 {
		t.Errorf("counters %+v, %d rows in the outbox", c, totals.Outbox)
	}
}

func publish(t *testing.T, b *kafka.Broker, partitions int32, subjects, each int) {
	t.Helper()
	answers := make(chan error, subjects*each)
	for i := range each {
		for s := range subjects {
			e := event.New("NumberedEvent", fmt.Sprintf("subject-%d", s), map[string]int{"n": i})
			e.Source, e.ID = "//test", fmt.Sprintf("%d-%06d", s, i)
			m, err := e.Encode()
			if err != nil {
				t.Fatal(err)
			}
			b.Publisher().Publish(broker.Record{Message: m, Position: event.Position{Topic: "a", Partition: route.Partition(m.Key, partitions)}},
				func(_ int64, err error) { answers <- err })
		}
	}
	for range subjects * each {
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
	}
}
