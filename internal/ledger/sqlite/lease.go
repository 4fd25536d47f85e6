package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

const leaseColumns = "g.name, l.topic_id, l.part, l.topic, l.owner, l.epoch, l.expires, l.next, l.finished, l.seq, " +
	"l.applied, l.duplicate, l.refused, l.skipped, l.ignored, l.dead, l.waiting, l.last_time, l.last_crc, l.id, l.group_id, l.commits"

var (
	qLeaseByKey = define("SELECT " + leaseColumns + " FROM swarmlog_group g JOIN swarmlog_lease l ON l.group_id = g.id " +
		"WHERE g.name = ? AND l.topic_id = ? AND l.part = ?")
	qLeaseByID    = define("SELECT " + leaseColumns + " FROM swarmlog_lease l JOIN swarmlog_group g ON g.id = l.group_id WHERE l.id = ?")
	qLeases       = define("SELECT " + leaseColumns + " FROM swarmlog_lease l JOIN swarmlog_group g ON g.id = l.group_id ORDER BY g.name, l.topic, l.part, l.id")
	qLeasesOf     = define("SELECT " + leaseColumns + " FROM swarmlog_group g JOIN swarmlog_lease l ON l.group_id = g.id WHERE g.name = ? ORDER BY l.topic, l.part, l.id")
	qGroupID      = define("SELECT id FROM swarmlog_group WHERE name = ?")
	qInsertGroup  = define("INSERT INTO swarmlog_group (name) VALUES (?) RETURNING id")
	qInsertLease  = define("INSERT INTO swarmlog_lease VALUES (NULL, ?, ?, ?, ?, ?, 1, ?, ?, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)")
	qTakeLease    = define("UPDATE swarmlog_lease SET topic = ?, owner = ?, epoch = epoch + 1, expires = ? WHERE id = ?")
	qReleaseLease = define("UPDATE swarmlog_lease SET owner = '', expires = 0 WHERE id = ? AND owner = ? AND epoch = ?")
	qExtendLeases = define("UPDATE swarmlog_lease SET expires = ? WHERE owner = ?")
	qOwnedLeases  = define("SELECT g.name, l.topic_id, l.part, l.owner, l.epoch FROM swarmlog_lease l JOIN swarmlog_group g ON g.id = l.group_id " +
		"WHERE l.owner = ? ORDER BY g.name, l.topic, l.part")
	qSkip = define("UPDATE swarmlog_lease SET next = ?, finished = ?, last_crc = ? WHERE id = ?")

	qBeat = define("INSERT INTO swarmlog_worker VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET pool = excluded.pool, " +
		"started = excluded.started, beat = excluded.beat, in_flight = excluded.in_flight, oldest = excluded.oldest")
	qRetire  = define("DELETE FROM swarmlog_worker WHERE id = ?")
	qWorkers = define("SELECT id, pool, started, beat, in_flight, oldest FROM swarmlog_worker WHERE beat >= ? ORDER BY id")
)

// readLease reads a row of leaseColumns.
func readLease(r row, now time.Time) (ledger.Lease, leaseID, error) {
	l := ledger.Lease{
		Fence: ledger.Fence{Key: ledger.Key{Group: r.text(0), Partition: int32(r.int(2))}, Owner: r.text(4), Epoch: r.int(5)},
		Topic: r.text(3), Expires: unstamp(r.int(6)), Next: r.int(7), Seq: r.int(9),
		Counters: ledger.Counters{Applied: r.int(10), Duplicate: r.int(11), Refused: r.int(12), Skipped: r.int(13),
			Ignored: r.int(14), Dead: r.int(15), Waiting: r.int(16)},
		LastTime: unstamp(r.int(17)), LastCRC: uint32(r.int(18)),
	}
	copy(l.TopicID[:], r.blob(1))
	l.Held = l.Owner != "" && l.Expires.After(now)
	var err error
	if l.Finished, err = ledger.DecodeRanges(l.Next, r.blob(8)); err != nil {
		err = fault.Fatalf("read lease of %s on %s/%d: %w", l.Group, l.Topic, l.Partition, err)
	}
	return l, leaseID{r.int(19), r.int(20)}, err
}

// lease finds a lease; found is false where it was never taken.
func (db *DB) lease(c *conn, key ledger.Key) (l ledger.Lease, id leaseID, found bool, err error) {
	var bad error
	now := db.opts.Now()
	found, err = c.first(qLeaseByKey, func(r row) { l, id, bad = readLease(r, now) }, key.Group, key.TopicID[:], int64(key.Partition))
	if err == nil {
		err = bad
	}
	if found && err == nil {
		db.mu.Lock()
		db.leases[key] = id
		db.mu.Unlock()
	}
	return l, id, found, err
}

// fenced finds a lease and compares its owner and epoch.
func (db *DB) fenced(c *conn, f ledger.Fence) (ledger.Lease, leaseID, error) {
	l, id, found, err := db.lease(c, f.Key)
	if err == nil && (!found || l.Fence != f) {
		err = errFenced(f, l)
	}
	return l, id, err
}

func errFenced(f ledger.Fence, now ledger.Lease) error {
	if now.Epoch == 0 {
		return fmt.Errorf("%w: %s never took partition %d", ledger.ErrFenced, f.Group, f.Partition)
	}
	return fmt.Errorf("%w: %s on %s/%d is at epoch %d of %q, and this is epoch %d of %q",
		ledger.ErrFenced, f.Group, now.Topic, f.Partition, now.Epoch, now.Owner, f.Epoch, f.Owner)
}

// leaseID finds a lease's id, which is kept in memory since it never changes.
func (db *DB) leaseID(c *conn, key ledger.Key) (leaseID, bool, error) {
	db.mu.Lock()
	id, ok := db.leases[key]
	db.mu.Unlock()
	if ok {
		return id, true, nil
	}
	_, id, found, err := db.lease(c, key)
	return id, found, err
}

// Acquire implements ledger.Ledger.
func (db *DB) Acquire(ctx context.Context, key ledger.Key, topic, owner string, start int64, ttl time.Duration) (ledger.Lease, error) {
	what := fmt.Sprintf("acquire lease of %s on %s/%d", key.Group, topic, key.Partition)
	if owner == "" || start < 0 {
		return ledger.Lease{}, fault.Fatalf("%s: owner %q and start %d: it takes a name and an offset", what, owner, start)
	}
	var l ledger.Lease
	err := db.write(ctx, func(c *conn) error {
		now := db.opts.Now()
		old, id, found, err := db.lease(c, key)
		switch {
		case err != nil:
			return err
		case !found:
			group, err := db.group(c, key.Group)
			if err != nil {
				return err
			}
			if _, err := c.exec(qInsertLease, group, key.TopicID[:], int64(key.Partition), topic, owner, stamp(now.Add(ttl)), start); err != nil {
				return err
			}
		case old.Held && old.Owner != owner:
			return fmt.Errorf("%w: %s has it until %s", ledger.ErrHeld, old.Owner, old.Expires.Format(time.RFC3339Nano))
		default:
			if _, err := c.exec(qTakeLease, topic, owner, stamp(now.Add(ttl)), id.id); err != nil {
				return err
			}
		}
		l, _, _, err = db.lease(c, key)
		return err
	})
	if err != nil {
		db.forget(key)
		return ledger.Lease{}, fmt.Errorf("%s: %w", what, err)
	}
	return l, nil
}

// forget drops what is remembered of a lease whose row may have been rolled back.
func (db *DB) forget(key ledger.Key) {
	db.mu.Lock()
	delete(db.leases, key)
	db.mu.Unlock()
}

// group finds a group's id, and gives it one where it has none.
func (db *DB) group(c *conn, name string) (id int64, err error) {
	found, err := c.first(qGroupID, func(r row) { id = r.int(0) }, name)
	if err != nil || found {
		return id, err
	}
	_, err = c.first(qInsertGroup, func(r row) { id = r.int(0) }, name)
	return id, err
}

// Release implements ledger.Ledger.
func (db *DB) Release(ctx context.Context, fences ...ledger.Fence) error {
	err := db.write(ctx, func(c *conn) error {
		for _, f := range fences {
			id, found, err := db.leaseID(c, f.Key)
			if err != nil {
				return err
			}
			if !found {
				continue
			}
			if _, err := c.exec(qReleaseLease, id.id, f.Owner, f.Epoch); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("release %d leases: %w", len(fences), err)
	}
	return nil
}

// Leases implements ledger.Ledger.
func (db *DB) Leases(ctx context.Context, group string) (leases []ledger.Lease, err error) {
	err = db.read(ctx, func(c *conn) error {
		leases, err = db.list(c, group)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	return leases, nil
}

func (db *DB) list(c *conn, group string) (leases []ledger.Lease, err error) {
	now := db.opts.Now()
	each := func(r row) error {
		l, _, err := readLease(r, now)
		leases = append(leases, l)
		return err
	}
	if group == "" {
		return leases, c.query(qLeases, each)
	}
	return leases, c.query(qLeasesOf, each, group)
}

// Beat implements ledger.Ledger.
func (db *DB) Beat(ctx context.Context, w ledger.Worker, ttl time.Duration) (held []ledger.Fence, err error) {
	err = db.write(ctx, func(c *conn) error {
		now := db.opts.Now()
		if _, err := c.exec(qBeat, w.ID, w.Pool, stamp(w.Started), stamp(now), int64(w.InFlight), stamp(w.Oldest)); err != nil {
			return err
		}
		if _, err := c.exec(qExtendLeases, stamp(now.Add(ttl)), w.ID); err != nil {
			return err
		}
		return c.query(qOwnedLeases, func(r row) error {
			f := ledger.Fence{Key: ledger.Key{Group: r.text(0), Partition: int32(r.int(2))}, Owner: r.text(3), Epoch: r.int(4)}
			copy(f.TopicID[:], r.blob(1))
			held = append(held, f)
			return nil
		}, w.ID)
	})
	if err != nil {
		return nil, fmt.Errorf("beat of worker %s: %w", w.ID, err)
	}
	return held, nil
}

// Retire implements ledger.Ledger.
func (db *DB) Retire(ctx context.Context, worker string) error {
	err := db.write(ctx, func(c *conn) error {
		_, err := c.exec(qRetire, worker)
		return err
	})
	if err != nil {
		return fmt.Errorf("retire worker %s: %w", worker, err)
	}
	return nil
}

// Workers implements ledger.Ledger.
func (db *DB) Workers(ctx context.Context, ttl time.Duration) (workers []ledger.Worker, err error) {
	err = db.read(ctx, func(c *conn) error {
		workers, err = listWorkers(c, stamp(db.opts.Now().Add(-ttl)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return workers, nil
}

func listWorkers(c *conn, since int64) (workers []ledger.Worker, err error) {
	err = c.query(qWorkers, func(r row) error {
		workers = append(workers, ledger.Worker{ID: r.text(0), Pool: r.text(1), Started: unstamp(r.int(2)), Beat: unstamp(r.int(3)),
			InFlight: int(r.int(4)), Oldest: unstamp(r.int(5))})
		return nil
	}, since)
	return workers, err
}

// Skip implements ledger.Ledger. What is passed over ends as no outcome: it was never delivered.
func (db *DB) Skip(ctx context.Context, f ledger.Fence, offset int64) (passed int64, err error) {
	err = db.write(ctx, func(c *conn) error {
		l, id, err := db.fenced(c, f)
		if err != nil || offset <= l.Next {
			return err
		}
		passed = offset - l.Next
		var above ledger.Ranges
		for _, s := range l.Finished {
			passed -= max(0, min(s.To+1, offset)-s.From)
			if s.To >= offset {
				above = append(above, ledger.Span{From: max(s.From, offset), To: s.To})
			}
		}
		if len(above) == 0 {
			l.LastCRC = 0 // the record that it belongs to is gone
		}
		next, rest := above.Advance(offset)
		_, err = c.exec(qSkip, next, rest.Encode(next), int64(l.LastCRC), id.id)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("skip to offset %d of partition %d for %s: %w", offset, f.Partition, f.Group, err)
	}
	return passed, nil
}
