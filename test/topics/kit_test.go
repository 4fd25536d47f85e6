package topics

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/ledger/postgres"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a broker with a ledger, and a Kafka client that knows nothing of Swarmlog.
type pair struct {
	t       *testing.T
	name    string // begins the names of topics, groups and tables
	real    bool
	seeds   []string
	broker  *kafka.Broker
	ledger  ledger.Ledger
	admin   *kadm.Client
	foreign *kgo.Client // puts a key where Java's default does among the partitions that there are

	mu      sync.Mutex
	notices []engine.Notice
}

// onBoth runs a test on the embedded pair, and on real Kafka with a real PostgreSQL.
func onBoth(t *testing.T, test func(p *pair)) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		server, err := embedded.Start(t.Context(), embedded.Options{})
		check(t, err)
		t.Cleanup(func() { check(t, server.Close()) })
		db, err := sqlite.Open(t.Context(), ":memory:", sqlite.Options{})
		check(t, err)
		t.Cleanup(func() { check(t, db.Close()) })
		test(newPair(t, false, []string{server.Addr()}, db))
	})
	onKafka(t, test)
}

// onKafka runs a test on real Kafka and PostgreSQL.
func onKafka(t *testing.T, test func(p *pair)) {
	t.Run("kafka", func(t *testing.T) {
		t.Parallel()
		seeds, dsn := given.Kafka(t), given.Postgres(t)
		schema := "t" + strings.ToLower(rand.Text()[:12])
		statement(t, dsn, "CREATE SCHEMA "+schema+"_user")
		t.Cleanup(func() {
			statement(t, dsn, "DROP SCHEMA IF EXISTS "+schema+" CASCADE", "DROP SCHEMA "+schema+"_user CASCADE")
		})
		own, err := url.Parse(dsn)
		check(t, err)
		query := own.Query()
		query.Set("search_path", schema+"_user")
		own.RawQuery = query.Encode()
		db, err := postgres.Open(t.Context(), postgres.Options{DSN: own.String(), Schema: schema})
		check(t, err)
		t.Cleanup(func() { check(t, db.Close()) })
		test(newPair(t, true, seeds, db))
	})
}

// statement runs statements on a connection of its own.
func statement(t *testing.T, dsn string, statements ...string) {
	t.Helper()
	c, err := pgx.Connect(context.Background(), dsn)
	check(t, err)
	defer c.Close(context.Background())
	for _, s := range statements {
		_, err := c.Exec(context.Background(), s)
		check(t, err)
	}
}

func newPair(t *testing.T, real bool, seeds []string, db ledger.Ledger) *pair {
	t.Helper()
	b, err := kafka.Open(t.Context(), kafka.Options{Seeds: seeds, OneInflight: !real, MaxWait: 50 * time.Millisecond})
	check(t, err)
	t.Cleanup(b.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.MetadataMinAge(50*time.Millisecond), kgo.MetadataMaxAge(200*time.Millisecond))
	check(t, err)
	t.Cleanup(client.Close)
	name := "t" + strings.ToLower(rand.Text()[:12])
	p := &pair{t: t, name: name, real: real, seeds: seeds, broker: b, ledger: db, admin: kadm.NewClient(client), foreign: client}
	id := "BIGSERIAL PRIMARY KEY"
	if !real {
		id = "INTEGER PRIMARY KEY AUTOINCREMENT"
	}
	check(t, db.Setup(t.Context(), exec("CREATE TABLE "+p.table()+" (n "+id+", agent TEXT, subject TEXT, id TEXT)")))
	t.Cleanup(func() { check(t, db.Setup(context.Background(), exec("DROP TABLE "+p.table()))) })
	return p
}

func (p *pair) table() string { return p.name + "_done" }

// topic makes the topic of a name, and its dead-letter topic; both go with the test.
func (p *pair) topic(short string, partitions int32) string {
	p.t.Helper()
	name := p.name + "." + short
	p.create(name, partitions)
	p.create(engine.DeadTopic(name), partitions)
	p.t.Cleanup(func() { _, _ = p.admin.DeleteTopics(context.Background(), name, engine.DeadTopic(name)) })
	return name
}

func (p *pair) create(name string, partitions int32) {
	p.t.Helper()
	check(p.t, p.broker.Create(context.Background(), broker.TopicSpec{Name: name, Partitions: partitions}))
}

func (p *pair) grow(topic string, partitions int) {
	p.t.Helper()
	answer, err := p.admin.UpdatePartitions(context.Background(), partitions, topic)
	check(p.t, err)
	check(p.t, answer.Error())
	p.until("the topic has grown", func() bool {
		found, err := p.broker.Topics(context.Background(), topic)
		ranges, err2 := p.broker.Offsets(context.Background(), topic)
		return err == nil && err2 == nil && int(found[0].Partitions) == partitions && len(ranges) == partitions
	})
}

// createAnew deletes a topic and creates it again under its name.
func (p *pair) createAnew(topic string, partitions int32) {
	p.t.Helper()
	before, err := p.broker.Topics(context.Background(), topic)
	check(p.t, err)
	_, err = p.admin.DeleteTopic(context.Background(), topic)
	check(p.t, err)
	p.until("the topic is there anew", func() bool {
		if err := p.broker.Create(context.Background(), broker.TopicSpec{Name: topic, Partitions: partitions}); err != nil {
			return false
		}
		found, err := p.broker.Topics(context.Background(), topic)
		return err == nil && found[0].ID != before[0].ID
	})
}

// produce sends records as another client does, which tries again where the topic is another one than it knew.
func (p *pair) produce(records ...*kgo.Record) {
	p.t.Helper()
	check(p.t, p.foreign.ProduceSync(context.Background(), records...).FirstErr())
}

// run runs an engine until the test ends or stop is called.
func (p *pair) run(o engine.Options, agents ...engine.Agent) (e *engine.Engine, stop func()) {
	p.t.Helper()
	e, err := engine.New(o, agents, nil)
	check(p.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			p.t.Errorf("engine %s: %v", o.Worker, err)
		}
	})
	p.t.Cleanup(stop)
	return e, stop
}

func (p *pair) options(worker string) engine.Options {
	return engine.Options{Swarm: p.name, Worker: worker, Ledger: p.ledger, Broker: p.broker, LeaseTime: 3 * time.Second,
		Drain: 5 * time.Second, Look: 200 * time.Millisecond, Logger: logger(), Notify: func(n engine.Notice) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.notices = append(p.notices, n)
		}}
}

// told is what people were last told of a kind.
func (p *pair) told(kind engine.NoticeKind) (text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.notices {
		if n.Kind == kind {
			text = n.Text
		}
	}
	return text
}

// noter is an agent whose effect is a row.
func (p *pair) noter(name string, reads ...string) engine.Agent {
	return engine.Agent{Name: p.name + "." + name, Reads: reads, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		p.note(name, e, s)
		return nil
	}}
}

func (p *pair) note(agent string, e event.Event, s *engine.Step) {
	s.Tx(func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+p.table()+" (agent, subject, id) VALUES ($1, $2, $3)", agent, e.Subject, e.ID)
		return err
	})
}

// done is the ids of the events that an agent has handled, in the order of commits.
func (p *pair) done(agent string) (ids []string) {
	p.t.Helper()
	p.each("id", agent, func(id string) { ids = append(ids, id) })
	return ids
}

// each visits a column of an agent's effects, in the order of commits.
func (p *pair) each(column, agent string, visit func(string)) {
	p.t.Helper()
	var all []string
	check(p.t, p.ledger.Read(context.Background(), func(ctx context.Context, tx ledger.Tx) error {
		all = nil
		rows, err := tx.Query(ctx, "SELECT "+column+" FROM "+p.table()+" WHERE agent = $1 ORDER BY n", agent)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var s string
			if err := rows.Scan(&s); err != nil {
				return err
			}
			all = append(all, s)
		}
		return rows.Err()
	}))
	for _, s := range all {
		visit(s)
	}
}

func (p *pair) counters(agent string) (c ledger.Counters) {
	p.t.Helper()
	leases, err := p.ledger.Leases(context.Background(), agent)
	check(p.t, err)
	for _, l := range leases {
		c.Add(l.Counters)
	}
	return c
}

func (p *pair) settle(e *engine.Engine) {
	p.t.Helper()
	p.until("all is settled", func() bool {
		idle, err := e.Idle(context.Background())
		return err == nil && idle
	})
}

func (p *pair) until(what string, ok func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			p.t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// numbered makes events of one subject as another client sends them.
func numbered(topic, subject string, from, to int) (all []*kgo.Record) {
	for i := from; i <= to; i++ {
		all = append(all, named(topic, subject, fmt.Sprintf("%s-v%03d", subject, i)))
	}
	return all
}

func named(topic, subject, id string) *kgo.Record {
	return &kgo.Record{Topic: topic, Key: []byte(subject), Value: []byte(`{}`), Headers: []kgo.RecordHeader{
		{Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte(id)}, {Key: "ce_source", Value: []byte("//test")},
		{Key: "ce_type", Value: []byte("T")}, {Key: "content-type", Value: []byte("application/json")}}}
}

func exec(sql string) func(context.Context, ledger.Tx) error {
	return func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, sql)
		return err
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
