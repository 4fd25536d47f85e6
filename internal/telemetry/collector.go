package telemetry

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/swarmlog/swarmlog/internal/telemetry/status"
)

// scrapeLimit bounds how long a scrape waits for the status: Prometheus gives up after 10 s by default.
const scrapeLimit = 5 * time.Second

var (
	byAgent     = []string{"agent"}
	byPartition = []string{"agent", "topic", "partition"}
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("swarmlog_"+name, help, labels, nil)
}

var (
	statusUp       = desc("status_up", "1 where the run's status could be read.")
	runState       = desc("run_state", "1 for the state that the run is in.", "state")
	documents      = desc("documents", "Documents found and split.")
	pages          = desc("pages", "Pages whose effects are all committed.")
	remaining      = desc("remaining_records", "Records known and not settled.")
	lagRecords     = desc("lag_records", "Records not finished.", byPartition...)
	lagSeconds     = desc("lag_seconds", "Age of the oldest record that isn't finished.", byPartition...)
	lanes          = desc("lanes", "Aggregates with queued or running records.", byPartition...)
	laneDepth      = desc("lane_depth_records", "Records in the longest lane.", byPartition...)
	parked         = desc("parked_aggregates", "Aggregates that wait in the backlog.", byPartition...)
	backlogRows    = desc("backlog_rows", "Records that wait in the backlog of the whole swarm, dead heads included.")
	deadHeads      = desc("dead_heads", "Aggregates of the whole swarm that wait behind a dead record, for a person.")
	outboxRows     = desc("outbox_rows", "Events committed and not yet published.", byPartition...)
	outboxAge      = desc("outbox_age_seconds", "Age of the oldest event in the outbox.", byPartition...)
	oldestStep     = desc("oldest_step_seconds", "Age of the oldest running step.", byPartition...)
	stepLimit      = desc("step_limit_seconds", "How long a step may run.", byAgent...)
	leaseEpoch     = desc("lease_epoch", "Epoch of the lease.", byPartition...)
	inFlight       = desc("steps_in_flight", "Steps that run now.", byAgent...)
	queued         = desc("queued_records", "Records in lanes.", byAgent...)
	weight         = desc("weight_in_flight_bytes", "Weight held by running and queued steps.", byAgent...)
	waiting        = desc("waiting_records", "Records in the backlog.", byAgent...)
	lateGaps       = desc("late_gaps", "Aggregates that wait for a missing event for longer than the agent's gap_wait.", byAgent...)
	drainTime      = desc("drain_seconds", "How long running steps may go on when the run is told to end.")
	paused         = desc("agent_paused", "1 where a person has paused the agent.", byAgent...)
	circuit        = desc("circuit_open", "1 where the agent waits for a dependency that failed.", "agent", "dependency")
	stopped        = desc("agent_stopped", "1 where the agent won't go on before a restart.", byAgent...)
	reprocessing   = desc("reprocessing_ratio", "Duplicates among records delivered, since the ledger began.", byAgent...)
	calls          = desc("inference_calls_total", "Requests sent to models, since the ledger began.")
	reused         = desc("inference_reused_total", "Model answers taken from a record, since the ledger began.")
	inDoubt        = desc("inference_in_doubt_total", "Requests sent again since an earlier attempt's end is unknown, since the ledger began.")
	journalDropped = desc("journal_dropped_total", "Events that this process couldn't append to the journal.")
	brokerBytes    = desc("broker_log_bytes", "Size of the broker's log on disk.")
	brokerProblems = desc("broker_problems", "Number of things that are wrong with the broker.")
	ledgerBytes    = desc("ledger_bytes", "Size of the ledger on disk.")
)

// NewCollector makes a collector of the run's status, asked at each scrape.
func NewCollector(source status.Source, log *slog.Logger) prometheus.Collector {
	return &collector{source: source, log: log}
}

type collector struct {
	source status.Source
	log    *slog.Logger
}

// Describe names every metric, so that two collectors of one process are told apart at registration.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{statusUp, runState, documents, pages, remaining, lagRecords, lagSeconds, lanes, laneDepth, parked,
		backlogRows, deadHeads, stepLimit,
		outboxRows, outboxAge, oldestStep, leaseEpoch, inFlight, queued, weight, waiting, lateGaps, drainTime, paused, circuit, stopped, reprocessing,
		calls, reused, inDoubt, journalDropped, brokerBytes, brokerProblems, ledgerBytes} {
		ch <- d
	}
}

// Collect asks the source once. A source that fails makes status_up 0; the counters of the hot path still go out.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeLimit)
	defer cancel()
	s, err := c.source.Status(ctx)
	out := sink(ch)
	if err != nil {
		c.log.Warn("metrics go out without the run's status", "error", err)
		out.gauge(statusUp, 0)
		return
	}
	s.Complete()
	out.gauge(statusUp, 1)
	out.run(&s)
	for i := range s.Agents {
		out.agent(&s.Agents[i])
	}
}

type sink chan<- prometheus.Metric

func (out sink) gauge(d *prometheus.Desc, v float64, labels ...string) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (out sink) counter(d *prometheus.Desc, v float64) {
	out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
}

func (out sink) run(s *status.Status) {
	for _, state := range []status.State{status.Starting, status.Running, status.Draining, status.Idle, status.Failed} {
		out.gauge(runState, oneIf(s.State == state), string(state))
	}
	out.gauge(documents, float64(s.Documents))
	out.gauge(pages, float64(s.Pages))
	if s.Remaining != nil {
		out.gauge(remaining, float64(*s.Remaining))
	}
	out.gauge(backlogRows, float64(s.BacklogRows))
	out.gauge(deadHeads, float64(s.ParkedAggregates))
	out.counter(calls, float64(s.Inference.Calls))
	out.counter(reused, float64(s.Inference.Reused))
	out.counter(inDoubt, float64(s.Inference.InDoubt))
	if s.DrainSeconds > 0 {
		out.gauge(drainTime, s.DrainSeconds)
	}
	out.counter(journalDropped, float64(s.JournalDropped))
	out.gauge(brokerBytes, float64(s.Broker.LogBytes))
	out.gauge(brokerProblems, float64(len(s.Broker.Health)))
	out.gauge(ledgerBytes, float64(s.Ledger.Bytes))
}

func (out sink) agent(a *status.Agent) {
	out.gauge(inFlight, float64(a.InFlight), a.Name)
	out.gauge(queued, float64(a.Queued), a.Name)
	out.gauge(weight, float64(a.WeightBytes), a.Name)
	out.gauge(waiting, float64(a.Outcomes.Waiting), a.Name)
	out.gauge(lateGaps, float64(a.LateGaps), a.Name)
	out.gauge(paused, oneIf(a.Paused), a.Name)
	for _, c := range a.Circuits {
		out.gauge(circuit, oneIf(c.Open), a.Name, c.Dependency)
	}
	out.gauge(stopped, oneIf(a.State == status.AgentStopped), a.Name)
	if a.StepLimitSeconds > 0 {
		out.gauge(stepLimit, a.StepLimitSeconds, a.Name)
	}
	var ratio float64
	if delivered := a.Outcomes.Delivered(); delivered > 0 {
		ratio = float64(a.Outcomes.Duplicate) / float64(delivered)
	}
	out.gauge(reprocessing, ratio, a.Name)
	for _, p := range a.Partitions {
		labels := []string{a.Name, p.Topic, strconv.Itoa(int(p.Partition))}
		if p.Lag != nil {
			out.gauge(lagRecords, float64(*p.Lag), labels...)
		}
		if p.LagSeconds != nil {
			out.gauge(lagSeconds, *p.LagSeconds, labels...)
		}
		out.gauge(lanes, float64(p.Lanes), labels...)
		out.gauge(laneDepth, float64(p.LaneDepth), labels...)
		out.gauge(parked, float64(p.Parked), labels...)
		out.gauge(outboxRows, float64(p.Outbox), labels...)
		out.gauge(outboxAge, p.OutboxSeconds, labels...)
		out.gauge(oldestStep, p.OldestStepSeconds, labels...)
		out.gauge(leaseEpoch, float64(p.Epoch), labels...)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
