package fieldcases

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) {
	if node := os.Getenv(nodeVar); node != "" {
		if err := runNode(node); err != nil {
			fmt.Fprintln(os.Stderr, "node:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// swarm is the product, and a Kafka client beside it that knows nothing of it.
type swarm struct {
	*app.App
	t      *testing.T
	at     *place
	client *kgo.Client
}

// start starts agents at a place. Topics are created by name with a number of partitions.
func start(t *testing.T, at *place, topics map[string]int32, change func(*app.Config), agents ...engine.Agent) *swarm {
	t.Helper()
	c := at.config(topics, agents...)
	if change != nil {
		change(&c)
	}
	at.rename(&c)
	a, err := app.Start(t.Context(), c)
	check(t, err)
	s := &swarm{App: a, t: t, at: at}
	t.Cleanup(s.stop)
	// Producers of this kind of client put a key where Java's do, unless they're told otherwise.
	s.client, err = kgo.NewClient(s.cluster(), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	check(t, err)
	t.Cleanup(s.client.Close)
	return s
}

func (s *swarm) cluster() kgo.Opt {
	if s.at.Brokers != nil {
		return kgo.SeedBrokers(s.at.Brokers...)
	}
	return kgo.SeedBrokers(s.BrokerAddr())
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (s *swarm) stop() {
	s.t.Helper()
	if err := s.Stop(context.Background()); err != nil {
		s.t.Errorf("stop: %v", err)
	}
}

// produce writes records as they are, in order, and returns where each went.
func (s *swarm) produce(records ...*kgo.Record) []*kgo.Record {
	s.t.Helper()
	for _, r := range records {
		r.Topic = s.at.topic(r.Topic)
	}
	for _, r := range s.client.ProduceSync(s.t.Context(), records...) {
		check(s.t, r.Err)
	}
	return records
}

// settle waits until all that can settle by itself has.
func (s *swarm) settle() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 30*time.Second)
	defer cancel()
	check(s.t, s.Settled(ctx))
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func (s *swarm) counters(agent string) ledger.Counters {
	s.t.Helper()
	c, err := s.Counters(context.Background(), agent)
	check(s.t, err)
	return c
}

// held reads what a topic holds, as a foreign consumer does.
func (s *swarm) held(topic string) (all []*kgo.Record) {
	s.t.Helper()
	topic = s.at.topic(topic)
	size, err := s.Size(s.t.Context(), topic)
	check(s.t, err)
	client, err := kgo.NewClient(s.cluster(), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	check(s.t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	for int64(len(all)) < size {
		fetches := client.PollFetches(ctx)
		check(s.t, fetches.Err())
		all = append(all, fetches.Records()...)
	}
	return all
}

func (s *swarm) dead(topic string) []*kgo.Record { return s.held(engine.DeadTopic(topic)) }

// committed is the group's committed offset of a partition as Kafka's tools see it; -1: none.
func (s *swarm) committed(agent, topic string, partition int32) int64 {
	s.t.Helper()
	offsets, err := kadm.NewClient(s.client).FetchOffsets(s.t.Context(), s.at.name()+"."+agent)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return -1
	}
	check(s.t, err)
	if o, ok := offsets.Lookup(s.at.topic(topic), partition); ok {
		return o.At
	}
	return -1
}

func header(r *kgo.Record, key string) string {
	for _, h := range r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// cloudEvent is a record in the binary mode of the CloudEvents binding.
func cloudEvent(topic, key, id, contentType string, value []byte) *kgo.Record {
	r := &kgo.Record{Topic: topic, Value: value, Headers: []kgo.RecordHeader{
		{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte(id)}, {Key: "ce_source", Value: []byte("//field")},
		{Key: "ce_type", Value: []byte("FieldEvent")}, {Key: "content-type", Value: []byte(contentType)}}}
	if key != "" {
		r.Key = []byte(key)
	}
	return r
}

const asJSON = "application/json"

// notes is an agent's table: what it did, in the order of commits.
func notes(ctx context.Context, tx ledger.Tx) error {
	number := "INTEGER PRIMARY KEY AUTOINCREMENT"
	if tx.Dialect() == "postgres" {
		number = "BIGSERIAL PRIMARY KEY"
	}
	_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS note (n `+number+`, id TEXT NOT NULL, subject TEXT NOT NULL, body TEXT)`)
	return err
}

// note is an effect that writes a row.
func note(s *engine.Step, e event.Event, body any) {
	if n, ok := body.(int64); ok {
		body = strconv.FormatInt(n, 10) // PostgreSQL puts no number into a text
	}
	s.Tx(func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO note (id, subject, body) VALUES ($1, $2, $3)`, e.ID, e.Subject, body)
		return err
	})
}

// noter is an agent that notes each event with its data.
func noter(name, reads string, emits ...string) engine.Agent {
	return engine.Agent{Name: name, Reads: []string{reads}, Emits: emits, Setup: notes,
		Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			note(s, e, string(e.Data))
			return nil
		}}
}

type row struct{ id, subject, body string }

func (s *swarm) rows() []row {
	s.t.Helper()
	var rows []row
	check(s.t, s.Read(context.Background(), func(ctx context.Context, tx ledger.Tx) error {
		var err error
		rows, err = readNotes(ctx, tx)
		return err
	}))
	return rows
}

func readNotes(ctx context.Context, tx ledger.Tx) (rows []row, err error) {
	found, err := tx.Query(ctx, `SELECT id, subject, coalesce(body, '') FROM note ORDER BY n`)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	for found.Next() {
		var r row
		if err := found.Scan(&r.id, &r.subject, &r.body); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, found.Err()
}

// ids are the ids of rows, joined.
func ids(rows []row) string {
	var all []string
	for _, r := range rows {
		all = append(all, r.id)
	}
	return strings.Join(all, " ")
}
