package redrive

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/ledger/postgres"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	partitions = 8
	diesAt     = 10
)

// scale is how much there is of everything.
type scale struct {
	full     bool
	parked   int // events of the aggregate that dies
	others   int // events of others
	subjects int // aggregates that they are of
	moves    int // times that leases move while it goes on
	patience time.Duration
}

var (
	small = scale{parked: 1500, others: 6000, subjects: 100, moves: 3, patience: 2 * time.Minute}
	large = scale{full: true, parked: 10_000, others: 1_000_000, subjects: 2000, moves: 10, patience: time.Hour}
)

func TestParkedAggregateIsRedriven(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		server, err := embedded.Start(t.Context(), embedded.Options{})
		check(t, err)
		t.Cleanup(func() { check(t, server.Close()) })
		db, err := sqlite.Open(t.Context(), ":memory:", sqlite.Options{})
		check(t, err)
		t.Cleanup(func() { check(t, db.Close()) })
		newSwarm(t, small, false, []string{server.Addr()}, db).run()
	})
	t.Run("kafka", func(t *testing.T) {
		seeds, dsn, size := given.Kafka(t), given.Postgres(t), small
		if os.Getenv("SWARMLOG_REDRIVE") == "full" {
			size = large
		}
		schema := "r" + strings.ToLower(rand.Text()[:12])
		db, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn, Schema: schema})
		check(t, err)
		t.Cleanup(func() {
			check(t, db.Close())
			c, err := pgx.Connect(context.Background(), dsn)
			check(t, err)
			_, err = c.Exec(context.Background(), "DROP SCHEMA "+schema+" CASCADE")
			check(t, errors.Join(err, c.Close(context.Background())))
		})
		newSwarm(t, size, true, seeds, db).run()
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// swarm is an agent that counts the events of each aggregate, in workers that come and go.
type swarm struct {
	t      *testing.T
	scale  scale
	broker *kafka.Broker
	ledger ledger.Ledger
	name   string
	topic  string
	agent  engine.Agent
	poison atomic.Bool
	heap   heap
}

func newSwarm(t *testing.T, size scale, real bool, seeds []string, db ledger.Ledger) *swarm {
	b, err := kafka.Open(t.Context(), kafka.Options{Seeds: seeds, OneInflight: !real, MaxWait: 50 * time.Millisecond})
	check(t, err)
	t.Cleanup(b.Close)
	s := &swarm{t: t, scale: size, broker: b, ledger: db, name: "r" + strings.ToLower(rand.Text()[:12])}
	s.topic = s.name + ".events"
	for _, topic := range []string{s.topic, engine.DeadTopic(s.topic)} {
		check(t, b.Create(t.Context(), broker.TopicSpec{Name: topic, Partitions: partitions}))
	}
	check(t, db.Setup(t.Context(), func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, "CREATE TABLE "+s.name+" (subject TEXT PRIMARY KEY, n BIGINT NOT NULL)")
		return err
	}))
	t.Cleanup(func() {
		check(t, db.Setup(context.Background(), func(ctx context.Context, tx ledger.Tx) error {
			_, err := tx.Exec(ctx, "DROP TABLE "+s.name)
			return err
		}))
	})
	s.agent = engine.Agent{Name: s.name, Reads: []string{s.topic}, Handle: s.handle, Limits: engine.Limits{Waiting: 1_000_000}}
	return s
}

// handle counts an event of its aggregate, which must be the next one.
func (s *swarm) handle(_ context.Context, e event.Event, step *engine.Step) error {
	n, err := strconv.Atoi(e.ID[strings.LastIndexByte(e.ID, '/')+1:])
	if err != nil {
		return fault.As(fault.Fatal, err)
	}
	if s.poison.Load() && e.Subject == "parked" && n == diesAt {
		return fault.Permanentf("poison")
	}
	step.Tx(func(ctx context.Context, tx ledger.Tx) error {
		insert := "INSERT INTO " + s.name + " VALUES ($1, $2) ON CONFLICT (subject) DO UPDATE SET n = excluded.n WHERE " + s.name + ".n = excluded.n - 1"
		changed, err := tx.Exec(ctx, insert, e.Subject, n)
		if err == nil && changed != 1 {
			return fault.Fatalf("event %s came out of its order", e.ID)
		}
		return err
	})
	return nil
}

// worker runs a worker until stop is called.
func (s *swarm) worker(name string) (e *engine.Engine, stop func()) {
	e, err := engine.New(engine.Options{Swarm: s.name, Worker: name, Ledger: s.ledger, Broker: s.broker, LeaseTime: 3 * time.Second,
		Drain: 5 * time.Second, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}, []engine.Agent{s.agent}, nil)
	check(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("worker %s: %v", name, err)
		}
		for _, err := range e.Failed() {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(stop)
	return e, stop
}

// publish appends events from to below to of an aggregate, of each of a number of others in turn, or both mixed.
func (s *swarm) publish(parkedFrom, parkedTo, othersFrom, othersTo int) {
	room := make(chan struct{}, 4096) // of records without an answer
	var failed atomic.Pointer[error]
	send := func(subject string, n int) {
		e := event.New("CountedEvent", subject, nil)
		e.Source, e.ID = "//test", fmt.Sprint(subject, "/", n)
		m, err := e.Encode()
		check(s.t, err)
		room <- struct{}{}
		s.broker.Publisher().Publish(broker.Record{Message: m, Position: event.Position{Topic: s.topic, Partition: route.Partition(m.Key, partitions)}},
			func(_ int64, err error) {
				if err != nil {
					failed.Store(&err)
				}
				<-room
			})
	}
	p, o := parkedTo-parkedFrom, othersTo-othersFrom
	done := 0
	for i := range max(p, o) {
		if i < o {
			n := othersFrom + i
			send(fmt.Sprint("other-", n%s.scale.subjects), n/s.scale.subjects+1)
		}
		for ; done < p && (o == 0 || done*o < (i+1)*p); done++ { // as often as there are fewer of them
			send("parked", parkedFrom+done+1)
		}
	}
	for range cap(room) {
		room <- struct{}{}
	}
	if err := failed.Load(); err != nil {
		s.t.Fatal(*err)
	}
}

func (s *swarm) counters() (c ledger.Counters) {
	leases, err := s.ledger.Leases(context.Background(), s.name)
	check(s.t, err)
	for _, l := range leases {
		c.Add(l.Counters)
	}
	return c
}

func (s *swarm) until(what string, ok func(c ledger.Counters) bool) {
	s.t.Helper()
	deadline := time.Now().Add(s.scale.patience)
	for {
		c := s.counters()
		if ok(c) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("waited in vain until %s: %+v", what, c)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (s *swarm) run() {
	t, all := s.t, s.scale
	s.poison.Store(true)
	s.heap.watch(t)
	_, stop := s.worker("w0")
	second, _ := s.worker("v")
	half := all.others / 2

	// Without anything parked, for comparison.
	began := time.Now()
	s.publish(0, 0, 0, half)
	s.until("the first half of the others is handled", func(c ledger.Counters) bool { return c.Applied == int64(half) })
	alone := time.Since(began)
	heapAlone := s.heap.restart()

	// The aggregate dies, and much of it comes together with the others' second half.
	began = time.Now()
	s.publish(0, all.parked, half, all.others)
	waiting := ledger.Counters{Applied: int64(all.others) + diesAt - 1, Dead: 1, Waiting: int64(all.parked) - diesAt}
	s.until("all others are handled, and the rest waits", func(c ledger.Counters) bool { return c == waiting })
	beside := time.Since(began)
	heapBeside := s.heap.restart()

	// It's let go on; leases move, and new events come, of it and of others.
	s.poison.Store(false)
	rows, err := s.ledger.Waits(t.Context(), ledger.WaitQuery{Group: s.name, Topic: s.topic, Subject: "parked", DeadOnly: true})
	check(t, err)
	if len(rows) != 1 || rows[0].Behind != int64(all.parked-diesAt) {
		t.Fatalf("dead heads: %+v", rows)
	}
	began = time.Now()
	if ok, err := s.ledger.Redrive(t.Context(), rows[0].Key, "parked", -1); err != nil || !ok {
		t.Fatalf("redrive: %v, %v", ok, err)
	}
	check(t, second.Look(t.Context()))
	parked, others := all.parked, all.others
	for i := 1; i <= all.moves; i++ {
		before := s.counters().Waiting
		s.publish(parked, parked+50, others, others+all.subjects)
		parked, others = parked+50, others+all.subjects
		s.until("some of it went on", func(c ledger.Counters) bool { return c.Waiting == 0 || c.Waiting < before })
		stop()
		_, stop = s.worker(fmt.Sprint("w", i))
	}
	s.until("all is handled", func(c ledger.Counters) bool { return c == ledger.Counters{Applied: int64(parked + others)} })
	redriven := time.Since(began)
	heapRedrive := s.heap.restart()
	s.checkEffects(parked, others)
	t.Logf("others: %.0f/s alone, %.0f/s beside %d that wait; redriven in %s; heap at most %d MiB alone, %d MiB beside, %d MiB in the redrive",
		float64(half)/alone.Seconds(), float64(all.others-half)/beside.Seconds(), all.parked, redriven.Round(time.Millisecond),
		heapAlone>>20, heapBeside>>20, heapRedrive>>20)
	if all.full && beside > alone*3/2 { // of much more than other work on the machine explains
		t.Errorf("others took %s beside the parked aggregate, and %s alone", beside, alone)
	}
	if limit := heapAlone + 64<<20; heapBeside > limit || heapRedrive > limit {
		t.Errorf("memory isn't flat: at most %d MiB alone, %d beside, %d in the redrive", heapAlone>>20, heapBeside>>20, heapRedrive>>20)
	}
}

// checkEffects checks that each aggregate was counted to its end; that it was counted in order, without leaving any out
// or counting any twice, is what handle insists on.
func (s *swarm) checkEffects(parked, others int) {
	got := map[string]int{}
	check(s.t, s.ledger.Read(context.Background(), func(ctx context.Context, tx ledger.Tx) error {
		rows, err := tx.Query(ctx, "SELECT subject, n FROM "+s.name)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var subject string
			var n int
			if err := rows.Scan(&subject, &n); err != nil {
				return err
			}
			got[subject] = n
		}
		return rows.Err()
	}))
	if got["parked"] != parked {
		s.t.Errorf("the parked aggregate was counted to %d, expected %d", got["parked"], parked)
	}
	sum := 0
	for i := range s.scale.subjects {
		sum += got[fmt.Sprint("other-", i)]
	}
	if sum != others {
		s.t.Errorf("others were counted to %d, expected %d", sum, others)
	}
	totals, err := s.ledger.Totals(context.Background())
	check(s.t, err)
	if totals.Waiting != 0 || totals.Parked != 0 {
		s.t.Errorf("%d rows are left in the backlog, %d of them dead", totals.Waiting, totals.Parked)
	}
	letters, err := s.broker.Offsets(context.Background(), engine.DeadTopic(s.topic))
	check(s.t, err)
	n := int64(0)
	for _, r := range letters {
		n += r.End - r.Start
	}
	if n != 1 {
		s.t.Errorf("%d dead letters, expected 1", n)
	}
}

// heap is how much memory was reached at most, as of the ends of collections.
type heap struct{ most atomic.Uint64 }

func (h *heap) watch(t *testing.T) {
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
			metrics.Read(live)
			if n := live[0].Value.Uint64(); n > h.most.Load() {
				h.most.Store(n)
			}
			select {
			case <-done:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() { close(done); running.Wait() })
}

// restart tells the most, and begins again after a collection.
func (h *heap) restart() uint64 {
	most := h.most.Load()
	runtime.GC()
	h.most.Store(0)
	return most
}
