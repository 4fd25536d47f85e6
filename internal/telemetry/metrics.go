// Package telemetry owns the metrics and the log of a process: counters that
// the hot path feeds, a collector that shows a run's status to Prometheus, and
// the set-up of slog. It imports the ledger's public types and its own
// sub-packages (status, recent), never the engine: the engine states
// what it wants to count as an interface, and Metrics satisfies it.
//
// Nothing here survives a crash. Counters start at 0 in each process, which
// rate() and increase() expect; what must be counted across restarts is
// counted in the ledger's lease rows and shown by the collector as gauges.
//
// # Metrics
//
// Names follow the Prometheus conventions: base units, _total on counters.
// Fed from the hot path, per process:
//
//	swarmlog_records_total{agent,outcome}       records settled: applied, duplicate, refused, skipped, ignored, dead; waiting counts entries into the backlog
//	swarmlog_dead_letters_total{agent}          records dead-lettered
//	swarmlog_retries_total{agent}               runs of a step that failed and will run again
//	swarmlog_fenced_commits_total{agent}        steps refused since the partition has another owner
//	swarmlog_lease_moves_total{agent,direction} partitions taken and lost
//	swarmlog_published_records_total            events published from the outbox
//	swarmlog_commit_batch_steps                 steps per ledger transaction (histogram)
//	swarmlog_commit_duration_seconds            time per ledger transaction (histogram)
//
// Read from the run's status when Prometheus asks:
//
//	swarmlog_run_state{state}                   1 for the state that the run is in, 0 for the others
//	swarmlog_documents, swarmlog_pages          documents found, pages done
//	swarmlog_remaining_records                  records known and not settled; absent while unknown
//	swarmlog_lag_records{agent,topic,partition} records not finished; absent while unknown
//	swarmlog_lag_seconds{agent,topic,partition} age of the oldest of them; absent while unknown
//	swarmlog_lanes{agent,topic,partition}       aggregates with queued or running records
//	swarmlog_parked_aggregates{…}               aggregates that wait behind a dead record
//	swarmlog_outbox_rows{…}                     events committed and not yet published
//	swarmlog_outbox_age_seconds{…}              age of the oldest of them
//	swarmlog_oldest_step_seconds{…}             age of the oldest running step
//	swarmlog_lease_epoch{…}                     epoch of the lease; it rises with each owner
//	swarmlog_steps_in_flight{agent}             steps that run now
//	swarmlog_queued_records{agent}              records in lanes
//	swarmlog_weight_in_flight_bytes{agent}      weight held by running and queued steps
//	swarmlog_waiting_records{agent}             records in the backlog
//	swarmlog_agent_stopped{agent}               1 where the agent won't go on before a restart
//	swarmlog_reprocessing_ratio{agent}          duplicates / delivered since the ledger began; no lag together with a high ratio is an alarm
//	swarmlog_inference_calls_total              requests sent to models, since the ledger began
//	swarmlog_inference_reused_total             answered from a record instead, since the ledger began
//	swarmlog_inference_in_doubt_total           sent again since an earlier attempt's end is unknown, since the ledger began
//	swarmlog_broker_log_bytes, swarmlog_ledger_bytes  sizes on disk
//	swarmlog_broker_problems                    what is wrong with the broker, as a count
//	swarmlog_status_up                          0 where the status couldn't be read; the rest of this list is absent then
//
// The ratio over a window is a query:
//
//	rate(swarmlog_records_total{outcome="duplicate"}[5m]) / on(agent) sum by (agent) (rate(swarmlog_records_total[5m]))
package telemetry

import (
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
	published  prometheus.Counter
	batchSteps prometheus.Histogram
	batchTime  prometheus.Histogram
}

// NewMetrics makes the counters and registers them. It panics where they are
// registered already, which is a mistake of wiring.
func NewMetrics(r prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "swarmlog_" + name, Help: help}, labels)
	}
	m := &Metrics{
		records:    counter("records_total", "Records settled, by outcome; waiting counts entries into the backlog.", "agent", "outcome"),
		dead:       counter("dead_letters_total", "Records dead-lettered.", "agent"),
		retries:    counter("retries_total", "Runs of a step that failed and will run again.", "agent"),
		fenced:     counter("fenced_commits_total", "Steps whose commit was refused since the partition has another owner.", "agent"),
		leaseMoves: counter("lease_moves_total", "Partitions taken and lost.", "agent", "direction"),
		published: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "swarmlog_published_records_total", Help: "Events published from the outbox.",
		}),
		batchSteps: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "swarmlog_commit_batch_steps", Help: "Steps per ledger transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 12), // 1 … 2,048
		}),
		batchTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "swarmlog_commit_duration_seconds", Help: "Time per ledger transaction.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 15), // 0.5 ms … 8.2 s
		}),
	}
	r.MustRegister(m.records, m.dead, m.retries, m.fenced, m.leaseMoves, m.published, m.batchSteps, m.batchTime)
	return m
}

// Settled counts a record whose outcome is committed.
func (m *Metrics) Settled(agent string, outcome ledger.Outcome) {
	m.records.WithLabelValues(agent, outcome.String()).Inc()
	if outcome == ledger.Dead {
		m.dead.WithLabelValues(agent).Inc()
	}
}

// Retried counts a run that failed and will be repeated.
func (m *Metrics) Retried(agent string) { m.retries.WithLabelValues(agent).Inc() }

// Fenced counts a step that was dropped since its partition has another owner.
func (m *Metrics) Fenced(agent string) { m.fenced.WithLabelValues(agent).Inc() }

// LeaseTaken counts a partition that this process took.
func (m *Metrics) LeaseTaken(agent string) { m.leaseMoves.WithLabelValues(agent, "taken").Inc() }

// LeaseLost counts a partition that this process gave up or lost.
func (m *Metrics) LeaseLost(agent string) { m.leaseMoves.WithLabelValues(agent, "lost").Inc() }

// Committed observes one transaction of the ledger.
func (m *Metrics) Committed(steps int, took time.Duration) {
	m.batchSteps.Observe(float64(steps))
	m.batchTime.Observe(took.Seconds())
}

// Published counts events that the broker acknowledged.
func (m *Metrics) Published(records int) { m.published.Add(float64(records)) }
