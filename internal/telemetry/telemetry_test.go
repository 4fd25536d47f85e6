package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/swarmlog/swarmlog/internal/telemetry"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

func ptr[T any](v T) *T { return &v }

func run() status.Status {
	return status.Status{
		Swarm: "papers", State: status.Running, Documents: 2, Pages: 7,
		Inference: ledger.InferenceTotals{Calls: 14, Reused: 3, InDoubt: 1},
		Agents: []status.Agent{
			{Name: "reader", InFlight: 4, Queued: 9, WeightBytes: 4096, Outcomes: ledger.Counters{Applied: 6, Duplicate: 2, Waiting: 2},
				Partitions: []status.Partition{
					{Topic: "pages", Partition: 0, Epoch: 3, Lag: ptr(int64(5)), LagSeconds: ptr(1.5), Lanes: 2, Parked: 1, Outbox: 8, OutboxSeconds: 0.25, OldestStepSeconds: 2},
				}},
			{Name: "indexer", State: status.AgentStopped, Partitions: []status.Partition{{Topic: "pages", Partition: 1}}},
		},
		Broker: status.Broker{LogBytes: 1 << 20, Health: []string{"slow disk"}},
		Ledger: status.Ledger{Bytes: 1 << 16},
	}
}

func registry(t *testing.T, src status.Source) (*prometheus.Registry, *telemetry.Metrics) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	m := telemetry.NewMetrics(r)
	r.MustRegister(telemetry.NewCollector(src, slog.New(slog.DiscardHandler)))
	return r, m
}

func TestMetricsFollowTheConventions(t *testing.T) {
	r, m := registry(t, status.SourceFunc(func(context.Context) (status.Status, error) { return run(), nil }))
	m.Settled("reader", ledger.Applied)
	m.Retried("reader")
	m.Fenced("reader")
	m.LeaseTaken("reader")
	m.LeaseLost("reader")
	m.Stepped("reader", time.Second)
	m.Throttled(time.Second)
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestHotPathCounts(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	m := telemetry.NewMetrics(r)
	for range 3 {
		m.Settled("reader", ledger.Applied)
	}
	m.Settled("reader", ledger.Dead)
	m.Settled("reader", ledger.Waiting)
	m.Retried("reader")
	m.Fenced("reader")
	m.LeaseTaken("reader")
	m.LeaseTaken("reader")
	m.LeaseLost("reader")
	m.Published(12)
	m.Committed(100, 3*time.Millisecond)
	want := `
# HELP swarmlog_dead_letters_total Records dead-lettered.
# TYPE swarmlog_dead_letters_total counter
swarmlog_dead_letters_total{agent="reader"} 1
# HELP swarmlog_fenced_commits_total Steps whose commit was refused since the partition has another owner.
# TYPE swarmlog_fenced_commits_total counter
swarmlog_fenced_commits_total{agent="reader"} 1
# HELP swarmlog_lease_moves_total Partitions taken and lost.
# TYPE swarmlog_lease_moves_total counter
swarmlog_lease_moves_total{agent="reader",direction="lost"} 1
swarmlog_lease_moves_total{agent="reader",direction="taken"} 2
# HELP swarmlog_published_records_total Events published from the outbox.
# TYPE swarmlog_published_records_total counter
swarmlog_published_records_total 12
# HELP swarmlog_records_total Records settled, by outcome; waiting counts entries into the backlog.
# TYPE swarmlog_records_total counter
swarmlog_records_total{agent="reader",outcome="applied"} 3
swarmlog_records_total{agent="reader",outcome="dead"} 1
swarmlog_records_total{agent="reader",outcome="duplicate"} 0
swarmlog_records_total{agent="reader",outcome="ignored"} 0
swarmlog_records_total{agent="reader",outcome="misrouted"} 0
swarmlog_records_total{agent="reader",outcome="refused"} 0
swarmlog_records_total{agent="reader",outcome="skipped"} 0
swarmlog_records_total{agent="reader",outcome="waiting"} 1
# HELP swarmlog_retries_total Runs of a step that failed and will run again.
# TYPE swarmlog_retries_total counter
swarmlog_retries_total{agent="reader"} 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "swarmlog_dead_letters_total", "swarmlog_fenced_commits_total",
		"swarmlog_lease_moves_total", "swarmlog_published_records_total", "swarmlog_records_total", "swarmlog_retries_total"); err != nil {
		t.Fatal(err)
	}
	if n, err := testutil.GatherAndCount(r, "swarmlog_commit_batch_steps", "swarmlog_commit_duration_seconds"); err != nil || n != 2 {
		t.Fatalf("%d histograms of commits, error %v; want 2", n, err)
	}
}

func TestCollectorShowsTheStatusAndLeavesOutWhatIsUnknown(t *testing.T) {
	r, _ := registry(t, status.SourceFunc(func(context.Context) (status.Status, error) { return run(), nil }))
	want := `
# HELP swarmlog_agent_stopped 1 where the agent won't go on before a restart.
# TYPE swarmlog_agent_stopped gauge
swarmlog_agent_stopped{agent="indexer"} 1
swarmlog_agent_stopped{agent="reader"} 0
# HELP swarmlog_inference_calls_total Requests sent to models, since the ledger began.
# TYPE swarmlog_inference_calls_total counter
swarmlog_inference_calls_total 14
# HELP swarmlog_lag_records Records not finished.
# TYPE swarmlog_lag_records gauge
swarmlog_lag_records{agent="reader",partition="0",topic="pages"} 5
# HELP swarmlog_lag_seconds Age of the oldest record that isn't finished.
# TYPE swarmlog_lag_seconds gauge
swarmlog_lag_seconds{agent="reader",partition="0",topic="pages"} 1.5
# HELP swarmlog_outbox_age_seconds Age of the oldest event in the outbox.
# TYPE swarmlog_outbox_age_seconds gauge
swarmlog_outbox_age_seconds{agent="indexer",partition="1",topic="pages"} 0
swarmlog_outbox_age_seconds{agent="reader",partition="0",topic="pages"} 0.25
# HELP swarmlog_reprocessing_ratio Duplicates among records delivered, since the ledger began.
# TYPE swarmlog_reprocessing_ratio gauge
swarmlog_reprocessing_ratio{agent="indexer"} 0
swarmlog_reprocessing_ratio{agent="reader"} 0.2
# HELP swarmlog_status_up 1 where the run's status could be read.
# TYPE swarmlog_status_up gauge
swarmlog_status_up 1
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "swarmlog_agent_stopped", "swarmlog_inference_calls_total",
		"swarmlog_lag_records", "swarmlog_lag_seconds", "swarmlog_outbox_age_seconds", "swarmlog_reprocessing_ratio", "swarmlog_status_up",
		"swarmlog_remaining_records"); err != nil {
		t.Fatal(err)
	}
}

func TestCollectorSaysThatTheStatusIsGone(t *testing.T) {
	r, m := registry(t, status.SourceFunc(func(context.Context) (status.Status, error) { return status.Status{}, errors.New("locked") }))
	m.Settled("reader", ledger.Applied)
	want := `
# HELP swarmlog_records_total Records settled, by outcome; waiting counts entries into the backlog.
# TYPE swarmlog_records_total counter
swarmlog_records_total{agent="reader",outcome="applied"} 1
# HELP swarmlog_status_up 1 where the run's status could be read.
# TYPE swarmlog_status_up gauge
swarmlog_status_up 0
`
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), "swarmlog_status_up", "swarmlog_pages", "swarmlog_records_total"); err != nil {
		t.Fatal(err)
	}
}

func TestLogger(t *testing.T) {
	var b bytes.Buffer
	log, level, err := telemetry.NewLogger(&b, "warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("loud")
	level.Set(slog.LevelDebug)
	log.Debug("now too")
	if got := b.String(); strings.Contains(got, "quiet") || !strings.Contains(got, `"msg":"loud"`) || !strings.Contains(got, `"msg":"now too"`) {
		t.Errorf("log is %s", got)
	}

	b.Reset()
	log, _, err = telemetry.NewLogger(&b, "", "")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("file", "name", "a\x1b[2Jb\nc")
	if strings.ContainsAny(strings.TrimSuffix(b.String(), "\n"), "\x1b\n") {
		t.Errorf("control characters reach the terminal: %q", b.String())
	}

	for _, bad := range [][2]string{{"loud", ""}, {"", "xml"}} {
		if _, _, err := telemetry.NewLogger(&b, bad[0], bad[1]); err == nil || !strings.Contains(err.Error(), "write ") {
			t.Errorf("%v gives %v, want an error that says what to write", bad, err)
		}
	}
}

func BenchmarkSettled(b *testing.B) {
	m := telemetry.NewMetrics(prometheus.NewRegistry())
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			m.Settled("reader", ledger.Applied)
		}
	})
}
