package engine_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// Whoever sees what a commit brought about sees that there was one: looks at the ledger are remembered by that number.
func TestCommitIsCountedBeforeItShows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	m := &countingMeter{least: -1}
	o := w.options("w")
	o.Meter = m
	e, stop := w.start(o, recorder("r", "a"))
	m.engine.Store(e)
	w.publish("a", numbered(1, 1)...)
	w.settle(e)
	stop()
	if m.least < 1 {
		t.Errorf("the step of the first commit was settled when %d commits were counted", m.least)
	}
}

type countingMeter struct {
	engine atomic.Pointer[engine.Engine]
	least  int64
}

func (m *countingMeter) Settled(string, ledger.Outcome) {
	if m.least < 0 {
		m.least = m.engine.Load().Commits()
	}
}
func (*countingMeter) Retried(string)                {}
func (*countingMeter) Stepped(string, time.Duration) {}
func (*countingMeter) Fenced(string)                 {}
func (*countingMeter) LeaseTaken(string)             {}
func (*countingMeter) LeaseLost(string)              {}
func (*countingMeter) Committed(int, time.Duration)  {}
func (*countingMeter) Published(int)                 {}
