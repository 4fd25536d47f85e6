package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qPassLease = define("UPDATE swarmlog_lease SET owner = '', epoch = epoch + 1, expires = 0, passed_to = ?, passed_until = ? WHERE id = ?")
	qCarry     = define("INSERT INTO swarmlog_carried (lease_id, position, subject, worker, epoch, expires) VALUES (?, ?, ?, ?, ?, ?) " +
		"ON CONFLICT DO UPDATE SET subject = excluded.subject, worker = excluded.worker, epoch = excluded.epoch, expires = excluded.expires")
	qCarried = define("SELECT position, subject, worker, epoch, expires FROM swarmlog_carried WHERE lease_id = ? ORDER BY position")
	qCarries = define("SELECT 1 FROM swarmlog_carried WHERE lease_id = ? AND worker = ? AND epoch = ? AND position = ?")
	qPutDown = define("DELETE FROM swarmlog_carried WHERE lease_id = ? AND worker = ? AND epoch = ? AND position = ?")

	qEndExpired = define("DELETE FROM swarmlog_carried WHERE lease_id = ? AND expires <= ?")
	// What comes from the backlog doesn't need the log.
	qPutSkippedDown = define("DELETE FROM swarmlog_carried WHERE lease_id = ?1 AND position >= ?2 AND position < ?3 " +
		"AND NOT EXISTS (SELECT 1 FROM swarmlog_backlog b WHERE b.lease_id = ?1 AND b.position = swarmlog_carried.position)")
)

// Claim implements ledger.Handovers.
func (db *DB) Claim(ctx context.Context, key ledger.Key, topic, owner string, start int64, ttl time.Duration, generation int64) (ledger.Lease, error) {
	if generation < 1 {
		return ledger.Lease{}, fault.Fatalf("claim lease of %s on %s/%d: generation %d: they are from 1", key.Group, topic, key.Partition, generation)
	}
	return db.take(ctx, "claim", key, topic, owner, start, ttl, generation)
}

// Pass implements ledger.Handovers.
func (db *DB) Pass(ctx context.Context, f ledger.Fence, to string, carried []ledger.Carried, ttl time.Duration) error {
	err := db.write(ctx, func(c *conn) error {
		_, id, err := db.fenced(c, f)
		if err != nil {
			return err
		}
		until := stamp(db.opts.Now().Add(ttl))
		for _, s := range carried {
			if _, err := c.exec(qCarry, id.id, s.Offset, s.Subject, f.Owner, f.Epoch, until); err != nil {
				return err
			}
		}
		_, err = c.exec(qPassLease, to, until, id.id)
		return err
	})
	if err != nil {
		return fmt.Errorf("pass lease of %s on partition %d to %q: %w", f.Group, f.Partition, to, err)
	}
	return nil
}

// Progress implements ledger.Handovers.
func (db *DB) Progress(ctx context.Context, f ledger.Fence) (l ledger.Lease, err error) {
	err = db.write(ctx, func(c *conn) error {
		if _, _, err := db.fenced(c, f); err != nil {
			return err
		}
		l, err = db.standing(c, f.Key)
		return err
	})
	if err != nil {
		return ledger.Lease{}, fmt.Errorf("read progress of %s on partition %d: %w", f.Group, f.Partition, err)
	}
	return l, nil
}

// standing is a lease as its owner finds it: what has expired of what is carried goes first. Whoever holds the writer
// calls it, so that nothing commits in between.
func (db *DB) standing(c *conn, key ledger.Key) (ledger.Lease, error) {
	l, id, _, err := db.lease(c, key)
	if err != nil {
		return ledger.Lease{}, err
	}
	if _, err := c.exec(qEndExpired, id.id, stamp(db.opts.Now())); err != nil {
		return ledger.Lease{}, err
	}
	err = c.query(qCarried, func(r row) error {
		l.Carried = append(l.Carried, ledger.Carried{Offset: r.int(0), Subject: r.text(1), Worker: r.text(2), Epoch: r.int(3), Expires: unstamp(r.int(4))})
		return nil
	}, id.id)
	return l.Lease, err
}

// PutDown implements ledger.Handovers.
func (db *DB) PutDown(ctx context.Context, f ledger.Fence, offsets ...int64) error {
	err := db.write(ctx, func(c *conn) error {
		id, found, err := db.leaseID(c, f.Key)
		if err != nil || !found {
			return err
		}
		for _, offset := range offsets {
			if _, err := c.exec(qPutDown, id.id, f.Owner, f.Epoch, offset); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("put down %d steps of %s on partition %d: %w", len(offsets), f.Group, f.Partition, err)
	}
	return nil
}

// carries tells whether a step that was begun under a fence is carried.
func (db *DB) carries(c *conn, id leaseID, f ledger.Fence, offset int64) (bool, error) {
	return c.first(qCarries, func(row) {}, id.id, f.Owner, f.Epoch, offset)
}

func errNotCarried(f ledger.Fence, offset int64) error {
	return fmt.Errorf("%w: nothing is carried of %s at offset %d of partition %d by %q since epoch %d",
		ledger.ErrFenced, f.Group, offset, f.Partition, f.Owner, f.Epoch)
}
