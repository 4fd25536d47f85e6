// Package telemetry owns the metrics and the log of a process: counters that
// the hot path feeds, a collector that shows a run's status to Prometheus, the
// watch for records that are discarded in silence, and the set-up of slog. It
// imports the ledger's public types and its own sub-packages (status, recent),
// never the engine: the engine states what it wants to count as an interface,
// and Metrics satisfies it.
//
// Nothing here survives a crash. Counters start at 0 in each process, which
// rate() and increase() expect; what must be counted across restarts is
// counted in the ledger's lease rows and shown by the collector as gauges.
//
// docs/metrics.md lists every metric with its unit; deploy/prometheus holds
// alert rules made of them.
package telemetry

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/swarmlog/swarmlog/ledger"
)

// Metrics counts what happens on the hot path. Its methods are safe for
// concurrent use, never block and cost about 0.2 µs.
type Metrics struct {
	records    *prometheus.CounterVec
	dead       *prometheus.CounterVec
	retries    *prometheus.CounterVec
	fenced     *prometheus.CounterVec
	leaseMoves *prometheus.CounterVec
	stepTime   *prometheus.HistogramVec
	published  prometheus.Counter
	throttled  prometheus.Counter
	batchSteps prometheus.Histogram
	batchTime  prometheus.Histogram

	again      *prometheus.GaugeVec // set by Watch
	discarding *prometheus.GaugeVec

	tallies sync.Map // agent → *tally
}

// tally counts an agent's records for Watch, which can't read them from Prometheus' counters.
type tally struct{ delivered, duplicate, retried atomic.Int64 }

func (m *Metrics) tally(agent string) *tally {
	if t, ok := m.tallies.Load(agent); ok {
		return t.(*tally)
	}
	t, _ := m.tallies.LoadOrStore(agent, &tally{})
	return t.(*tally)
}

// NewMetrics makes the counters and registers them. It panics where they are
// registered already, which is a mistake of wiring.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "swarmlog_" + name, Help: help}, labels)
	}
	single := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "swarmlog_" + name, Help: help})
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "swarmlog_" + name, Help: help}, labels)
	}
	m := &Metrics{
		records:    counter("records_total", "Records settled, by outcome; waiting counts entries into the backlog.", "agent", "outcome"),
		dead:       counter("dead_letters_total", "Records dead-lettered.", "agent"),
		retries:    counter("retries_total", "Runs of a step that failed and will run again.", "agent"),
		fenced:     counter("fenced_commits_total", "Steps whose commit was refused since the partition has another owner.", "agent"),
		leaseMoves: counter("lease_moves_total", "Partitions taken and lost.", "agent", "direction"),
		stepTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "swarmlog_step_duration_seconds", Help: "Time of a handler's run, however it ended.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 21), // 1 ms … 17 min
		}, byAgent),
		published: single("published_records_total", "Events published from the outbox."),
		throttled: single("broker_throttle_seconds_total", "Time for which brokers have held this process back by quota."),
		batchSteps: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "swarmlog_commit_batch_steps", Help: "Steps per ledger transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 12), // 1 … 2,048
		}),
		batchTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "swarmlog_commit_duration_seconds", Help: "Time per ledger transaction.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15), // 0.5 ms … 8.2 s
		}),
		again:      gauge("reprocessing_window_ratio", "Duplicates and retries for each record delivered by this process, over the last five minutes.", byAgent...),
		discarding: gauge("silent_discarding", "1 where an agent without lag has mostly dropped duplicates, for five minutes.", byAgent...),
	}
	r.MustRegister(m.records, m.dead, m.retries, m.fenced, m.leaseMoves, m.stepTime, m.published, m.throttled, m.batchSteps, m.batchTime,
		m.again, m.discarding)
	return m
}

// begin makes an agent's counters appear at 0: increase() doesn't see the first event of a counter that begins with it.
func (m *Metrics) begin(agent string) {
	for o := ledger.Applied; o <= ledger.Misrouted; o++ {
		m.records.WithLabelValues(agent, o.String())
	}
	for _, c := range []*prometheus.CounterVec{m.dead, m.retries, m.fenced} {
		c.WithLabelValues(agent)
	}
	m.tally(agent)
}

// Settled counts a record whose outcome is committed.
func (m *Metrics) Settled(agent string, outcome ledger.Outcome) {
	m.records.WithLabelValues(agent, outcome.String()).Inc()
	t := m.tally(agent)
	t.delivered.Add(1)
	switch outcome {
	case ledger.Dead:
		m.dead.WithLabelValues(agent).Inc()
	case ledger.Duplicate:
		t.duplicate.Add(1)
	}
}

// Retried counts a run that failed and will be repeated.
func (m *Metrics) Retried(agent string) {
	m.retries.WithLabelValues(agent).Inc()
	m.tally(agent).retried.Add(1)
}

// Stepped observes a handler's run.
func (m *Metrics) Stepped(agent string, took time.Duration) {
	m.stepTime.WithLabelValues(agent).Observe(took.Seconds())
}

// Fenced counts a step that was dropped since its partition has another owner.
func (m *Metrics) Fenced(agent string) { m.fenced.WithLabelValues(agent).Inc() }

// LeaseTaken counts a partition that this process took.
func (m *Metrics) LeaseTaken(agent string) {
	m.begin(agent)
	m.leaseMoves.WithLabelValues(agent, "taken").Inc()
}

// LeaseLost counts a partition that this process gave up or lost.
func (m *Metrics) LeaseLost(agent string) { m.leaseMoves.WithLabelValues(agent, "lost").Inc() }

// Committed observes one transaction of the ledger.
func (m *Metrics) Committed(steps int, took time.Duration) {
	m.batchSteps.Observe(float64(steps))
	m.batchTime.Observe(took.Seconds())
}

// Published counts events that the broker acknowledged.
func (m *Metrics) Published(records int) { m.published.Add(float64(records)) }

// Throttled counts time for which a broker holds this process back by quota.
func (m *Metrics) Throttled(d time.Duration) { m.throttled.Add(d.Seconds()) }
