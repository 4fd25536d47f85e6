package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// How often a worker that isn't alone looks at the leases between its heartbeats. A worker that is alone doesn't look.
const (
	lookPace     = 250 * time.Millisecond
	lookSoon     = 50 * time.Millisecond // while the plan has just given it something that isn't here yet, and while a worker ends
	soonFor      = 4 * time.Second
	planPace     = time.Second         // how old what is known of workers and plan may be
	planKnown    = planPace + lookPace // how long a want is known before it's acted on: by then its new worker knows too
	plannerGroup = "swarmlog.planner"  // the group whose lease the planner holds
)

// want is a worker that the plan wants a partition for, and since when that is known here.
type want struct {
	worker string
	since  time.Time
}

// view is what a worker sees of the others. Only the goroutine of keepLeases touches it, once it's made.
type view struct {
	at      time.Time
	leases  []ledger.Lease
	workers []ledger.Worker // that live and take something
	asked   time.Time       // when workers and plan were
	plan    map[ledger.Key]want
	planner string // the live worker that plans, or ""
	ending  bool   // a worker is about to give up all that it has
	soon    time.Time
}

// look brings the view up to date: the leases always, workers and plan where what is known is old or a lease has
// expired.
func (e *Engine) look(ctx context.Context, all bool) (*view, error) {
	leases, err := e.opts.Ledger.Leases(ctx, "")
	if err != nil {
		return nil, err
	}
	old := e.seen.Load()
	if old == nil {
		old = &view{}
	}
	v := *old
	v.at, v.leases, v.planner = time.Now(), leases, ""
	expired := slices.ContainsFunc(leases, func(l ledger.Lease) bool { return l.Owner != "" && !l.Held })
	if all || expired || v.at.Sub(v.asked) >= planPace {
		if err := e.ask(ctx, &v); err != nil {
			return nil, err
		}
	}
	for _, l := range leases {
		if l.Group == plannerGroup && l.Held && slices.ContainsFunc(v.workers, func(w ledger.Worker) bool { return w.ID == l.Owner }) {
			v.planner = l.Owner
		}
	}
	e.others.Store(int32(othersAmong(v.workers, e.opts.Worker)))
	e.seen.Store(&v)
	return &v, nil
}

// ask reads workers, and the plan where there are several.
func (e *Engine) ask(ctx context.Context, v *view) error {
	workers, err := e.opts.Ledger.Workers(ctx, e.opts.LeaseTime)
	if err != nil {
		return err
	}
	all := len(workers)
	v.workers = slices.DeleteFunc(workers, func(w ledger.Worker) bool { return w.Steps < 0 })
	if v.ending = len(v.workers) < all; v.ending {
		v.soon = v.at.Add(soonFor)
	}
	if !slices.ContainsFunc(workers, func(w ledger.Worker) bool { return w.ID == e.opts.Worker }) {
		v.workers = append(v.workers, ledger.Worker{ID: e.opts.Worker, Pool: e.opts.Pool}) // so late with its heartbeat
	}
	v.asked = v.at
	if othersAmong(v.workers, e.opts.Worker) == 0 {
		v.plan = nil
		return nil
	}
	wants, err := e.opts.Ledger.Plan(ctx)
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	plan := make(map[ledger.Key]want, len(wants))
	for _, w := range wants {
		known := v.plan[w.Key]
		if known.worker != w.Worker {
			known = want{w.Worker, v.at}
			if w.Worker == e.opts.Worker {
				v.soon = v.at.Add(soonFor)
			}
		}
		plan[w.Key] = known
	}
	v.plan = plan
	return nil
}

// pace is how long until the next look; 0: there's nothing to look for before the next heartbeat.
func (e *Engine) pace() time.Duration {
	v := e.seen.Load()
	if v == nil || e.others.Load() == 0 && !v.ending {
		return 0
	}
	if time.Now().After(v.soon) {
		return lookPace
	}
	if v.ending {
		return lookSoon
	}
	held := map[ledger.Key]bool{}
	for _, g := range e.groups {
		for _, f := range g.fences() {
			held[f.Key] = true
		}
	}
	for key, w := range v.plan {
		if w.worker == e.opts.Worker && !held[key] {
			return lookSoon
		}
	}
	return lookPace
}

// plannedFor is the live worker other than this one that a partition is planned for, or "".
func (e *Engine) plannedFor(key ledger.Key) string {
	v := e.seen.Load()
	if v == nil {
		return ""
	}
	if w := v.planned(key, v.workers); w != e.opts.Worker {
		return w
	}
	return ""
}

// othersAmong counts the workers beside one.
func othersAmong(workers []ledger.Worker, self string) (n int) {
	for _, w := range workers {
		if w.ID != self {
			n++
		}
	}
	return n
}
