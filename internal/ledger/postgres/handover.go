package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// Carried rows change under their lease's lock, but for those that a worker puts down itself: those it doesn't commit
// at the same time. So a commit by a row that another worker has ended finds it gone, and never half there.

const carriedExpires = "CASE WHEN w.beat > c.taken THEN w.expires ELSE c.expires END"

var (
	qCarried = define("SELECT c.position, c.subject, c.worker, c.epoch, " + carriedExpires + ", {now} FROM {}carried c LEFT JOIN {}worker w ON w.id = c.worker " +
		"WHERE c.lease_id = $1 ORDER BY c.position")
	qEndExpired = define("DELETE FROM {}carried d USING (SELECT c.lease_id, c.position FROM {}carried c LEFT JOIN {}worker w ON w.id = c.worker " +
		"WHERE c.lease_id = $1 AND " + carriedExpires + " <= {now}) x WHERE d.lease_id = x.lease_id AND d.position = x.position")
	qCarriedByKey = define("SELECT c.position, c.subject, c.worker, c.epoch, " + carriedExpires + ", {now} FROM {}lease l JOIN {}agent_group g ON g.id = l.group_id " +
		"JOIN {}carried c ON c.lease_id = l.id LEFT JOIN {}worker w ON w.id = c.worker WHERE g.name = $1 AND l.topic_id = $2 AND l.part = $3 ORDER BY c.position")
	qCarry = define("INSERT INTO {}carried (lease_id, position, epoch, worker, subject, taken, expires) " +
		"SELECT $1, k.position, $2, $3, k.subject, n.at, n.at + $4 FROM (SELECT {now} AS at) n, unnest($5::bigint[], $6::bytea[]) k (position, subject) ON CONFLICT DO NOTHING")
	qCountCarried = define("SELECT count(*) FROM {}carried WHERE lease_id = $1 AND worker = $2 AND epoch = $3 AND position = ANY ($4::bigint[])")
	qPass         = define("UPDATE {}lease SET owner = '', expires = 0, passed_to = $2, passed_until = {now} + $3, passed_by = $4, passed_epoch = $5 WHERE id = $1")
	qPutDown      = define("DELETE FROM {}carried c USING {}lease l, {}agent_group g WHERE g.name = $1 AND l.group_id = g.id AND l.topic_id = $2 AND l.part = $3 " +
		"AND c.lease_id = l.id AND c.worker = $4 AND c.epoch = $5 AND c.position = ANY ($6::bigint[])")
	qCarries = define("SELECT c.lease_id, c.position, c.worker, c.epoch FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::bigint[]) k (lease_id, position, worker, epoch) " +
		"JOIN {}carried c ON c.lease_id = k.lease_id AND c.position = k.position AND c.worker = k.worker AND c.epoch = k.epoch")
	qDropCarried = define("DELETE FROM {}carried c USING unnest($1::integer[], $2::bigint[]) k (lease_id, position) WHERE c.lease_id = k.lease_id AND c.position = k.position")
)

// foundCarried is a carried row, and whether its time was over as it was read.
type foundCarried struct {
	ledger.Carried
	expired bool
}

func scanCarried(r pgx.CollectableRow) (f foundCarried, err error) {
	var subject []byte
	var expires, now int64
	err = r.Scan(&f.Offset, &subject, &f.Worker, &f.Epoch, &expires, &now)
	f.Subject, f.Expires, f.expired = string(subject), unstamp(expires), expires <= now
	return f, err
}

// endExpired queues the removal of what nobody may carry any more. The lease's row is locked.
func (db *DB) endExpired(b *pgx.Batch, lease int32) { b.Queue(db.sql[qEndExpired], lease) }

// readCarried queues reading what is carried of a lease.
func (db *DB) readCarried(b *pgx.Batch, l *ledger.Lease, lease int32) {
	l.Carried = nil
	b.Queue(db.sql[qCarried], lease).Query(func(rows pgx.Rows) error {
		return collect(rows, scanCarried, func(f foundCarried) { l.Carried = append(l.Carried, f.Carried) })
	})
}

// Claim implements ledger.Handovers.
func (db *DB) Claim(ctx context.Context, key ledger.Key, topic, owner string, start int64, ttl time.Duration, generation int64) (ledger.Lease, error) {
	if generation < 1 {
		return ledger.Lease{}, fault.Fatalf("claim lease of %s on %s/%d: generation %d: a group's begin at 1", key.Group, topic, key.Partition, generation)
	}
	return db.claim(ctx, "claim", key, topic, owner, start, ttl, generation)
}

// Pass implements ledger.Handovers. Made again after its answer was lost, it has passed.
func (db *DB) Pass(ctx context.Context, f ledger.Fence, to string, carried []ledger.Carried, ttl time.Duration) error {
	offsets, subjects := make([]int64, len(carried)), make([][]byte, len(carried))
	for i, c := range carried {
		offsets[i], subjects[i] = c.Offset, []byte(c.Subject)
	}
	err := db.underLease(ctx, qTouchLease, f.Key, func(ctx context.Context, c *pgx.Conn, l foundLease) error {
		passed := l.id != 0 && f.Owner != "" && l.passedBy == f.Owner && l.passedEpoch == f.Epoch
		if passed && l.Epoch > f.Epoch && len(offsets) > 0 { // and taken since
			return db.carries(ctx, c, l, f, offsets)
		}
		if !holds(l, f) && !(passed && l.Epoch == f.Epoch) {
			return errFenced(f, l.Lease)
		}
		b := &pgx.Batch{}
		b.Queue(db.sql[qPass], l.id, to, ttl.Microseconds(), f.Owner, f.Epoch)
		if len(offsets) > 0 {
			b.Queue(db.sql[qCarry], l.id, f.Epoch, f.Owner, ttl.Microseconds(), offsets, subjects)
		}
		return send(ctx, c, b)
	})
	if err != nil {
		return fmt.Errorf("pass lease of %s on partition %d to %q: %w", f.Group, f.Partition, to, err)
	}
	return nil
}

// carries tells whether a worker's steps are carried, as a Pass of theirs has left them.
func (db *DB) carries(ctx context.Context, c *pgx.Conn, l foundLease, f ledger.Fence, offsets []int64) error {
	n := 0
	err := c.QueryRow(ctx, db.sql[qCountCarried], l.id, f.Owner, f.Epoch, offsets).Scan(&n)
	if err == nil && n < len(offsets) {
		err = errFenced(f, l.Lease)
	}
	return err
}

// holds tells whether a fence is a lease's present one.
func holds(l foundLease, f ledger.Fence) bool { return l.id != 0 && f.Owner != "" && l.Fence == f }

// underLease runs f in a transaction that has a lease's row locked by lock. The lease is empty where there's no row.
func (db *DB) underLease(ctx context.Context, lock stmt, k ledger.Key, f func(context.Context, *pgx.Conn, foundLease) error) error {
	return db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		var l foundLease
		b := &pgx.Batch{}
		db.open(b, inOwn)
		b.Queue(db.sql[lock], k.Group, k.TopicID, k.Partition)
		b.Queue(db.sql[qLeaseByKey], k.Group, k.TopicID, k.Partition).Query(func(rows pgx.Rows) error {
			return collect(rows, scanLease, func(found foundLease) { l = found })
		})
		if err := send(ctx, c, b); err != nil {
			return err
		}
		if err := f(ctx, c, l); err != nil {
			return err
		}
		return db.commit(c)
	})
}

// Progress implements ledger.Handovers. It locks nothing but where something has expired.
func (db *DB) Progress(ctx context.Context, f ledger.Fence) (ledger.Lease, error) {
	l, expired, err := db.progress(ctx, f)
	if err == nil && expired {
		err = db.underLease(ctx, qWriteLease, f.Key, func(ctx context.Context, c *pgx.Conn, now foundLease) error {
			if !holds(now, f) {
				return errFenced(f, now.Lease)
			}
			l = now
			b := &pgx.Batch{}
			db.endExpired(b, l.id)
			db.readCarried(b, &l.Lease, l.id)
			return send(ctx, c, b)
		})
	}
	if err != nil {
		return ledger.Lease{}, fmt.Errorf("read progress of %s on partition %d: %w", f.Group, f.Partition, err)
	}
	return l.Lease, nil
}

// progress reads lease and carried rows as of one moment, and tells whether any of those has expired.
func (db *DB) progress(ctx context.Context, f ledger.Fence) (l foundLease, expired bool, err error) {
	err = db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		l, expired = foundLease{}, false
		var carried []ledger.Carried
		b := &pgx.Batch{}
		db.open(b, inRead)
		b.Queue(db.sql[qLeaseByKey], f.Group, f.TopicID, f.Partition).Query(func(rows pgx.Rows) error {
			return collect(rows, scanLease, func(found foundLease) { l = found })
		})
		b.Queue(db.sql[qCarriedByKey], f.Group, f.TopicID, f.Partition).Query(func(rows pgx.Rows) error {
			return collect(rows, scanCarried, func(found foundCarried) {
				carried, expired = append(carried, found.Carried), expired || found.expired
			})
		})
		b.Queue("COMMIT")
		if err := send(ctx, c, b); err != nil {
			return err
		}
		if !holds(l, f) {
			return errFenced(f, l.Lease)
		}
		l.Carried = carried
		return nil
	})
	return l, expired, err
}

// PutDown implements ledger.Handovers.
func (db *DB) PutDown(ctx context.Context, f ledger.Fence, offsets ...int64) error {
	if len(offsets) == 0 {
		return nil
	}
	err := db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, db.sql[qPutDown], f.Group, f.TopicID, f.Partition, f.Owner, f.Epoch, offsets)
		return err
	})
	if err != nil {
		return fmt.Errorf("put down %d steps of %s on partition %d: %w", len(offsets), f.Group, f.Partition, err)
	}
	return nil
}

// lookForCarried asks, under the leases' locks, which of the batch's carried steps still are.
func (a *attempt) lookForCarried() error {
	var leases []int32
	var positions, epochs []int64
	var workers []string
	for i, s := range a.batch.Steps {
		if l := a.lease(s.Fence.Key); s.Carried && a.failed[i] == nil && l.id != 0 {
			leases, positions = append(leases, l.id), append(positions, s.Offset)
			workers, epochs = append(workers, s.Fence.Owner), append(epochs, s.Fence.Epoch)
		}
	}
	if len(leases) == 0 {
		return nil
	}
	ctx, cancel := a.limited()
	defer cancel()
	rows, err := a.link.conn().Query(ctx, a.db.sql[qCarries], leases, positions, workers, epochs)
	if err != nil {
		return err
	}
	return collect(rows, func(r pgx.CollectableRow) (k carriedKey, err error) {
		err = r.Scan(&k.lease, &k.position, &k.worker, &k.epoch)
		return k, err
	}, func(k carriedKey) { a.now.carried[k] = true })
}

// carriedKey is what a carried step is fenced by.
type carriedKey struct {
	rowKey
	worker string
	epoch  int64
}

func carriedKeyOf(l *heldLease, s *ledger.Step) carriedKey {
	return carriedKey{rowKey{l.id, s.Offset}, s.Fence.Owner, s.Fence.Epoch}
}

// finish ends carrying a step, with its commit.
func (a *attempt) finish(l *heldLease, s *ledger.Step) {
	if !s.Carried {
		return
	}
	k := carriedKeyOf(l, s)
	delete(a.now.carried, k)
	l.dirty = true
	a.pending.carried = append(a.pending.carried, k.rowKey)
}
