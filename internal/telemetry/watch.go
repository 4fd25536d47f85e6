package telemetry

import (
	"context"
	"log/slog"
	"time"

	"github.com/swarmlog/swarmlog/internal/telemetry/status"
)

// Bounds of silent discarding. A producer that sends everything twice, an agent that was rewound without
// repeating its effects, ids that are made wrongly: in all of them an agent keeps up with its topic, every graph of lag is
// flat, and next to nothing is done.
const (
	watchEvery   = 10 * time.Second
	watchWindow  = 5 * time.Minute
	watchRecords = 100              // fewer in a window tell nothing
	watchLag     = 10 * time.Second // an agent that isn't further behind has no lag
	watchEnter   = 0.5              // share of duplicates that raises the alarm
	watchLeave   = 0.25             // below which it ends
)

// Watch looks for agents that discard in silence: no lag, and much de-duplication, over a window. It sets
// swarmlog_silent_discarding and swarmlog_reprocessing_window_ratio, and logs each onset once.
type Watch struct {
	metrics *Metrics
	source  status.Source
	log     *slog.Logger
	agents  map[string]*window
}

// NewWatch makes a watch; Run starts it. The source says how far agents are behind.
func NewWatch(m *Metrics, source status.Source, log *slog.Logger) *Watch {
	return &Watch{metrics: m, source: source, log: log, agents: map[string]*window{}}
}

// Run looks every ten seconds until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.look(ctx, time.Now())
		}
	}
}

// look takes a sample of each agent and judges its window. Where the status can't be had nobody knows the lag: the
// window begins anew.
func (w *Watch) look(ctx context.Context, now time.Time) {
	bounded, cancel := context.WithTimeout(ctx, scrapeLimit)
	defer cancel()
	s, err := w.source.Status(bounded)
	if err != nil {
		if ctx.Err() == nil {
			w.log.Debug("agents' lag isn't known, so silent discarding can't be told", "error", err)
		}
		s = status.Status{}
	}
	behind := map[string]bool{}
	for i := range s.Agents {
		behind[s.Agents[i].Name] = isBehind(&s.Agents[i])
	}
	w.metrics.tallies.Range(func(name, value any) bool {
		agent, t := name.(string), value.(*tally)
		win := w.agents[agent]
		if win == nil {
			win = &window{}
			w.agents[agent] = win
		}
		late, known := behind[agent]
		win.add(sample{at: now, delivered: t.delivered.Load(), duplicate: t.duplicate.Load(), retried: t.retried.Load(), late: late || !known})
		w.judge(agent, win)
		return true
	})
}

func (w *Watch) judge(agent string, win *window) {
	delivered, share, again := win.ratios()
	w.metrics.again.WithLabelValues(agent).Set(again)
	was := win.alarm
	switch {
	case was:
		win.alarm = share >= watchLeave && delivered > 0
	default:
		win.alarm = win.full() && !win.late() && delivered >= watchRecords && share >= watchEnter
	}
	w.metrics.discarding.WithLabelValues(agent).Set(oneIf(win.alarm))
	switch {
	case win.alarm && !was:
		w.log.Warn("an agent without lag mostly drops duplicates: its producer may send everything twice or make ids wrongly, or it was rewound; compare what it was sent with what it applied",
			"agent", agent, "delivered", delivered, "duplicates_share", share, "window", watchWindow)
	case was && !win.alarm:
		w.log.Info("the agent no longer drops mostly duplicates", "agent", agent)
	}
}

// isBehind tells whether an agent has lag, or whether nobody knows.
func isBehind(a *status.Agent) bool {
	for _, p := range a.Partitions {
		if p.Lag == nil || (*p.Lag > 0 && (p.LagSeconds == nil || *p.LagSeconds > watchLag.Seconds())) {
			return true
		}
	}
	return false
}

type sample struct {
	at                            time.Time
	delivered, duplicate, retried int64
	late                          bool
}

// window holds an agent's samples of the last minutes, the oldest first; the first is as old as the window, where the
// watch has run that long.
type window struct {
	samples []sample
	alarm   bool
}

func (w *window) add(s sample) {
	w.samples = append(w.samples, s)
	old := 0
	for old+1 < len(w.samples) && s.at.Sub(w.samples[old+1].at) >= watchWindow {
		old++
	}
	w.samples = append(w.samples[:0], w.samples[old:]...)
}

func (w *window) full() bool {
	return w.samples[len(w.samples)-1].at.Sub(w.samples[0].at) >= watchWindow
}

// late tells whether the agent had lag at any look of the window.
func (w *window) late() bool {
	for _, s := range w.samples {
		if s.late {
			return true
		}
	}
	return false
}

// ratios are, over the window: how many records were delivered, the share of duplicates among them, and duplicates and
// retries for each.
func (w *window) ratios() (delivered int64, share, again float64) {
	first, last := w.samples[0], w.samples[len(w.samples)-1]
	delivered = last.delivered - first.delivered
	if delivered == 0 {
		return 0, 0, 0
	}
	duplicate := float64(last.duplicate - first.duplicate)
	n := float64(delivered)
	return delivered, duplicate / n, (duplicate + float64(last.retried-first.retried)) / n
}
