package pair

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/ledger/postgres"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// site is a swarm of engines in this process on real Kafka and PostgreSQL, with an agent whose steps of one aggregate a
// partition don't end until they're let go, and a steady flow of others.
type site struct {
	t          *testing.T
	broker     *kafka.Broker
	ledger     *postgres.DB
	name       string
	topic      broker.Topic
	membership engine.Membership
	stuck      []string // an aggregate of each partition
	others     []string // some of each partition
	release    chan struct{}

	mu      sync.Mutex
	commits map[int32][]time.Time // of others, by partition
	applied map[string][]string   // ids by aggregate, in the order of commits
	begun   map[string]int        // runs of steps that don't end
}

const sitePartitions = 8

func newSite(t *testing.T, membership engine.Membership) *site {
	t.Helper()
	s := &site{t: t, membership: membership, name: "site" + strings.ToLower(rand.Text()[:10]), release: make(chan struct{}),
		commits: map[int32][]time.Time{}, applied: map[string][]string{}, begun: map[string]int{}}
	var err error
	s.broker, err = kafka.Open(t.Context(), kafka.Options{Seeds: given.Kafka(t), ClientID: s.name, Group: kafka.Group{Session: 6 * time.Second}})
	check(t, err)
	t.Cleanup(s.broker.Close)
	s.ledger, err = postgres.Open(t.Context(), postgres.Options{DSN: given.Database(t), LeaseTime: 5 * time.Second, MaxConns: 16})
	check(t, err)
	t.Cleanup(func() { check(t, s.ledger.Close()) })
	check(t, s.broker.Create(t.Context(), broker.TopicSpec{Name: s.name, Partitions: sitePartitions}, broker.TopicSpec{Name: engine.DeadTopic(s.name), Partitions: sitePartitions}))
	topics, err := s.broker.Topics(t.Context(), s.name)
	check(t, err)
	s.topic = topics[0]
	found := map[int32]int{}
	for i := 0; len(s.stuck) < sitePartitions || len(s.others) < 4*sitePartitions; i++ {
		key := fmt.Sprintf("aggregate-%d", i)
		switch p := route.Partition([]byte(key), sitePartitions); {
		case found[p] == 0:
			s.stuck = append(s.stuck, key)
			found[p]++
		case found[p] <= 4:
			s.others = append(s.others, key)
			found[p]++
		}
	}
	return s
}

func (s *site) agent() engine.Agent {
	return engine.Agent{Name: "r", Reads: []string{s.name}, Limits: engine.Limits{Timeout: 20 * time.Minute}, Handle: func(ctx context.Context, e event.Event, st *engine.Step) error {
		if slices.Contains(s.stuck, e.Subject) {
			s.mu.Lock()
			s.begun[e.ID]++
			s.mu.Unlock()
			select {
			case <-s.release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		at := st.Position().Partition
		st.Tx(func(context.Context, ledger.Tx) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if !slices.Contains(s.stuck, e.Subject) {
				s.commits[at] = append(s.commits[at], time.Now())
			}
			s.applied[e.Subject] = append(s.applied[e.Subject], e.ID)
			return nil
		})
		return nil
	}}
}

// start starts an engine; the function ends it.
func (s *site) start(worker string) (stop func()) {
	s.t.Helper()
	e, err := engine.New(engine.Options{Swarm: s.name, Worker: worker, Ledger: s.ledger, Broker: s.broker, LeaseTime: 5 * time.Second,
		Membership: s.membership, Drain: 2 * time.Second}, []engine.Agent{s.agent()}, nil)
	check(s.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				s.t.Errorf("%s: %v", worker, err)
			}
		})
	}
	s.t.Cleanup(stop)
	return stop
}

// publish appends an event of each aggregate.
func (s *site) publish(subjects []string, n int) {
	var all sync.WaitGroup
	for _, subject := range subjects {
		e := event.New("SiteEvent", subject, nil)
		e.Source, e.ID = "//site", fmt.Sprintf("%s %05d", subject, n)
		m, err := e.Encode()
		check(s.t, err)
		all.Add(1)
		s.broker.Publisher().Publish(broker.Record{Message: m, TopicID: s.topic.ID,
			Position: event.Position{Topic: s.name, Partition: route.Partition(m.Key, sitePartitions)}}, func(_ int64, err error) {
			if err != nil {
				s.t.Errorf("publish: %v", err)
			}
			all.Done()
		})
	}
	all.Wait()
}

// flow publishes to all other aggregates every so often until the function is called; it returns how many of each.
func (s *site) flow() (stop func() int) {
	done, ended := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		tick := time.NewTicker(25 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				ended <- n
				return
			case <-tick.C:
				s.publish(s.others, n)
				n++
			}
		}
	}()
	return func() int { close(done); return <-ended }
}

// longest is the longest time that a partition had no commit of others, between two moments.
func (s *site) longest(from, to time.Time) (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.commits {
		last := from
		for _, at := range all {
			if at.After(from) && at.Before(to) {
				longest, last = max(longest, at.Sub(last)), at
			}
		}
		longest = max(longest, to.Sub(last))
	}
	return longest
}

// owners are how many partitions each worker has.
func (s *site) owners() map[string]int {
	leases, err := s.ledger.Leases(context.Background(), "r")
	check(s.t, err)
	owners := map[string]int{}
	for _, l := range leases {
		if l.Held {
			owners[l.Owner]++
		}
	}
	return owners
}

func (s *site) until(what string, ok func() bool) time.Duration {
	s.t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > time.Minute {
			s.t.Fatalf("waited in vain until %s; owners: %v", what, s.owners())
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}

// Three workers join and leave while a step of each partition doesn't end: the other aggregates go on, nothing is lost,
// doubled or disordered, and the steps that don't end run once. How long each change takes, and how long partitions stand
// still for it, is logged: docs/benchmarks.md says what was measured.
func TestWorkersJoinAndLeaveBesideLongSteps(t *testing.T) {
	for _, membership := range []engine.Membership{engine.MembershipLeases, engine.MembershipKafka} {
		t.Run(string(membership), func(t *testing.T) {
			s := newSite(t, membership)
			stopA := s.start("a")
			s.publish(s.stuck, 0)
			s.until("all long steps run", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.begun) == sitePartitions })
			end := s.flow()
			phase := func(what string, change func(), done func() bool) {
				quiet := time.Now()
				time.Sleep(2 * time.Second)
				began := time.Now()
				change()
				took := s.until(what, done)
				time.Sleep(time.Second)
				now := time.Now()
				t.Logf("%s: after %s; a partition stood still for at most %s, and %s before", what, took.Round(time.Millisecond),
					s.longest(began, now).Round(time.Millisecond), s.longest(quiet, began).Round(time.Millisecond))
			}
			var stopB, stopC func()
			phase("a second worker has its part", func() { stopB = s.start("b") }, func() bool { o := s.owners(); return o["a"] == 4 && o["b"] == 4 })
			phase("a third worker has its part", func() { stopC = s.start("c") }, func() bool { o := s.owners(); return o["a"] >= 2 && o["b"] >= 2 && o["c"] >= 2 })
			phase("the third has left", func() { stopC() }, func() bool { o := s.owners(); return o["a"] == 4 && o["b"] == 4 })
			close(s.release)
			phase("the first has left", func() { stopA() }, func() bool { return s.owners()["b"] == sitePartitions })
			n := end()
			s.until("all is applied", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				for _, subject := range s.others {
					if len(s.applied[subject]) < n {
						return false
					}
				}
				for _, subject := range s.stuck {
					if len(s.applied[subject]) < 1 {
						return false
					}
				}
				return true
			})
			stopB()
			s.verify(n)
		})
	}
}

// verify holds what was applied against what was published. An effect that was rolled back may have been noted, so the
// ledger's counters are what counts copies.
func (s *site) verify(n int) {
	s.t.Helper()
	leases, err := s.ledger.Leases(context.Background(), "r")
	check(s.t, err)
	var c ledger.Counters
	for _, l := range leases {
		c.Add(l.Counters)
	}
	if want := (ledger.Counters{Applied: int64(n*len(s.others) + len(s.stuck))}); c != want {
		s.t.Errorf("counters: %+v, expected %+v", c, want)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, subject := range s.others {
		for i, id := range slices.Compact(s.applied[subject]) {
			if want := fmt.Sprintf("%s %05d", subject, i); id != want {
				s.t.Fatalf("%s was applied where %s should be", id, want)
			}
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
