package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

// scene is a watched agent: what it's fed each ten seconds, and how far it is behind.
type scene struct {
	*Watch
	metrics    *Metrics
	logged     *bytes.Buffer
	lag        int64
	lagSeconds float64
	err        error
	now        time.Time
}

func newScene() *scene {
	s := &scene{metrics: NewMetrics(prometheus.NewPedanticRegistry()), logged: &bytes.Buffer{}, now: time.Unix(1_000_000, 0)}
	s.Watch = NewWatch(s.metrics, status.SourceFunc(func(context.Context) (status.Status, error) {
		return status.Status{Agents: []status.Agent{{Name: "reader", Partitions: []status.Partition{{Lag: &s.lag, LagSeconds: &s.lagSeconds}}}}}, s.err
	}), slog.New(slog.NewTextHandler(s.logged, nil)))
	return s
}

// pass lets time go by, in steps of ten seconds, with so many records in each.
func (s *scene) pass(ctx context.Context, d time.Duration, applied, duplicate, retried int) {
	for range int(d / watchEvery) {
		for range applied {
			s.metrics.Settled("reader", ledger.Applied)
		}
		for range duplicate {
			s.metrics.Settled("reader", ledger.Duplicate)
		}
		for range retried {
			s.metrics.Retried("reader")
		}
		s.now = s.now.Add(watchEvery)
		s.look(ctx, s.now)
	}
}

func (s *scene) alarm() bool {
	return testutil.ToFloat64(s.metrics.discarding.WithLabelValues("reader")) == 1
}

func TestSilentDiscardingIsToldOncePerOnset(t *testing.T) {
	t.Parallel()
	s := newScene()
	s.metrics.LeaseTaken("reader")
	s.pass(t.Context(), 10*time.Second, 0, 0, 0)
	s.pass(t.Context(), 4*time.Minute, 5, 10, 0)
	if s.alarm() {
		t.Error("the alarm comes before the window is full")
	}
	s.pass(t.Context(), 10*time.Minute, 5, 10, 0)
	if !s.alarm() || strings.Count(s.logged.String(), "level=WARN") != 1 {
		t.Errorf("alarm is %v, log is %s", s.alarm(), s.logged)
	}
	s.pass(t.Context(), 10*time.Minute, 10, 5, 0)
	if !s.alarm() {
		t.Error("the alarm ends at a third of duplicates: it would flap")
	}
	s.pass(t.Context(), 10*time.Minute, 10, 1, 0)
	if s.alarm() || strings.Count(s.logged.String(), "level=INFO") != 1 {
		t.Errorf("alarm is %v, log is %s", s.alarm(), s.logged)
	}
	s.pass(t.Context(), 10*time.Minute, 0, 10, 0)
	if !s.alarm() || strings.Count(s.logged.String(), "level=WARN") != 2 {
		t.Errorf("at the second onset alarm is %v, log is %s", s.alarm(), s.logged)
	}
}

func TestNoAlarmWhere(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]func(s *scene){
		"there is lag": func(s *scene) { s.lag, s.lagSeconds = 4, 11; s.pass(t.Context(), 20*time.Minute, 0, 10, 0) },
		"there was lag a while ago": func(s *scene) {
			s.lag, s.lagSeconds = 4, 11
			s.pass(t.Context(), 20*time.Minute, 0, 10, 0)
			s.lag = 0
			s.pass(t.Context(), 4*time.Minute, 0, 10, 0)
		},
		"nobody knows the lag": func(s *scene) {
			s.err = errors.New("the ledger is gone")
			s.pass(t.Context(), 20*time.Minute, 0, 10, 0)
		},
		"there are few records": func(s *scene) { s.pass(t.Context(), 20*time.Minute, 0, 3, 0) },
		"most records are new":  func(s *scene) { s.pass(t.Context(), 20*time.Minute, 11, 10, 0) },
		"steps are retried":     func(s *scene) { s.pass(t.Context(), 20*time.Minute, 10, 0, 50) },
		"nothing comes":         func(s *scene) { s.pass(t.Context(), 20*time.Minute, 0, 0, 0) },
	} {
		s := newScene()
		s.metrics.LeaseTaken("reader")
		f(s)
		if s.alarm() || strings.Contains(s.logged.String(), "WARN") {
			t.Errorf("%s: alarm is %v, log is %s", name, s.alarm(), s.logged)
		}
	}
	s := newScene()
	s.pass(t.Context(), 20*time.Minute, 0, 0, 0) // before the first record it isn't known to the watch
	s.lag, s.lagSeconds = 1, 2                   // a record on its way is no lag
	s.pass(t.Context(), 20*time.Minute, 0, 10, 0)
	if !s.alarm() {
		t.Error("no alarm where there is one to be had: this test tells nothing")
	}
}

func TestWindowedRatioCountsRetriesAndForgets(t *testing.T) {
	t.Parallel()
	s := newScene()
	ratio := func() float64 { return testutil.ToFloat64(s.metrics.again.WithLabelValues("reader")) }
	s.metrics.LeaseTaken("reader")
	s.pass(t.Context(), 20*time.Minute, 6, 2, 2)
	if got := ratio(); got != 0.5 {
		t.Errorf("ratio is %v, want (2+2)/8", got)
	}
	s.pass(t.Context(), 5*time.Minute, 8, 0, 0)
	if got := ratio(); got != 0 {
		t.Errorf("five minutes later the ratio is %v", got)
	}
	if n := len(s.agents["reader"].samples); n > 32 {
		t.Errorf("%d samples are kept", n)
	}
}

func TestWatchEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.Run(ctx) }()
		s.metrics.LeaseTaken("reader")
		for range 100 {
			for range 20 {
				s.metrics.Settled("reader", ledger.Duplicate)
			}
			time.Sleep(watchEvery)
		}
		synctest.Wait()
		if !s.alarm() {
			t.Error("no alarm after a thousand seconds of duplicates")
		}
		cancel()
		<-ended
	})
}
