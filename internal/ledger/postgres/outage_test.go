package postgres

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// everyCall calls each method of a ledger.
func everyCall(db *DB, f ledger.Fence) map[string]func(context.Context) error {
	c := ledger.Call{Fence: f, Source: "s", EventID: "e", Name: "n", Address: [32]byte{1}, Reuse: true}
	read := func(ctx context.Context, tx ledger.Tx) error {
		var n int
		return tx.QueryRow(ctx, "SELECT 1").Scan(&n)
	}
	return map[string]func(context.Context) error{
		"Beat":    func(ctx context.Context) error { return second(db.Beat(ctx, ledger.Worker{ID: "w"}, lasting)) },
		"Retire":  func(ctx context.Context) error { return db.Retire(ctx, "other") },
		"Workers": func(ctx context.Context) error { return second(db.Workers(ctx, lasting)) },
		"Acquire": func(ctx context.Context) error { return second(db.Acquire(ctx, leaseKey(1), "pages", "w", 0, lasting)) },
		"Claim": func(ctx context.Context) error {
			return second(db.Claim(ctx, leaseKey(2), "pages", "w", 0, lasting, 1))
		},
		"Pass":       func(ctx context.Context) error { return db.Pass(ctx, f, "", nil, lasting) },
		"Progress":   func(ctx context.Context) error { return second(db.Progress(ctx, f)) },
		"PutDown":    func(ctx context.Context) error { return db.PutDown(ctx, f, 7) },
		"Release":    func(ctx context.Context) error { return db.Release(ctx, ledger.Fence{Key: leaseKey(9)}) },
		"Leases":     func(ctx context.Context) error { return second(db.Leases(ctx, "")) },
		"SetPlan":    func(ctx context.Context) error { return db.SetPlan(ctx, f, nil) },
		"Plan":       func(ctx context.Context) error { return second(db.Plan(ctx)) },
		"SetControl": func(ctx context.Context) error { return db.SetControl(ctx, ledger.Control{Group: "reader"}) },
		"Controls":   func(ctx context.Context) error { return second(db.Controls(ctx)) },
		"Rewind":     func(ctx context.Context) error { return second(db.Rewind(ctx, "other", nil, true, time.Time{})) },
		"Route":      func(ctx context.Context) error { return second(db.Route(ctx, [16]byte{1}, "pages", 3)) },
		"Waits":      func(ctx context.Context) error { return second(db.Waits(ctx, ledger.WaitQuery{})) },
		"Redrive":    func(ctx context.Context) error { return second(db.Redrive(ctx, f.Key, "s", -1)) },
		"Discard":    func(ctx context.Context) error { return second(db.Discard(ctx, f.Key, "s", -1)) },
		"Requeue":    func(ctx context.Context) error { return second(db.Requeue(ctx, f.Key, ledger.Wait{})) },
		"Dead":       func(ctx context.Context) error { return second(db.Dead(ctx, f.Key, []int64{1})) },
		"Dismiss":    func(ctx context.Context) error { return second(db.Dismiss(ctx, f.Key, 1)) },
		"Asks":       func(ctx context.Context) error { return second(db.Asks(ctx, "w")) },
		"Answer":     func(ctx context.Context) error { return db.Answer(ctx, f, "s") },
		"Seen":       func(ctx context.Context) error { return second(db.Seen(ctx, "reader", []ledger.Identity{{ID: "x"}})) },
		"Skip":       func(ctx context.Context) error { return second(db.Skip(ctx, f, 0)) },
		"Outbox":     func(ctx context.Context) error { return second(db.Outbox(ctx, f, 0, 1)) },
		"Parked":     func(ctx context.Context) error { return second(db.Parked(ctx, f)) },
		"Backlog":    func(ctx context.Context) error { return second(db.Backlog(ctx, f, "s", 1)) },
		"Recall":     func(ctx context.Context) error { _, _, err := db.Recall(ctx, c); return err },
		"Settle":     func(ctx context.Context) error { return db.Settle(ctx, c, ledger.Answer{}) },
		"Abandon":    func(ctx context.Context) error { return db.Abandon(ctx, c) },
		"Setup":      func(ctx context.Context) error { return db.Setup(ctx, read) },
		"Read":       func(ctx context.Context) error { return db.Read(ctx, read) },
		"Totals":     func(ctx context.Context) error { return second(db.Totals(ctx)) },
		"Prune":      func(ctx context.Context) error { return second(db.Prune(ctx, lasting, lasting)) },
		"Commit": func(ctx context.Context) error {
			return second(db.Commit(ctx, &ledger.Batch{Steps: []*ledger.Step{oneStep(f, 0)}}))
		},
		"Open":    func(ctx context.Context) error { return second(Open(ctx, db.opts)) },
		"Inspect": func(ctx context.Context) error { return second(Inspect(ctx, db.opts)) },
		"ReadWrapped": func(ctx context.Context) error {
			return db.Read(ctx, func(ctx context.Context, tx ledger.Tx) error { _ = read(ctx, tx); return errors.New("mine") })
		},
	}
}

func second[T any](_ T, err error) error { return err }

// D7, R1: PostgreSQL is gone, or the way to it, and whatever is asked of the ledger says so: no record is to blame, and
// a handler's time that ran out while it waited for the ledger isn't either. When it's back, all goes on.
func TestOutageIsUnavailableForEveryCall(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		limit   time.Duration // of the caller's patience; 0: none
		down    func(*proxy)
		restore func(*proxy)
	}{
		{"refused", 0, func(p *proxy) { p.refuse.Store(true); p.cut() }, func(p *proxy) { p.refuse.Store(false) }},
		{"silent", 0, func(p *proxy) { p.silent.Store(true) }, func(p *proxy) { p.silent.Store(false); p.cut() }},
		{"silent, and the caller has no time", 300 * time.Millisecond, func(p *proxy) { p.silent.Store(true) }, func(p *proxy) { p.silent.Store(false); p.cut() }},
		{"refused, and the caller has no time", 300 * time.Millisecond, func(p *proxy) { p.refuse.Store(true); p.cut() }, func(p *proxy) { p.refuse.Store(false) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRoom(t)
			p, dsn := newProxy(t, r.dsn)
			db := room{dsn, r.schema}.open(t, brief, func(o *Options) { o.MaxConns = 20 })
			f := acquire(t, db, 0)
			setup(t, db, effectTable)
			calls := everyCall(db, f)
			c.down(p)
			var wg sync.WaitGroup
			for name, call := range calls {
				wg.Go(func() {
					ctx, cancel := t.Context(), context.CancelFunc(func() {})
					if c.limit > 0 {
						ctx, cancel = context.WithTimeout(ctx, c.limit)
					}
					defer cancel()
					if err := call(ctx); err == nil || fault.ClassOf(err) != fault.Unavailable {
						t.Errorf("%s: %v (%v), want it unavailable", name, err, fault.ClassOf(err))
					}
				})
			}
			wg.Wait()
			c.restore(p)
			until(t, "the ledger is back", func() bool { return second(db.Leases(t.Context(), "")) == nil })
			if res, err := commit(t.Context(), db, &ledger.Batch{Steps: []*ledger.Step{oneStep(f, 0)}}); err != nil || res[0].Outcome != ledger.Applied {
				t.Errorf("afterwards: %+v, %v", res, err)
			}
			wantOnce(t, db, 1)
		})
	}
}

// A handler's query that is slow while the server is well is its own: it counts as an attempt.
func TestSlowQueryIsNoOutage(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := db.Read(ctx, exec(hang))
	wantClass(t, "read", err, fault.Transient)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the deadline", err)
	}
}
