package fieldcases

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/killkit"
	"github.com/swarmlog/swarmlog/ledger"
)

// records makes n records of different keys for one partition.
func records(topic string, n int) (all []*kgo.Record) {
	for i := range n {
		all = append(all, cloudEvent(topic, fmt.Sprintf("key-%d", i), fmt.Sprintf("%03d", i), asJSON, []byte(`{}`)))
	}
	return all
}

// one is a topic with one partition.
var one = map[string]int32{"in": 1}

// R3 a: all is polled, nothing is done, and the partition is given back in order. Progress stays where it was, in the
// ledger and in what Kafka's tools see, and all of it is done later.
func TestR3PolledIsNotProcessedWhenAPartitionIsGivenBack(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		at.keep(t)
		var running atomic.Int64
		waiting := engine.Agent{Name: "r", Reads: []string{"in"}, Setup: notes, Handle: func(ctx context.Context, _ event.Event, _ *engine.Step) error {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		}}
		s := start(t, at, one, func(c *app.Config) { c.Drain = 100 * time.Millisecond }, waiting)
		s.produce(records("in", 10)...)
		until(t, "all ten are polled", func() bool { return running.Load() == 10 })
		s.stop()
		wantProgress(t, at, ledger.Counters{}, 0)

		s = start(t, at, one, nil, noter("r", "in"))
		if at := s.committed("r", "in", 0); at > 0 {
			t.Errorf("Kafka's tools see offset %d as committed", at)
		}
		s.settle()
		if rows := s.rows(); len(rows) != 10 {
			t.Errorf("%d effects: %v", len(rows), ids(rows))
		}
	})
}

// R4, input 1: of three records in flight the later two finish, and the process is killed. The first one is handled again,
// and it alone. (Input 2, gaps between offsets, needs a log that was compacted: see docs/field-cases.md.)
func TestR4FinishedOutOfOrder(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		at.keep(t)
		check(t, node(t, "R4", at).Kill())
		wantProgress(t, at, ledger.Counters{Applied: 2}, 0, ledger.Span{From: 1, To: 2})
		var runs atomic.Int64
		agent := noter("r", "in")
		handle := agent.Handle
		agent.Handle = func(ctx context.Context, e event.Event, s *engine.Step) error {
			runs.Add(1)
			return handle(ctx, e, s)
		}
		s := start(t, at, one, nil, agent)
		s.settle()
		rows := s.rows()
		if len(rows) != 3 || rows[2].id != "000" || runs.Load() != 1 {
			t.Errorf("effects %s after %d more runs; expected those of 001 and 002 and then, after one more, that of 000", ids(rows), runs.Load())
		}
	})
}

// wantProgress reads a stopped swarm's ledger.
func wantProgress(t *testing.T, at *place, c ledger.Counters, next int64, finished ...ledger.Span) {
	t.Helper()
	db := at.ledger(t)
	defer func() { check(t, db.Close()) }()
	leases, err := db.Leases(t.Context(), "r")
	check(t, err)
	for _, l := range leases {
		if l.Topic != at.topic("in") {
			continue
		}
		if l.Counters != c || l.Next != next || !slices.Equal(l.Finished, finished) {
			t.Errorf("progress is %d with %v finished above it and %+v; expected %d, %v and %+v", l.Next, l.Finished, l.Counters, next, finished, c)
		}
		return
	}
	t.Error("the partition has no lease")
}

// nodeVar makes this binary a node: a swarm in a process that can be killed. It names the case.
const nodeVar = "SWARMLOG_FIELDCASE"

const placeVar = "SWARMLOG_FIELDCASE_PLACE"

// node starts a swarm in a process of its own and returns once it says that it's ready for the kill.
func node(t *testing.T, name string, at *place) *killkit.Process {
	t.Helper()
	where, err := json.Marshal(at)
	check(t, err)
	p, err := killkit.Start(t.Context(), killkit.Command{Name: name, Env: []string{nodeVar + "=" + name, placeVar + "=" + string(where)},
		Ready: killkit.Line("now")})
	check(t, err)
	return p
}

// runNode is what a node does: it fills its topic where that is empty, handles some, and hangs.
func runNode(name string) error {
	ctx := context.Background()
	var running, beats atomic.Int64
	// R3 handles none of ten; R4 handles all of three but the first.
	n, hang := 10, func(string) bool { return true }
	if name == "R4" {
		n, hang = 3, func(id string) bool { return id == "000" }
	}
	agent := engine.Agent{Name: "r", Reads: []string{"in"}, Setup: notes, Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
		if hang(e.ID) {
			running.Add(1)
			<-ctx.Done()
			return ctx.Err()
		}
		note(s, e, nil)
		return nil
	}}
	var at place
	if err := json.Unmarshal([]byte(os.Getenv(placeVar)), &at); err != nil {
		return err
	}
	c := at.config(one, agent)
	at.rename(&c)
	c.Logger = slog.New(slog.DiscardHandler)
	c.Wrap = func(_ string, l ledger.Ledger) ledger.Ledger { return &beating{l, &beats} }
	a, err := app.Start(ctx, c)
	if err != nil {
		return err
	}
	for i, r := range records("in", n) {
		e, err := event.Decode(event.Message{Key: r.Key, Value: r.Value, Headers: headers(r)}, event.Position{Topic: "in"})
		if err != nil {
			return fmt.Errorf("record %d: %w", i, err)
		}
		if err := a.Publish(ctx, at.topic("in"), e); err != nil {
			return err
		}
	}
	for {
		c, err := a.Counters(ctx, "r")
		if err != nil {
			return err
		}
		if running.Load()+c.Applied == int64(n) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	// Progress is told to Kafka with the heartbeats, and every one of them would be a tick of an automatic commit.
	for from := beats.Load(); beats.Load() < from+3; {
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Println("now")
	_, _ = io.Copy(io.Discard, os.Stdin) // until it's killed
	select {}
}

func headers(r *kgo.Record) (all []event.Header) {
	for _, h := range r.Headers {
		all = append(all, event.Header(h))
	}
	return all
}

type beating struct {
	ledger.Ledger
	n *atomic.Int64
}

func (b *beating) Beat(ctx context.Context, w ledger.Worker, ttl time.Duration) ([]ledger.Fence, error) {
	b.n.Add(1)
	return b.Ledger.Beat(ctx, w, ttl)
}

// R3 b: all is polled, nothing is done, heartbeats and reports of progress go by, and the process is killed.
func TestR3PolledIsNotProcessedWhenTheProcessIsKilled(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		at.keep(t)
		check(t, node(t, "R3", at).Kill())
		wantProgress(t, at, ledger.Counters{}, 0)
		s := start(t, at, one, nil, noter("r", "in"))
		s.settle()
		if rows := s.rows(); len(rows) != 10 {
			t.Errorf("%d effects: %v", len(rows), ids(rows))
		}
		until(t, "Kafka's tools see all of it as done", func() bool { return s.committed("r", "in", 0) == 10 })
	})
}

// R3 c: a partition is lost with all of it in flight, and its new owner is done before the old one comes back. Nothing
// is committed for what was lost, and the new owner's offset is never overwritten.
func TestR3LostPartitionIsNotCommitted(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		frozen := &freezer{owner: map[ledger.Key]string{}}
		release := make(chan struct{})
		var first, held, late atomic.Int64 // epoch of the first owner, who may have had to take its lease twice
		agent := engine.Agent{Name: "r", Reads: []string{"in"}, Setup: notes, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			first.CompareAndSwap(0, s.Epoch())
			if s.Epoch() == first.Load() {
				held.Add(1)
				<-release // an owner that doesn't notice
				late.Add(1)
			}
			note(s, e, s.Epoch())
			return nil
		}}
		s := start(t, at, one, func(c *app.Config) {
			c.Workers, c.Wrap = 2, frozen.wrap
		}, agent)
		s.produce(records("in", 10)...)
		until(t, "the first owner has all in flight", func() bool { return held.Load() == 10 })
		frozen.freeze(t)
		until(t, "the new owner is done", func() bool { return len(s.rows()) == 10 })
		until(t, "Kafka's tools see that", func() bool { return s.committed("r", "in", 0) == 10 })
		close(release)
		until(t, "the old owner's handlers have ended", func() bool { return late.Load() == 10 })
		frozen.thaw()
		s.settle()
		s.produce(cloudEvent("in", "k", "999", asJSON, []byte(`{}`)))
		s.settle()
		rows := s.rows()
		if len(rows) != 11 {
			t.Fatalf("%d effects: %v", len(rows), rows)
		}
		for _, r := range rows {
			if epoch, err := strconv.ParseInt(r.body, 10, 64); err != nil || epoch <= first.Load() {
				t.Errorf("%s was committed under epoch %s, which had passed", r.id, r.body)
			}
		}
		until(t, "Kafka's tools see that", func() bool { return s.committed("r", "in", 0) == 11 })
		if c := s.counters("r"); c != (ledger.Counters{Applied: 11}) {
			t.Errorf("counters: %+v", c)
		}
	})
}

// freezer lets the leases of the worker that owns a partition run out, and doesn't tell it.
type freezer struct {
	mu     sync.Mutex
	owner  map[ledger.Key]string
	frozen string
}

type frozenLedger struct {
	ledger.Ledger
	f      *freezer
	worker string
	mu     sync.Mutex
	held   []ledger.Fence
}

func (f *freezer) wrap(worker string, l ledger.Ledger) ledger.Ledger {
	return &frozenLedger{Ledger: l, f: f, worker: worker}
}

// freeze freezes the owner of the only partition.
func (f *freezer) freeze(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, worker := range f.owner {
		f.frozen = worker
	}
	if len(f.owner) != 1 {
		t.Fatalf("%d partitions have owners", len(f.owner))
	}
}

func (f *freezer) thaw() { f.mu.Lock(); defer f.mu.Unlock(); f.frozen = "" }

func (l *frozenLedger) isFrozen() bool {
	l.f.mu.Lock()
	defer l.f.mu.Unlock()
	return l.f.frozen == l.worker
}

func (l *frozenLedger) Beat(ctx context.Context, w ledger.Worker, ttl time.Duration) ([]ledger.Fence, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isFrozen() {
		return l.held, nil
	}
	held, err := l.Ledger.Beat(ctx, w, ttl)
	if err == nil {
		l.held = held
	}
	return held, err
}

func (l *frozenLedger) Acquire(ctx context.Context, k ledger.Key, topic, owner string, start int64, ttl time.Duration) (ledger.Lease, error) {
	if l.isFrozen() {
		return ledger.Lease{}, ledger.ErrHeld
	}
	lease, err := l.Ledger.Acquire(ctx, k, topic, owner, start, ttl)
	if err == nil {
		l.mu.Lock()
		l.held = append(l.held, lease.Fence)
		l.mu.Unlock()
		if k.Group == "r" { // and not the planner's
			l.f.mu.Lock()
			l.f.owner[k] = l.worker
			l.f.mu.Unlock()
		}
	}
	return lease, err
}

// R1: two members of a Kafka group, and one record whose handler takes longer than a member may be silent, though it isn't:
// its heartbeats go on. It's handled once and committed, and the group isn't rebalanced over and over.
func TestR1SlowHandlerInAGroup(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		var runs atomic.Int64
		agent := noter("r", "in")
		handle := agent.Handle
		agent.Handle = func(ctx context.Context, e event.Event, s *engine.Step) error {
			runs.Add(1)
			select {
			case <-time.After(8 * time.Second): // a session lasts six
			case <-ctx.Done():
				return ctx.Err()
			}
			return handle(ctx, e, s)
		}
		s := start(t, at, one, func(c *app.Config) {
			c.Workers, c.Membership = 2, engine.MembershipKafka
			if c.Kafka != nil {
				c.Kafka.Group.Session = 6 * time.Second
			}
		}, agent)
		s.produce(records("in", 1)...)
		until(t, "it's committed", func() bool { return s.committed("r", "in", 0) == 1 })
		if rows := s.rows(); len(rows) != 1 || runs.Load() > 2 {
			t.Errorf("%d effects after %d runs", len(rows), runs.Load())
		}
		if c := s.counters("r"); c != (ledger.Counters{Applied: 1}) {
			t.Errorf("counters: %+v", c)
		}
	})
}
