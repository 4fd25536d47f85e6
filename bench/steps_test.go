package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/telemetry"
	"github.com/swarmlog/swarmlog/ledger"
)

// effect is a step's SQL: one row. Keyed by a text, as most tables are, or appended to a table without any key,
// the least that SQL can do.
type effect struct{ name, table, insert string }

var (
	keyed = effect{"keyed", "CREATE TABLE notes (id TEXT PRIMARY KEY, subject TEXT NOT NULL, body TEXT NOT NULL) WITHOUT ROWID",
		"INSERT INTO notes (id, subject, body) VALUES ($1, $2, $3)"}
	appended = effect{"appended", "CREATE TABLE notes (id TEXT NOT NULL, subject TEXT NOT NULL, body TEXT NOT NULL)",
		"INSERT INTO notes (id, subject, body) VALUES ($1, $2, $3)"}
)

// run is one contender's result.
type run struct {
	took  time.Duration
	cpu   time.Duration // of the process: broker, contender and garbage collection
	batch float64       // steps per commit
}

// clock measures a contender.
type clock struct {
	b       *testing.B
	started time.Time
	cpu     time.Duration
}

func startClock(b *testing.B) clock { return clock{b, time.Now(), cpuTime(b)} }

func (c clock) stop(batch float64) run {
	return run{time.Since(c.started), cpuTime(c.b) - c.cpu, batch}
}

// BenchmarkSteps takes the same records through three contenders, in turn:
//
//   - engine: leases, lanes, one handler a record, group commit, relay;
//   - hand: a loop that fetches the same records and commits the same steps through the same ledger, in batches of the
//     size that the engine reached, without lanes: the same book-keeping and the same promises but for order under
//     failure and steps side by side;
//   - bare: a loop that writes each effect and one offset a partition in plain SQL, in batches of that size: no
//     book-keeping but progress.
//
// The clock of each runs from its first fetched record to its last commit, or acknowledgement of what it emitted.
func BenchmarkSteps(b *testing.B) {
	for _, v := range []struct {
		effect effect
		emits  int
	}{{keyed, 0}, {appended, 0}, {keyed, 1}} {
		b.Run(fmt.Sprintf("effect=%s/emits=%d", v.effect.name, v.emits), func(b *testing.B) {
			benchSteps(b, v.effect, v.emits)
		})
	}
}

func benchSteps(b *testing.B, e effect, emits int) {
	n := 30_000
	if testing.Short() {
		n = 10_000
	}
	p := newPair(b)
	p.fill(b, n)
	contenders := []string{"engine", "hand"}
	if emits == 0 {
		contenders = append(contenders, "bare")
	}
	rates, costs, ratios := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	var sizes []float64
	for b.Loop() {
		first := p.engine(b, e, n, emits)
		sizes = append(sizes, first.batch)
		for _, name := range contenders {
			r := first
			switch size := max(1, int(first.batch+0.5)); name {
			case "hand":
				r = p.hand(b, e, n, emits, size)
			case "bare":
				r = p.bare(b, e, n, size)
			}
			rates[name] = append(rates[name], float64(n)/r.took.Seconds())
			costs[name] = append(costs[name], float64(r.cpu.Microseconds())/float64(n))
			ratios[name] = append(ratios[name], 100*r.took.Seconds()/first.took.Seconds())
		}
	}
	b.ReportMetric(0, "ns/op") // of all contenders together: says nothing
	b.ReportMetric(median(sizes), "steps/commit")
	for _, name := range contenders {
		b.ReportMetric(median(rates[name]), name+"-steps/s")
		b.ReportMetric(median(costs[name]), name+"-cpu-µs/step")
		if name != "engine" {
			b.ReportMetric(median(ratios[name]), "engine/"+name+"-%")
		}
	}
}

// meter is the process's own metrics, and notes the end of the work.
type meter struct {
	*telemetry.Metrics
	steps, published   int64
	settled, out       atomic.Int64
	commits, committed atomic.Int64
	done               chan struct{}
}

func newMeter(steps, published int) *meter {
	return &meter{Metrics: telemetry.NewMetrics(prometheus.NewRegistry()), steps: int64(steps), published: int64(published),
		done: make(chan struct{})}
}

func (m *meter) Settled(agent string, o ledger.Outcome) {
	m.Metrics.Settled(agent, o)
	if m.settled.Add(1) == m.steps && m.published == 0 {
		close(m.done)
	}
}

func (m *meter) Committed(steps int, took time.Duration) {
	m.Metrics.Committed(steps, took)
	if steps > 0 {
		m.commits.Add(1)
		m.committed.Add(int64(steps))
	}
}

func (m *meter) Published(n int) {
	m.Metrics.Published(n)
	if m.published > 0 && m.out.Add(int64(n)) == m.published {
		close(m.done)
	}
}

// gated is a broker whose readers poll once all partitions were added. The engine adds them as it takes its leases, one
// after the other, while a fetch may already wait for more of the first ones: that is how it starts, and not its pace.
type gated struct{ broker.Broker }

func (g gated) Reader(name string) (broker.Reader, error) {
	r, err := g.Broker.Reader(name)
	return &gatedReader{Reader: r, open: make(chan struct{})}, err
}

type gatedReader struct {
	broker.Reader
	added atomic.Int32
	open  chan struct{}
}

func (g *gatedReader) Add(t broker.Topic, partition int32, offset int64) {
	g.Reader.Add(t, partition, offset)
	if g.added.Add(1) == partitions {
		close(g.open)
	}
}

func (g *gatedReader) Poll(ctx context.Context) ([]broker.Fetch, error) {
	select {
	case <-g.open:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return g.Reader.Poll(ctx)
}

// engine is the engine, with the options that `swarmlog up` gives it.
func (p *pair) engine(b *testing.B, e effect, n, emits int) run {
	db, _, remove := p.openLedger(b)
	defer remove()
	m := newMeter(n, n*emits)
	var (
		once sync.Once
		c    clock
	)
	stop := runEngine(b, engine.Options{Swarm: "bench", Worker: "local-1", Ledger: db, Broker: gated{p.broker}, Meter: m}, nil, engine.Agent{
		Name: agentName, Reads: []string{topicIn}, Emits: []string{topicOut},
		Setup: e.create,
		Handle: func(_ context.Context, ev event.Event, s *engine.Step) error {
			once.Do(func() { c = startClock(b) })
			s.Tx(e.write(ev))
			if emits > 0 {
				s.Emit(emitted(ev))
			}
			return nil
		},
	})
	<-m.done
	r := c.stop(float64(m.committed.Load()) / float64(m.commits.Load()))
	stop()
	if got := m.settled.Load(); got != int64(n) {
		b.Fatalf("%d steps settled, expected %d", got, n)
	}
	return r
}

// create makes the effect's table.
func (e effect) create(ctx context.Context, tx ledger.Tx) error {
	_, err := tx.Exec(ctx, e.table)
	return err
}

// write is the effect of an event.
func (e effect) write(ev event.Event) func(context.Context, ledger.Tx) error {
	return func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, e.insert, ev.ID, ev.Subject, string(ev.Data))
		return err
	}
}

// emitted is what a step emits about an event.
func emitted(ev event.Event) event.Event {
	out := event.New("NoteTakenEvent", ev.Subject, nil)
	out.DataContentType, out.Data = "application/json", ev.Data
	return out
}
