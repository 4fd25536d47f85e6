package bench

import (
	"context"
	"flag"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

var idleFor = flag.Duration("idle", 4*time.Second, "how long BenchmarkIdle looks on")

// BenchmarkIdle runs a swarm as `swarmlog up` does, HTTP included, with nothing to do: a source and four agents of eight
// partitions each. It reports what the process uses of a core, and how often the ledger is asked.
func BenchmarkIdle(b *testing.B) {
	window := *idleFor
	if testing.Short() {
		window = min(window, 2*time.Second)
	}
	for b.Loop() {
		idle(b, window)
	}
	b.ReportMetric(0, "ns/op")
}

func idle(b *testing.B, window time.Duration) {
	nothing := func(context.Context, event.Event, *engine.Step) error { return nil }
	topics := []string{"documents", "pages", "notes", "vectors"}
	var agents []engine.Agent
	for i, name := range []string{"splitter", "reader", "embedder", "indexer"} {
		agents = append(agents, engine.Agent{Name: name, Reads: topics[i : i+1], Handle: nothing})
	}
	agents[2].Reads = []string{"pages"}
	agents[3].Reads = []string{"pages", "notes", "vectors"}
	calls := &counted{}
	ready := make(chan struct{})
	a, err := app.Start(b.Context(), app.Config{Name: "idle", Data: filepath.Join(b.TempDir(), "data"), Listen: "127.0.0.1:0", Agents: agents,
		Sources: []engine.Source{{Name: "finder", Emits: topics[:1], Run: func(ctx context.Context, f *engine.Feed) error {
			f.Idle(true)
			close(ready)
			<-ctx.Done()
			return nil
		}}},
		Wrap: func(_ string, l ledger.Ledger) ledger.Ledger { calls.Ledger = l; return calls }})
	must(b, err)
	defer func() { must(b, a.Stop(context.Background())) }()
	<-ready
	time.Sleep(time.Second) // leases are taken, connections and metadata settle
	before, cpu, began := calls.n.Load(), cpuTime(b), time.Now()
	time.Sleep(window)
	took := time.Since(began).Seconds()
	b.ReportMetric(100*(cpuTime(b)-cpu).Seconds()/took, "%core")
	b.ReportMetric(float64(calls.n.Load()-before)/took, "ledger-calls/s")
	if n := calls.commits.Load(); n > 0 {
		b.Fatal(fmt.Errorf("%d commits though there was nothing to do", n))
	}
}

// counted counts the calls to a ledger that an engine makes on its own account.
type counted struct {
	ledger.Ledger
	n, commits atomic.Int64
}

func (c *counted) Beat(ctx context.Context, w ledger.Worker, ttl time.Duration) ([]ledger.Fence, error) {
	c.n.Add(1)
	return c.Ledger.Beat(ctx, w, ttl)
}

func (c *counted) Workers(ctx context.Context, ttl time.Duration) ([]ledger.Worker, error) {
	c.n.Add(1)
	return c.Ledger.Workers(ctx, ttl)
}

func (c *counted) Acquire(ctx context.Context, k ledger.Key, topic, owner string, start int64, ttl time.Duration) (ledger.Lease, error) {
	c.n.Add(1)
	return c.Ledger.Acquire(ctx, k, topic, owner, start, ttl)
}

func (c *counted) Release(ctx context.Context, fences ...ledger.Fence) error {
	c.n.Add(1)
	return c.Ledger.Release(ctx, fences...)
}

func (c *counted) Leases(ctx context.Context, group string) ([]ledger.Lease, error) {
	c.n.Add(1)
	return c.Ledger.Leases(ctx, group)
}

func (c *counted) Seen(ctx context.Context, group string, ids []ledger.Identity) ([]*[16]byte, error) {
	c.n.Add(1)
	return c.Ledger.Seen(ctx, group, ids)
}

func (c *counted) Commit(ctx context.Context, batch *ledger.Batch) ([]ledger.Result, error) {
	c.n.Add(1)
	c.commits.Add(1)
	return c.Ledger.Commit(ctx, batch)
}

func (c *counted) Outbox(ctx context.Context, f ledger.Fence, after int64, limit int) ([]ledger.Outgoing, error) {
	c.n.Add(1)
	return c.Ledger.Outbox(ctx, f, after, limit)
}

func (c *counted) Totals(ctx context.Context) (ledger.Totals, error) {
	c.n.Add(1)
	return c.Ledger.Totals(ctx)
}

func (c *counted) Prune(ctx context.Context, seen, recorded time.Duration) (int64, error) {
	c.n.Add(1)
	return c.Ledger.Prune(ctx, seen, recorded)
}
