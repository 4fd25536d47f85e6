package engine_test

import (
	"testing"
	"time"

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
