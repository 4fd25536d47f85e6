package sqlite

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qCountOutbox  = define("SELECT count(*) FROM swarmlog_outbox")
	qCountBacklog = define("SELECT count(*) FROM swarmlog_backlog")
	qCountParked  = define("SELECT count(*) FROM swarmlog_backlog WHERE dead = 1 AND released = 0")
)

// Totals implements ledger.Ledger.
func (db *DB) Totals(ctx context.Context) (t ledger.Totals, err error) {
	err = db.read(ctx, func(c *conn) (err error) {
		if t.Leases, err = db.list(c, ""); err != nil {
			return err
		}
		if t.Workers, err = listWorkers(c, math.MinInt64); err != nil {
			return err
		}
		if _, err = c.first(qCountOutbox, func(r row) { t.Outbox = r.int(0) }); err != nil {
			return err
		}
		if _, err = c.first(qCountBacklog, func(r row) { t.Waiting = r.int(0) }); err != nil {
			return err
		}
		if _, err = c.first(qCountParked, func(r row) { t.Parked = r.int(0) }); err != nil {
			return err
		}
		_, err = c.first(qCalls, func(r row) {
			t.Inference = ledger.InferenceTotals{Calls: r.int(0), Reused: r.int(1), InDoubt: r.int(2)}
		})
		return err
	})
	if err != nil {
		return ledger.Totals{}, fmt.Errorf("read totals: %w", err)
	}
	return t, nil
}

// Seen implements ledger.Ledger. Events that are told by their sequence or position have nothing there.
func (db *DB) Seen(ctx context.Context, group string, ids []ledger.Identity) ([]*[16]byte, error) {
	digests := make([]*[16]byte, len(ids))
	err := db.read(ctx, func(c *conn) error {
		var groupID int64
		found, err := c.first(qGroupID, func(r row) { groupID = r.int(0) }, group)
		if err != nil || !found {
			return err
		}
		var scratch []byte
		for i, id := range ids {
			if id.Sequence > 0 || id.Positional {
				continue
			}
			var key [32]byte
			key, scratch = eventKey(scratch, id.Source, id.ID)
			if _, err := c.first(qSeen, func(r row) {
				digests[i] = new([16]byte)
				copy(digests[i][:], r.blob(0))
			}, groupID, key[:16]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask what %s has seen: %w", group, err)
	}
	return digests, nil
}

// Setup implements ledger.Ledger. It has no limit of time but ctx: an index over many rows takes long to make.
func (db *DB) Setup(ctx context.Context, f func(context.Context, ledger.Tx) error) error {
	w, err := db.takeWriter(ctx)
	if err != nil {
		return fmt.Errorf("set up tables: %w", err)
	}
	defer func() { db.writer <- w }()
	if err := w.begin(qBeginWrite); err != nil {
		return environment("set up tables", err)
	}
	if err := handle(ctx, w, false, f); err != nil {
		return fmt.Errorf("set up tables: %w", errors.Join(err, w.rollback()))
	}
	if err := w.commit(); err != nil {
		return environment("set up tables", errors.Join(err, w.rollback()))
	}
	return nil
}

// Read implements ledger.Ledger.
func (db *DB) Read(ctx context.Context, f func(context.Context, ledger.Tx) error) error {
	return db.read(ctx, func(c *conn) error { return handle(ctx, c, true, f) })
}

// handle runs f on the caller's goroutine with a handle on the open transaction.
func handle(ctx context.Context, c *conn, readOnly bool, f func(context.Context, ledger.Tx) error) error {
	t := &txn{c: c, readOnly: readOnly, done: ctx.Done()}
	returned := false
	stop := t.interruptAfter(ctx)
	defer func() {
		stop()
		if !returned { // a panic goes on to the caller, without the handle and the transaction
			t.revoke()
			_ = c.rollback()
		}
	}()
	err := f(ctx, t)
	returned = true
	return t.end(err)
}

const pruneWindow = 16 << 10 // rows looked at in one go, and deleted in one transaction at most

var (
	qSeenBounds = define("SELECT min(id), max(id) FROM swarmlog_seen")
	// A row ages by its own lease's log time. A record from the future must not make all others old: the lease's log
	// time counts up to now at most.
	qOldSeen    = define("SELECT 1 FROM swarmlog_seen s JOIN swarmlog_lease l ON l.id = s.lease_id WHERE s.id BETWEEN ? AND ? AND s.log_time < min(l.last_time, ?) - ? LIMIT 1")
	qForgetSeen = define("DELETE FROM swarmlog_seen WHERE id BETWEEN ?1 AND ?2 AND log_time < (SELECT min(l.last_time, ?3) - ?4 FROM swarmlog_lease l WHERE l.id = lease_id)")

	// What an event that still waits has got is kept, whatever its age: its redrive must not pay again.
	qForgetRecorded = define("DELETE FROM swarmlog_recorded WHERE (group_id, event, name) IN (SELECT r.group_id, r.event, r.name FROM swarmlog_recorded r " +
		"WHERE r.inference_id IS NOT NULL AND r.time < ? AND NOT EXISTS (SELECT 1 FROM swarmlog_backlog b " +
		"JOIN swarmlog_lease l ON l.id = b.lease_id WHERE b.event = r.event AND l.group_id = r.group_id) LIMIT ?)")
	qForgetAnswers = define("DELETE FROM swarmlog_inference WHERE id IN (SELECT i.id FROM swarmlog_inference i WHERE i.time < ? " +
		"AND NOT EXISTS (SELECT 1 FROM swarmlog_recorded r WHERE r.inference_id = i.id) LIMIT ?)")
	qForgetWorkers = define("DELETE FROM swarmlog_worker WHERE beat < ?")
)

// Prune implements ledger.Ledger. It goes in steps, so that commits aren't held up.
func (db *DB) Prune(ctx context.Context, seen, recorded time.Duration) (gone int64, err error) {
	if seen < 0 || recorded < 0 {
		return 0, fault.Fatalf("prune: horizons of %s and %s: they must not be negative", seen, recorded)
	}
	n, err := db.pruneSeen(ctx, seen)
	gone += n
	before := stamp(db.opts.Now().Add(-recorded))
	for _, q := range []stmtID{qForgetRecorded, qForgetAnswers} {
		for n = pruneWindow; err == nil && n == pruneWindow; gone += n {
			err = db.write(ctx, func(c *conn) (err error) {
				n, err = c.exec(q, before, int64(pruneWindow))
				return err
			})
		}
	}
	if err == nil {
		err = db.write(ctx, func(c *conn) error {
			n, err := c.exec(qForgetWorkers, before)
			gone += n
			return err
		})
	}
	if err != nil {
		return gone, fmt.Errorf("prune: %w", err)
	}
	return gone, nil
}

func (db *DB) pruneSeen(ctx context.Context, horizon time.Duration) (gone int64, err error) {
	now := stamp(db.opts.Now())
	var from, last int64
	if err := db.read(ctx, func(c *conn) error {
		_, err := c.first(qSeenBounds, func(r row) { from, last = r.int(0), r.int(1) })
		return err
	}); err != nil {
		return 0, err
	}
	for ; from <= last && last > 0; from += pruneWindow {
		to := from + pruneWindow - 1
		found := false
		if err := db.read(ctx, func(c *conn) (err error) {
			found, err = c.first(qOldSeen, func(row) {}, from, to, now, horizon.Microseconds())
			return err
		}); err != nil {
			return gone, err
		}
		if !found {
			continue
		}
		if err := db.write(ctx, func(c *conn) error {
			n, err := c.exec(qForgetSeen, from, to, now, horizon.Microseconds())
			gone += n
			return err
		}); err != nil {
			return gone, err
		}
	}
	return gone, nil
}
