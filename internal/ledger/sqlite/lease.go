package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

const leaseColumns = "g.name, l.topic_id, l.part, l.topic, l.owner, l.epoch, l.expires, l.next, l.finished, l.seq, " +
	"l.applied, l.duplicate, l.refused, l.skipped, l.ignored, l.dead, l.waiting, l.last_time, l.last_crc, l.id, l.group_id, l.commits, " +
	"l.misrouted, l.generation, l.passed_to, l.passed_until"

// Columns of leaseColumns that readLease leaves.
const (
	commitsColumn     = 21
	passedToColumn    = 24
	passedUntilColumn = 25
)

var (
	qLeaseByKey = define("SELECT " + leaseColumns + " FROM swarmlog_group g JOIN swarmlog_lease l ON l.group_id = g.id " +
		"WHERE g.name = ? AND l.topic_id = ? AND l.part = ?")
	qLeaseByID     = define("SELECT " + leaseColumns + " FROM swarmlog_lease l JOIN swarmlog_group g ON g.id = l.group_id WHERE l.id = ?")
	qLeases        = define("SELECT " + leaseColumns + " FROM swarmlog_lease l JOIN swarmlog_group g ON g.id = l.group_id ORDER BY g.name, l.topic, l.part, l.id")
	qLeasesOf      = define("SELECT " + leaseColumns + " FROM swarmlog_group g JOIN swarmlog_lease l ON l.group_id = g.id WHERE g.name = ? ORDER BY l.topic, l.part, l.id")
	qGroupID       = define("SELECT id FROM swarmlog_group WHERE name = ?")
	qInsertGroup   = define("INSERT INTO swarmlog_group (name) VALUES (?) RETURNING id")
	qInsertLease   = define("INSERT INTO swarmlog_lease VALUES (NULL, ?, ?, ?, ?, ?, 1, ?, ?, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ?, '', 0)")
	qTakeLease     = define("UPDATE swarmlog_lease SET topic = ?, owner = ?, epoch = epoch + 1, expires = ?, generation = ?, passed_to = '', passed_until = 0 WHERE id = ?")
	qReleaseLease  = define("UPDATE swarmlog_lease SET owner = '', expires = 0 WHERE id = ? AND owner = ? AND epoch = ?")
	qExtendCarried = define("UPDATE swarmlog_carried SET expires = ? WHERE worker = ?")
	qExtendLeases  = define("UPDATE swarmlog_lease SET expires = ? WHERE owner = ?")
	qOwnedLeases   = define("SELECT g.name, l.topic_id, l.part, l.owner, l.epoch FROM swarmlog_lease l JOIN swarmlog_group g ON g.id = l.group_id " +
		"WHERE l.owner = ? ORDER BY g.name, l.topic, l.part")
	qSkip = define("UPDATE swarmlog_lease SET next = ?, finished = ?, last_crc = ? WHERE id = ?")
)

// readLease reads a row of leaseColumns.
func readLease(r row, now time.Time) (ledger.Lease, leaseID, error) {
	l := ledger.Lease{
		Fence: ledger.Fence{Key: ledger.Key{Group: r.text(0), Partition: int32(r.int(2))}, Owner: r.text(4), Epoch: r.int(5)},
		Topic: r.text(3), Expires: unstamp(r.int(6)), Next: r.int(7), Seq: r.int(9),
		Counters: ledger.Counters{Applied: r.int(10), Duplicate: r.int(11), Refused: r.int(12), Skipped: r.int(13),
			Ignored: r.int(14), Dead: r.int(15), Waiting: r.int(16), Misrouted: r.int(22)},
		LastTime: unstamp(r.int(17)), LastCRC: uint32(r.int(18)), Generation: r.int(23),
	}
	copy(l.TopicID[:], r.blob(1))
	l.Held = l.Owner != "" && l.Expires.After(now)
	var err error
	if l.Finished, err = ledger.DecodeRanges(l.Next, r.blob(8)); err != nil {
		err = fault.Fatalf("read lease of %s on %s/%d: %w", l.Group, l.Topic, l.Partition, err)
	}
	return l, leaseID{r.int(19), r.int(20)}, err
}

// foundLease is a lease with whom it was passed to, if that one hasn't taken it yet.
type foundLease struct {
	ledger.Lease
	passedTo    string
	passedUntil time.Time
}

// lease finds a lease; found is false where it was never taken.
func (db *DB) lease(c *conn, key ledger.Key) (l foundLease, id leaseID, found bool, err error) {
	var bad error
	now := db.opts.Now()
	found, err = c.first(qLeaseByKey, func(r row) {
		l.Lease, id, bad = readLease(r, now)
		l.passedTo, l.passedUntil = r.text(passedToColumn), unstamp(r.int(passedUntilColumn))
	}, key.Group, key.TopicID[:], int64(key.Partition))
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
		err = errFenced(f, l.Lease)
	}
	return l.Lease, id, err
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
	return db.take(ctx, "acquire", key, topic, owner, start, ttl, 0)
}

// take is Acquire, and Claim where there's a generation.
func (db *DB) take(ctx context.Context, verb string, key ledger.Key, topic, owner string, start int64, ttl time.Duration, generation int64) (ledger.Lease, error) {
	what := fmt.Sprintf("%s lease of %s on %s/%d", verb, key.Group, topic, key.Partition)
	if owner == "" || start < 0 {
		return ledger.Lease{}, fault.Fatalf("%s: owner %q and start %d: it takes a name and an offset", what, owner, start)
	}
	var l ledger.Lease
	err := db.write(ctx, func(c *conn) error {
		now := db.opts.Now()
		old, id, found, err := db.lease(c, key)
		if err != nil {
			return err
		}
		if !found {
			group, err := db.group(c, key.Group)
			if err != nil {
				return err
			}
			if _, err := c.exec(qInsertLease, group, key.TopicID[:], int64(key.Partition), topic, owner, stamp(now.Add(ttl)), start, generation); err != nil {
				return err
			}
		} else {
			if err := old.refusal(owner, generation, now); err != nil {
				return err
			}
			if _, err := c.exec(qTakeLease, topic, owner, stamp(now.Add(ttl)), generation, id.id); err != nil {
				return err
			}
		}
		l, err = db.standing(c, key)
		return err
	})
	if err != nil {
		db.forget(key)
		return ledger.Lease{}, fmt.Errorf("%s: %w", what, err)
	}
	return l, nil
}

// refusal is why owner can't have a lease, as one who acquires it where generation is 0, and else as one who claims it.
func (l foundLease) refusal(owner string, generation int64, now time.Time) error {
	switch {
	case l.Held && (l.Generation > 0) != (generation > 0):
		kind := "leases"
		if l.Generation > 0 {
			kind = "a Kafka group"
		}
		return fmt.Errorf("%w: %s has it until %s by way of %s: let all workers of an agent use the same membership",
			ledger.ErrMode, l.Owner, l.Expires.Format(time.RFC3339Nano), kind)
	case generation == 0 && l.Held && l.Owner != owner:
		return fmt.Errorf("%w: %s has it until %s", ledger.ErrHeld, l.Owner, l.Expires.Format(time.RFC3339Nano))
	case generation == 0 && l.passedTo != "" && l.passedTo != owner && l.passedUntil.After(now):
		return fmt.Errorf("%w: it was passed to %s, and kept for it until %s", ledger.ErrHeld, l.passedTo, l.passedUntil.Format(time.RFC3339Nano))
	case generation > 0 && l.Held && l.Generation > generation:
		return fmt.Errorf("%w: %s claimed it in generation %d of the group, and this is %d", ledger.ErrHeld, l.Owner, l.Generation, generation)
	}
	return nil
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
		if _, err := c.exec(qPutSkippedDown, id.id, l.Next, offset); err != nil {
			return err
		}
		_, err = c.exec(qSkip, next, rest.Encode(next), int64(l.LastCRC), id.id)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("skip to offset %d of partition %d for %s: %w", offset, f.Partition, f.Group, err)
	}
	return passed, nil
}
