package engine_test

import (
	"context"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/internal/engine"
)

// Two workers of one id: the one that was started first ends and says why, and the other goes on with everything.
func TestTwoWorkersOfOneID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	agent := recorder("r", "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first, err := engine.New(w.options("same"), []engine.Agent{agent}, nil)
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- first.Run(ctx) }()
	w.publish("a", numbered(10, 20)...)
	w.until("the first one works", func() bool { return w.counters("r").Applied == 200 })
	second, _ := w.start(w.options("same"), agent)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "an id of its own") {
		t.Errorf("the first one ended with: %v", err)
	}
	w.publish("a", numberedFrom(10, 20, 40)...)
	w.settle(second)
	checkOnce(t, w.rows("r"), 10, 40)
}
