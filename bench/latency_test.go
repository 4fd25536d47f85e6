package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
)

const latencyRate = 1000 // records a second

// BenchmarkLatency publishes at a steady rate, however long answers take (an open loop), and measures each record from
// the moment when it was due. A raw reader and the engine read the same records at the same time:
//
//   - raw: until a reader's Poll has returned it;
//   - handler: until the engine has called the handler;
//   - over-raw: the handler's p99 less the raw one;
//   - inside: from the return of the engine's own Poll to the handler's call, which is the engine's share alone.
//
// It runs with as many processors of Go's scheduler (GOMAXPROCS) as the machine has cores, and with two more: broker
// and ledger sync the disk in this process, and a goroutine in such a call keeps its processor until the scheduler
// notices, for up to 10 ms.
func BenchmarkLatency(b *testing.B) {
	warm, n := latencyRate/2, 3*latencyRate
	if testing.Short() {
		n = latencyRate
	}
	for _, spare := range []int{0, 2} {
		b.Run(fmt.Sprintf("spare-procs=%d", spare), func(b *testing.B) {
			before := runtime.GOMAXPROCS(0)
			runtime.GOMAXPROCS(before + spare)
			defer runtime.GOMAXPROCS(before)
			for b.Loop() {
				latency(b, warm, n)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func latency(b *testing.B, warm, n int) {
	p := newPair(b)
	db, _, remove := p.openLedger(b)
	defer remove()
	due, raw, polled, handled := newMoments(), newMoments(), newMoments(), newMoments()

	m := newMeter(warm+n, 0)
	stop := runEngine(b, engine.Options{Swarm: "bench", Worker: "local-1", Ledger: db, Broker: clocked{p.broker, polled}, Meter: m}, nil, engine.Agent{
		Name: agentName, Reads: []string{topicIn},
		Setup: keyed.create,
		Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			handled.note(s.Position(), time.Now())
			s.Tx(keyed.write(e))
			return nil
		},
	})
	reader, err := clocked{p.broker, raw}.Reader("bench.raw")
	must(b, err)
	for part := range p.in.Partitions {
		reader.Add(p.in, part, 0)
	}
	reading, stopReading := context.WithCancel(b.Context())
	var readers sync.WaitGroup
	readers.Go(func() {
		for reading.Err() == nil {
			_, _ = reader.Poll(reading)
		}
	})

	p.steadily(b, warm+n, func(i int, at event.Position, when time.Time) {
		if i >= warm {
			due.note(at, when)
		}
	})
	<-m.done
	stop()
	for deadline := time.Now().Add(10 * time.Second); raw.len() < warm+n && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	stopReading()
	readers.Wait()
	reader.Close()

	fetch, handler, inside := due.until(b, raw), due.until(b, handled), due.between(b, polled, handled)
	b.ReportMetric(micros(quantile(fetch, 0.5)), "raw-p50-µs")
	b.ReportMetric(micros(quantile(fetch, 0.99)), "raw-p99-µs")
	b.ReportMetric(micros(quantile(handler, 0.5)), "handler-p50-µs")
	b.ReportMetric(micros(quantile(handler, 0.99)), "handler-p99-µs")
	b.ReportMetric(micros(quantile(handler, 0.99)-quantile(fetch, 0.99)), "over-raw-p99-µs")
	b.ReportMetric(micros(quantile(inside, 0.5)), "inside-p50-µs")
	b.ReportMetric(micros(quantile(inside, 0.99)), "inside-p99-µs")
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// steadily publishes n events at the rate and returns once all are acknowledged. note gets each one's number, place
// and due time.
func (p *pair) steadily(b *testing.B, n int, note func(i int, at event.Position, when time.Time)) {
	b.Helper()
	records := make([]broker.Record, n)
	for i := range records {
		records[i] = p.record(b, i, i%aggregates)
	}
	var acks sync.WaitGroup
	acks.Add(n)
	start := time.Now().Add(50 * time.Millisecond)
	for i, r := range records {
		when := start.Add(time.Duration(i) * time.Second / latencyRate)
		time.Sleep(time.Until(when))
		p.broker.Publisher().Publish(r, func(offset int64, err error) {
			defer acks.Done()
			if err != nil {
				b.Error(err)
				return
			}
			note(i, event.Position{Topic: r.Topic, Partition: r.Partition, Offset: offset}, when)
		})
	}
	acks.Wait()
}

// moments are when something happened to records.
type moments struct {
	mu sync.Mutex
	at map[event.Position]time.Time
}

func newMoments() *moments { return &moments{at: map[event.Position]time.Time{}} }

// note keeps the first moment of a record.
func (m *moments) note(p event.Position, t time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.at[p]; !ok {
		m.at[p] = t
	}
}

func (m *moments) len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.at)
}

// until is the time from each moment to the same record's in end.
func (m *moments) until(b *testing.B, end *moments) []time.Duration { return m.between(b, m, end) }

// between is the time from start to end, of the records that m knows.
func (m *moments) between(b *testing.B, start, end *moments) []time.Duration {
	b.Helper()
	all := make([]time.Duration, 0, len(m.at))
	for p := range m.at {
		from, ok := start.at[p]
		to, ok2 := end.at[p]
		if !ok || !ok2 {
			b.Fatalf("record at %s was missed", p)
		}
		all = append(all, to.Sub(from))
	}
	if len(all) == 0 {
		b.Fatal(fmt.Errorf("no record was measured"))
	}
	return all
}

// clocked is a broker whose readers note when Poll returned each record.
type clocked struct {
	broker.Broker
	polled *moments
}

func (c clocked) Reader(name string) (broker.Reader, error) {
	r, err := c.Broker.Reader(name)
	return clockedReader{r, c.polled}, err
}

type clockedReader struct {
	broker.Reader
	polled *moments
}

func (c clockedReader) Poll(ctx context.Context) ([]broker.Fetch, error) {
	fetches, err := c.Reader.Poll(ctx)
	now := time.Now()
	for _, f := range fetches {
		for i := range f.Records {
			c.polled.note(f.Records[i].Position, now)
		}
	}
	return fetches, err
}
