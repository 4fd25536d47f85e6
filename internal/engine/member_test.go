package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// A member whose partitions somebody has taken, and to whom the Kafka group still assigns them, takes them again; what
// it began before that commits nothing.
func TestFencedMemberClaimsAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	w.mode = engine.MembershipKafka
	e, _ := w.start(w.options("one"), recorder("r", "a"))
	w.until("it has all", func() bool { return partitions(e) == 4 })
	w.publish("a", numbered(20, 10)[:100]...)
	for _, l := range w.leases("r") {
		if l.Generation < 1 {
			t.Errorf("partition %d was claimed in generation %d", l.Partition, l.Generation)
		}
		_, err := w.ledger.Claim(t.Context(), l.Key, l.Topic, "stranger", 0, time.Minute, l.Generation)
		must(t, err)
	}
	w.publish("a", numbered(20, 10)[100:]...)
	w.until("it has taken all back", func() bool {
		for _, l := range w.leases("r") {
			if l.Owner != "one" {
				return false
			}
		}
		return partitions(e) == 4
	})
	w.settle(e)
	checkOnce(t, w.rows("r"), 20, 10)
	next, err := w.broker.Committed(t.Context(), "test.r")
	must(t, err)
	w.until("Kafka's tools see its progress", func() bool {
		next, err = w.broker.Committed(t.Context(), "test.r")
		sum := int64(0)
		for _, n := range next["a"] {
			sum += n
		}
		return err == nil && sum == 200
	})
}

// A swarm's workers all come to their partitions in the same way: one that comes in another stops its agent and says so.
func TestMembershipsDoNotMix(t *testing.T) {
	t.Parallel()
	for _, first := range []engine.Membership{engine.MembershipLeases, engine.MembershipKafka} {
		t.Run(string(first), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "a")
			w.mode = first
			one, _ := w.start(w.options("one"), recorder("r", "a"))
			w.until("the first has all", func() bool { return partitions(one) == 4 })
			o := w.options("two")
			o.Membership = engine.MembershipKafka
			if first == engine.MembershipKafka {
				o.Membership = engine.MembershipLeases
			}
			two, _ := w.start(o, recorder("r", "a"))
			w.until("the second one has stopped the agent", func() bool { return two.Failed()["r"] != nil })
			if err := two.Failed()["r"]; !errors.Is(err, ledger.ErrMode) || !strings.Contains(err.Error(), "give all workers of the swarm the same") {
				t.Errorf("it says: %v", err)
			}
			w.until("the first still has all, or again", func() bool { return partitions(one) == 4 })
			w.publish("a", numbered(20, 5)...)
			w.until("all is done", func() bool { return len(w.rows("r")) == 100 })
			checkOnce(t, w.rows("r"), 20, 5)
		})
	}
}

// Field case R1: a handler that takes longer than the group's session doesn't lose its place, and members that come and
// go meanwhile neither wait for it nor run it again.
func TestR1SlowHandlerKeepsItsPlaceInTheGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	w.mode = engine.MembershipKafka
	held := heldIDs()
	s := newSlow(held...)
	_, second := handOver(t, w, s, held, w.options("one"), w.options("two"))
	began := time.Now()
	third, stop := w.start(w.options("three"), s.agent("r", "three", "a"))
	w.until("the third has its part", func() bool { return partitions(third) > 0 })
	t.Logf("a third member had its part %s after it started, with steps that don't end", time.Since(began).Round(time.Millisecond))
	stop()
	w.until("the second and the first have all", func() bool {
		held := 0
		for _, l := range w.leases("r") {
			if l.Held && l.Owner != "three" {
				held++
			}
		}
		return held == 4
	})
	for _, id := range held {
		s.letGo(id, nil)
	}
	w.settle(second)
	checkOnce(t, w.rows("r"), 20, 10)
	for _, id := range held {
		if got := s.ran(id); len(got) != 1 {
			t.Errorf("%s ran on %v, and should have once", id, got)
		}
	}
}

// killed is a ledger that has lost its worker: nothing comes through any more.
type killed struct {
	ledger.Ledger
	dead chan struct{}
}

var errKilled = errors.New("the worker is dead")

func (k *killed) gone() error {
	select {
	case <-k.dead:
		return errKilled
	default:
		return nil
	}
}

func (k *killed) Beat(ctx context.Context, w ledger.Worker, ttl time.Duration) ([]ledger.Fence, error) {
	if err := k.gone(); err != nil {
		return nil, err
	}
	return k.Ledger.Beat(ctx, w, ttl)
}

func (k *killed) Commit(ctx context.Context, b *ledger.Batch) ([]ledger.Result, error) {
	if err := k.gone(); err != nil {
		return nil, err
	}
	return k.Ledger.Commit(ctx, b)
}

func (k *killed) Release(ctx context.Context, f ...ledger.Fence) error {
	if err := k.gone(); err != nil {
		return nil //nolint:nilerr // who is dead doesn't complain
	}
	return k.Ledger.Release(ctx, f...)
}

func (k *killed) Retire(ctx context.Context, worker string) error {
	if err := k.gone(); err != nil {
		return nil //nolint:nilerr // who is dead doesn't complain
	}
	return k.Ledger.Retire(ctx, worker)
}

func (k *killed) Pass(ctx context.Context, f ledger.Fence, to string, c []ledger.Carried, ttl time.Duration) error {
	if err := k.gone(); err != nil {
		return err
	}
	return k.Ledger.Pass(ctx, f, to, c, ttl)
}

// What a worker had that died runs elsewhere soon after its leases have expired: how soon is told here and in the
// benchmarks, and asserted only loosely.
func TestDeadWorkersPartitionsAreTakenSoon(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	k := &killed{Ledger: w.ledger, dead: make(chan struct{})}
	o := w.options("one")
	o.Ledger = k
	one, _ := w.start(o, recorder("r", "a"))
	two, _ := w.start(w.options("two"), recorder("r", "a"))
	w.until("they share", func() bool { return partitions(one) == 2 && partitions(two) == 2 })
	var last time.Time
	close(k.dead)
	for _, l := range w.leases("r") {
		if l.Owner == "one" && l.Expires.After(last) {
			last = l.Expires
		}
	}
	w.until("the other has all", func() bool { return partitions(two) == 4 })
	t.Logf("a dead worker's partitions were taken %s after their leases expired", time.Since(last).Round(time.Millisecond))
	w.publish("a", numbered(20, 5)...)
	w.until("all is done", func() bool { return len(w.rows("r")) == 100 })
	checkOnce(t, w.rows("r"), 20, 5)
}

// How long a partition's other aggregates stand still while it moves, with a step running that doesn't end.
func TestPlannedHandOverStopsLittle(t *testing.T) { inBothModes(t, plannedHandOverStopsLittle) }

func plannedHandOverStopsLittle(t *testing.T, mode engine.Membership) {
	w := newWorld(t, "a")
	w.mode = mode
	held := heldIDs()
	s := newSlow(held...)
	one, _ := w.start(w.options("one"), s.agent("r", "one", "a"))
	w.publish("a", numbered(20, 1)...)
	w.until("all but the held steps are done", func() bool { return len(w.rows("r")) == 16 })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int)
	go func() { // events of other aggregates, all the time
		n := 0
		for ; ctx.Err() == nil; n++ {
			e := event.New("NumberedEvent", fmt.Sprintf("other-%d", n%40), nil)
			e.Source, e.ID = "//test", fmt.Sprintf("other-%06d", n)
			w.publish("a", e)
		}
		done <- n
	}()
	flow := func(n int) {
		from := len(w.rows("r"))
		w.until("some more is done", func() bool { return len(w.rows("r")) > from+n })
	}
	flow(300)
	s.largestGap()
	flow(500)
	before := s.largestGap()
	two, _ := w.start(w.options("two"), s.agent("r", "two", "a"))
	w.until("partitions are shared", func() bool { return partitions(one) == 2 && partitions(two) == 2 })
	flow(300)
	t.Logf("the longest that a partition stood still: %s with nothing going on, %s while two of four moved", before, s.largestGap())
	cancel()
	n := <-done
	w.until("all others are done", func() bool { return len(w.rows("r")) == 16+n })
	for _, id := range held {
		s.letGo(id, nil)
	}
	w.settle(two)
	if rows := w.rows("r"); len(rows) != 20+n {
		t.Errorf("%d effects of %d events", len(rows), 20+n)
	}
}
