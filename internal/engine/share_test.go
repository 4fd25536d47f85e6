package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// A worker that was killed and comes back renews every lease in its name with its first heartbeat, those above its
// share too. What it doesn't work on it has to give back, or nobody ever works on it.
func TestRestartedWorkerHoldsNoLeaseThatItDoesNotWorkOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	topic := w.topics["a"]
	o := w.options("back")
	ctx := t.Context()
	// What a life before left: three of four partitions, and a share of two beside another worker.
	for p := int32(1); p < 4; p++ {
		_, err := w.ledger.Acquire(ctx, ledger.Key{Group: "r", TopicID: topic.ID, Partition: p}, topic.Name, o.Worker, 0, time.Minute)
		must(t, err)
	}
	_, err := w.ledger.Beat(ctx, ledger.Worker{ID: "other", Started: time.Now()}, o.LeaseTime)
	must(t, err)
	back, _ := w.start(o, recorder("r", "a"))
	w.until("the worker that is back has its share", func() bool { return partitions(back) == 2 })
	other, _ := w.start(w.options("other"), recorder("r", "a"))
	w.until("the other worker has the rest", func() bool { return partitions(other) == 2 })
	w.publish("a", numbered(20, 10)...)
	w.settle(back)
	checkOnce(t, w.rows("r"), 20, 10)
}

// partitions is how many partitions an engine's agents work on.
func partitions(e *engine.Engine) (n int) {
	for _, a := range e.Status() {
		n += len(a.Partitions)
	}
	return n
}

// Workers join and leave while records flow: partitions are shared out, all of them are worked on, and each record has
// one effect, in order, under epochs that only rise.
func TestWorkersJoinAndLeave(t *testing.T) { inBothModes(t, workersJoinAndLeave) }

func workersJoinAndLeave(t *testing.T, mode engine.Membership) {
	w := newWorld(t, "a", "b")
	w.mode = mode
	agents := []engine.Agent{recorder("first", "a", "b"), recorder("second", "b")}
	const subjects, rounds = 30, 8
	events := numbered(subjects, rounds*10)
	part := func(i int) []event.Event { return events[i*subjects*10 : (i+1)*subjects*10] }
	shares := func(want string, engines ...*engine.Engine) {
		w.until("partitions are shared "+want, func() bool {
			var got []string
			for _, e := range engines {
				got = append(got, fmt.Sprint(partitions(e)))
			}
			slices.Sort(got)
			return strings.Join(got, ",") == want
		})
	}
	one, stopOne := w.start(w.options("one"), agents...)
	w.publish("a", part(0)...)
	shares("8", one)
	two, stopTwo := w.start(w.options("two"), agents...)
	w.publish("a", part(1)...)
	shares("4,4", one, two)
	three, stopThree := w.start(w.options("three"), agents...)
	w.publish("a", part(2)...)
	// Four partitions of an agent among three: two at most for each, and none without an owner.
	w.until("all partitions are owned", func() bool {
		a, b, c := partitions(one), partitions(two), partitions(three)
		return a+b+c == 8 && max(a, b, c) <= 4
	})
	w.publish("a", part(3)...)
	stopTwo()
	w.publish("a", part(4)...)
	shares("4,4", one, three)
	two, stopTwo = w.start(w.options("two"), agents...)
	w.publish("a", part(5)...)
	stopOne()
	w.publish("a", part(6)...)
	stopThree()
	w.publish("a", part(7)...)
	shares("8", two)
	w.settle(two)
	stopTwo()
	for _, agent := range []string{"first", "second"} {
		checkOnce(t, w.rows(agent), subjects, rounds*10)
		epochs := map[string]int64{}
		for _, r := range w.rows(agent) {
			if r.epoch < epochs[r.subject] {
				t.Fatalf("%s: %s committed under epoch %d, after %d", agent, r.id, r.epoch, epochs[r.subject])
			}
			epochs[r.subject] = r.epoch
		}
		if c := w.counters(agent); c.Applied != subjects*rounds*10 || c.Delivered()-c.Duplicate != c.Applied {
			t.Errorf("%s: %+v", agent, c)
		}
	}
}

// An agent with a pool runs on that pool's workers alone, whatever else the others have: what they own of it
// counts when the rest is shared.
func TestPoolsRunTheirOwnAgents(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	heavy := recorder("heavy", "a")
	heavy.Pool = "big"
	agents := []engine.Agent{heavy, recorder("light", "a")}
	in := func(worker, pool string) engine.Options {
		o := w.options(worker)
		o.Pool = pool
		return o
	}
	small, _ := w.start(in("small", ""), agents...)
	w.until("the small worker has all of the light agent", func() bool { return partitions(small) == 4 })
	big, _ := w.start(in("big-1", "big"), agents...)
	w.until("the heavy agent is on the big worker, and the light one where that leaves as much", func() bool { return partitions(small) == 4 && partitions(big) == 4 })
	w.publish("a", numbered(20, 10)...)
	w.settle(small)
	w.settle(big)
	checkOnce(t, w.rows("heavy"), 20, 10)
	checkOnce(t, w.rows("light"), 20, 10)
}
