package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/internal/route"
)

const (
	partitions = 8
	aggregates = 1000
	topicIn    = "bench.in"
	topicOut   = "bench.out"
	agentName  = "noter"
)

// pair is the embedded broker, on disk, and a client of it, as `swarmlog up` has them; a ledger is made for each run.
type pair struct {
	dir    string
	broker *kafka.Broker
	in     broker.Topic
}

// newPair starts a broker with the benchmark's topics in a folder of its own.
func newPair(b *testing.B) *pair {
	b.Helper()
	dir := b.TempDir()
	server, err := embedded.Start(b.Context(), embedded.Options{Dir: filepath.Join(dir, "log")})
	must(b, err)
	b.Cleanup(func() { must(b, server.Close()) })
	k, err := kafka.Open(b.Context(), kafka.Options{Seeds: []string{server.Addr()}, OneInflight: true, Uncompressed: true})
	must(b, err)
	b.Cleanup(k.Close)
	for _, name := range []string{topicIn, topicOut} {
		must(b, k.Create(b.Context(), broker.TopicSpec{Name: name, Partitions: partitions},
			broker.TopicSpec{Name: engine.DeadTopic(name), Partitions: partitions}))
	}
	topics, err := k.Topics(b.Context(), topicIn, topicOut)
	must(b, err)
	return &pair{dir: dir, broker: k, in: topics[0]}
}

// openLedger makes a new, empty ledger on disk; close removes it.
func (p *pair) openLedger(b *testing.B) (db *sqlite.DB, path string, remove func()) {
	b.Helper()
	dir, err := os.MkdirTemp(p.dir, "ledger-")
	must(b, err)
	path = filepath.Join(dir, "ledger.db")
	db, err = sqlite.Open(b.Context(), path, sqlite.Options{})
	must(b, err)
	return db, path, func() {
		must(b, db.Close())
		must(b, os.RemoveAll(dir))
	}
}

// fill publishes n events and returns once all are acknowledged: as many of each aggregate, in a random order that is
// the same in each run. With counts that differ the last commits would hold the longest aggregates' events alone, and
// the figure would tell of the log's end.
func (p *pair) fill(b *testing.B, n int) {
	b.Helper()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
	)
	wg.Add(n)
	for i, at := range rand.New(rand.NewPCG(1, 2)).Perm(n) {
		p.broker.Publisher().Publish(p.record(b, i, at%aggregates), func(_ int64, err error) {
			mu.Lock()
			first = errors.Join(first, err)
			mu.Unlock()
			wg.Done()
		})
	}
	wg.Wait()
	must(b, first)
}

// record is the nth event, about an aggregate.
func (p *pair) record(b *testing.B, n, aggregate int) broker.Record {
	b.Helper()
	m, err := newEvent(n, aggregate).Encode()
	must(b, err)
	return broker.Record{Message: m, Position: event.Position{Topic: topicIn, Partition: route.Partition(m.Key, partitions)}}
}

// note is the events' data: about 200 bytes of JSON.
type note struct {
	Document string   `json:"document"`
	Page     int      `json:"page"`
	Summary  string   `json:"summary"`
	Terms    []string `json:"terms"`
}

func newEvent(n, aggregate int) event.Event {
	sum := sha256.Sum256(fmt.Appendf(nil, "event %d", n)) // ids in no order, as derived ones are
	e := event.New("PageReadEvent", fmt.Sprintf("document-%04d", aggregate), note{
		Document: fmt.Sprintf("reports/2026/document-%04d.pdf", aggregate), Page: n,
		Summary: "Of two loops that do the same work the quicker is the one that waits less, not the one that works less.",
		Terms:   []string{"loop", "work", "wait"},
	})
	e.ID, e.Source, e.Time = hex.EncodeToString(sum[:13]), "//bench/producer", time.Unix(1_700_000_000, 0).Add(time.Duration(n)*time.Millisecond)
	return e
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// cpuTime is what this process has used of the processor.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// median sorts the values.
func median[T int64 | float64 | time.Duration](values []T) T { return quantile(values, 0.5) }

// quantile sorts the values.
func quantile[T int64 | float64 | time.Duration](values []T, q float64) T {
	slices.Sort(values)
	return values[min(len(values)-1, int(q*float64(len(values))))]
}

// runEngine starts an engine; stop drains it.
func runEngine(b *testing.B, o engine.Options, sources []engine.Source, agents ...engine.Agent) (stop func()) {
	b.Helper()
	e, err := engine.New(o, agents, sources)
	must(b, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	return func() {
		cancel()
		must(b, <-done)
		for name, err := range e.Failed() {
			b.Fatalf("agent %s: %v", name, err)
		}
	}
}
