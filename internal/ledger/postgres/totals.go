package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qCountRows = define("SELECT (SELECT count(*) FROM {}outbox), (SELECT count(*) FROM {}backlog), (SELECT count(*) FROM {}backlog WHERE dead AND NOT released)")
	qAllBeats  = define(`SELECT ` + workerColumns + ` FROM {}worker ORDER BY id COLLATE "C"`)
	qSeen      = define("SELECT s.event, s.digest FROM {}seen s JOIN {}agent_group g ON g.id = s.group_id WHERE g.name = $1 AND s.event = ANY ($2::uuid[])")
)

// Totals implements ledger.Ledger.
func (db *DB) Totals(ctx context.Context) (t ledger.Totals, err error) {
	err = db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		t = ledger.Totals{}
		b := &pgx.Batch{}
		db.open(b, inRead)
		b.Queue(db.sql[qLeases]).Query(func(rows pgx.Rows) error {
			return collect(rows, scanLease, func(l foundLease) { t.Leases = append(t.Leases, l.Lease) })
		})
		b.Queue(db.sql[qAllBeats]).Query(func(rows pgx.Rows) error {
			return collect(rows, scanWorker, func(w ledger.Worker) { t.Workers = append(t.Workers, w) })
		})
		b.Queue(db.sql[qCountRows]).QueryRow(func(r pgx.Row) error { return r.Scan(&t.Outbox, &t.Waiting, &t.Parked) })
		b.Queue(db.sql[qCalls]).QueryRow(func(r pgx.Row) error {
			return r.Scan(&t.Inference.Calls, &t.Inference.Reused, &t.Inference.InDoubt)
		})
		b.Queue("COMMIT")
		return send(ctx, c, b)
	})
	if err != nil {
		return ledger.Totals{}, fmt.Errorf("read totals: %w", err)
	}
	return t, nil
}

// Seen implements ledger.Ledger. Events that are told by their sequence or position have nothing there.
func (db *DB) Seen(ctx context.Context, group string, ids []ledger.Identity) ([]*[16]byte, error) {
	digests := make([]*[16]byte, len(ids))
	at := make(map[[16]byte][]int)
	var keys [][16]byte
	for i, id := range ids {
		if id.Sequence > 0 || id.Positional {
			continue
		}
		k := eventKey(id.Source, id.ID)
		if at[k] == nil {
			keys = append(keys, k)
		}
		at[k] = append(at[k], i)
	}
	if len(keys) == 0 {
		return digests, nil
	}
	err := db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, db.sql[qSeen], group, keys)
		if err != nil {
			return err
		}
		return collect(rows, scanPair, func(p pair) {
			for _, i := range at[p.event] {
				d := p.digest
				digests[i] = &d
			}
		})
	})
	if err != nil {
		return nil, fmt.Errorf("ask what %s has seen: %w", group, err)
	}
	return digests, nil
}

// pair is what seen has of an event.
type pair struct{ event, digest [16]byte }

func scanPair(r pgx.CollectableRow) (p pair, err error) {
	err = r.Scan(&p.event, &p.digest)
	return p, err
}

// setupLock is the advisory lock of set-ups ("swarmlog").
const setupLock = 0x737761726d6c6f67

// Setup implements ledger.Ledger. It has no limit of time but ctx: an index over many rows takes long to make. Agents
// that start at the same time take turns, of other ledgers in the database too, since PostgreSQL's IF NOT EXISTS doesn't
// wait for another's CREATE.
func (db *DB) Setup(ctx context.Context, f func(context.Context, ledger.Tx) error) error {
	l, err := db.take(ctx, db.writes)
	if err != nil {
		return fmt.Errorf("set up tables: %w", err)
	}
	defer l.close()
	b := &pgx.Batch{}
	db.open(b, inSetup)
	b.Queue("SELECT pg_advisory_xact_lock($1)", setupLock)
	if err := db.begun(ctx, l, b, 6*db.lock+db.call); err != nil {
		l.rollback()
		return fmt.Errorf("set up tables: %w", db.ownError(ctx, err))
	}
	if err := db.handle(ctx, l, inSetup, f); err != nil {
		l.rollback()
		return fmt.Errorf("set up tables: %w", err)
	}
	if err := db.commit(l.conn()); err != nil {
		l.rollback()
		return fmt.Errorf("set up tables: %w", db.ownError(ctx, err))
	}
	return nil
}

// Read implements ledger.Ledger.
func (db *DB) Read(ctx context.Context, f func(context.Context, ledger.Tx) error) error {
	l, err := db.take(ctx, db.reads)
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	defer l.close()
	b := &pgx.Batch{}
	db.open(b, inRead)
	if err := db.begun(ctx, l, b, db.call); err != nil {
		l.rollback()
		return fmt.Errorf("read: %w", db.ownError(ctx, err))
	}
	err = db.handle(ctx, l, inRead, f)
	l.rollback()
	return err
}

// begun sends what begins a transaction for users' code, which then has no limit of time but ctx.
func (db *DB) begun(ctx context.Context, l *link, b *pgx.Batch, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return send(ctx, l.conn(), b)
}

// handle runs f on the caller's goroutine with a handle on the open transaction.
func (db *DB) handle(ctx context.Context, l *link, p place, f func(context.Context, ledger.Tx) error) error {
	t := newTxn(ctx, db, l.conn(), p)
	returned := false
	defer func() {
		if !returned { // a panic goes on to the caller, without the handle and the transaction
			t.revoke()
			l.rollback()
		}
	}()
	err := f(t.ctx, t)
	returned = true
	return t.end(err)
}

const (
	pruneWindow = 16 << 10 // rows deleted in one transaction at most
	pruneLimit  = 10 * time.Minute
)

var (
	// A row ages by its own lease's log time. A record from the future must not make all others old: the lease's log
	// time counts up to now at most. The bound over all leases lets the small index on log_time leave young pages out.
	qForgetSeen = define("DELETE FROM {}seen WHERE ctid = ANY (ARRAY (SELECT s.ctid FROM {}seen s JOIN {}lease l ON l.id = s.lease_id " +
		"WHERE s.log_time < (SELECT max(least(m.last_time, {now}) - $1) FROM {}lease m) AND s.log_time < least(l.last_time, {now}) - $1 LIMIT $2))")
	// What an event that still waits has got is kept, whatever its age: its redrive must not pay again.
	qForgetRecorded = define("DELETE FROM {}recorded WHERE (group_id, call) IN (SELECT r.group_id, r.call FROM {}recorded r " +
		"WHERE r.inference_id IS NOT NULL AND r.time < (SELECT {now}) - $1 AND NOT EXISTS (SELECT 1 FROM {}backlog b JOIN {}lease l ON l.id = b.lease_id " +
		"WHERE b.event = r.event AND l.group_id = r.group_id) LIMIT $2)")
	qForgetAnswers = define("DELETE FROM {}inference WHERE id = ANY (ARRAY (SELECT i.id FROM {}inference i WHERE i.time < (SELECT {now}) - $1 " +
		"AND NOT EXISTS (SELECT 1 FROM {}recorded r WHERE r.inference_id = i.id) LIMIT $2))")
	qForgetWorkers = define("DELETE FROM {}worker WHERE beat < {now} - $1 AND expires < {now}")
)

// Prune implements ledger.Ledger. It goes in steps, so that commits aren't held up.
func (db *DB) Prune(ctx context.Context, seen, recorded time.Duration) (gone int64, err error) {
	if seen < 0 || recorded < 0 {
		return 0, fault.Fatalf("prune: horizons of %s and %s: they must not be negative", seen, recorded)
	}
	for _, p := range []struct {
		q       stmt
		horizon time.Duration
	}{{qForgetSeen, seen}, {qForgetRecorded, recorded}, {qForgetAnswers, recorded}} {
		for n := int64(pruneWindow); err == nil && n >= pruneWindow; {
			n, err = db.forget(ctx, p.q, p.horizon.Microseconds(), pruneWindow)
			gone += n
		}
	}
	if err == nil {
		var n int64
		n, err = db.forget(ctx, qForgetWorkers, recorded.Microseconds())
		gone += n
	}
	if err != nil {
		return gone, fmt.Errorf("prune: %w", err)
	}
	return gone, nil
}

func (db *DB) forget(ctx context.Context, q stmt, args ...any) (n int64, err error) {
	err = db.ownWithin(ctx, pruneLimit, func(ctx context.Context, c *pgx.Conn) error {
		tag, err := c.Exec(ctx, db.sql[q], args...)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}
