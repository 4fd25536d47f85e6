package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// A heartbeat writes its worker's row alone; a lease lasts as long as the later of its taking and that beat says.
const (
	leaseExpires = "CASE WHEN w.beat > l.taken THEN w.expires ELSE l.expires END"
	leaseColumns = "g.name, l.topic_id, l.part, l.topic, l.owner, l.epoch, " + leaseExpires + ", l.next, l.finished, l.seq, " +
		"l.applied, l.duplicate, l.refused, l.skipped, l.ignored, l.dead, l.waiting, l.misrouted, l.last_time, l.last_crc, l.generation, " +
		"l.id, l.group_id, l.commits, l.passed_to, l.passed_until, l.passed_by, l.passed_epoch, {now}"
	leaseTables = "{}lease l JOIN {}agent_group g ON g.id = l.group_id LEFT JOIN {}worker w ON w.id = l.owner "
	leaseByKey  = leaseTables + "WHERE g.name = $1 AND l.topic_id = $2 AND l.part = $3"
	leaseOrder  = ` ORDER BY g.name COLLATE "C", l.topic COLLATE "C", l.part, l.id`
)

var (
	qLeaseByKey    = define("SELECT " + leaseColumns + " FROM " + leaseByKey)
	qTouchLease    = define("SELECT l.id FROM {}lease l JOIN {}agent_group g ON g.id = l.group_id WHERE g.name = $1 AND l.topic_id = $2 AND l.part = $3 FOR UPDATE OF l")
	qWriteLease    = define("SELECT l.id FROM {}lease l JOIN {}agent_group g ON g.id = l.group_id WHERE g.name = $1 AND l.topic_id = $2 AND l.part = $3 FOR NO KEY UPDATE OF l")
	qKeyShareLease = define("SELECT l.id FROM {}lease l JOIN {}agent_group g ON g.id = l.group_id WHERE g.name = $1 AND l.topic_id = $2 AND l.part = $3 FOR KEY SHARE OF l")
	qShareLease    = define("SELECT " + leaseColumns + " FROM " + leaseByKey + " FOR KEY SHARE OF l")
	qLockLeases    = define("SELECT " + leaseColumns + " FROM unnest($1::text[], $2::uuid[], $3::integer[]) k (name, topic_id, part) " +
		"JOIN {}agent_group g ON g.name = k.name JOIN {}lease l ON l.group_id = g.id AND l.topic_id = k.topic_id AND l.part = k.part " +
		"LEFT JOIN {}worker w ON w.id = l.owner ORDER BY l.id FOR NO KEY UPDATE OF l")
	qLeases   = define("SELECT " + leaseColumns + " FROM " + leaseTables + leaseOrder)
	qLeasesOf = define("SELECT " + leaseColumns + " FROM " + leaseTables + "WHERE g.name = $1" + leaseOrder)

	qInsertGroup = define("INSERT INTO {}agent_group (name) SELECT $1 WHERE NOT EXISTS (SELECT 1 FROM {}agent_group WHERE name = $1) ON CONFLICT DO NOTHING")
	qInsertLease = define("INSERT INTO {}lease (group_id, topic_id, part, topic, owner, epoch, taken, expires, next, seq, applied, duplicate, refused, skipped, " +
		"ignored, dead, waiting, last_time, last_crc, commits) SELECT g.id, $2, $3, $4, '', 0, 0, 0, $5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM {}agent_group g " +
		"WHERE g.name = $1 AND NOT EXISTS (SELECT 1 FROM {}lease l WHERE l.group_id = g.id AND l.topic_id = $2 AND l.part = $3) ON CONFLICT DO NOTHING")
	qTakeLease = define("UPDATE {}lease SET topic = $2, owner = $3, epoch = epoch + 1, taken = n.at, expires = n.at + $4, generation = $5, " +
		"passed_to = '', passed_until = 0 FROM (SELECT {now} AS at) n WHERE id = $1 RETURNING epoch, expires")
	qReleaseLeases = define("WITH k AS (SELECT l.id, k.owner, k.epoch FROM unnest($1::text[], $2::uuid[], $3::integer[], $4::text[], $5::bigint[]) k (name, topic_id, part, owner, epoch) " +
		"JOIN {}agent_group g ON g.name = k.name JOIN {}lease l ON l.group_id = g.id AND l.topic_id = k.topic_id AND l.part = k.part " +
		"WHERE l.owner = k.owner AND l.epoch = k.epoch AND l.owner <> '' ORDER BY l.id FOR UPDATE OF l) " +
		"UPDATE {}lease l SET owner = '', expires = 0 FROM k WHERE l.id = k.id AND l.owner = k.owner AND l.epoch = k.epoch")
	// What is carried from the backlog doesn't need the log.
	qDropSkipped = define("DELETE FROM {}carried c WHERE c.lease_id = $1 AND c.position < $2 AND " +
		"NOT EXISTS (SELECT 1 FROM {}backlog b WHERE b.lease_id = c.lease_id AND b.position = c.position)")
	qSkip = define("UPDATE {}lease SET next = $2, finished = $3, last_crc = $4 WHERE id = $1")

	// The token rises once a second at most: beats don't queue for it.
	qBeat = define("WITH n AS MATERIALIZED (SELECT {now} AS at), b AS (INSERT INTO {}worker (id, pool, started, beat, expires, steps, memory, in_flight, oldest) " +
		"SELECT $1, $2, $3, n.at, n.at + $4, $5, $6, $7, $8 FROM n ON CONFLICT (id) DO UPDATE SET pool = excluded.pool, started = excluded.started, " +
		"beat = excluded.beat, expires = excluded.expires, steps = excluded.steps, memory = excluded.memory, in_flight = excluded.in_flight, oldest = excluded.oldest), " +
		"r AS (UPDATE {}tide SET token = token + 1, at = n.at FROM n WHERE one = (SELECT t.one FROM {}tide t, n WHERE t.at < n.at - 1000000 FOR UPDATE OF t SKIP LOCKED) RETURNING token) " +
		"SELECT coalesce((SELECT token FROM r), t.token), " + timeline + ", h.* FROM {}tide t LEFT JOIN (SELECT g.name, l.topic_id, l.part, l.owner, l.epoch, l.commits " +
		"FROM {}lease l JOIN {}agent_group g ON g.id = l.group_id WHERE l.owner = $1" + leaseOrder + ") h ON true")
	qRetire = define("WITH c AS (SELECT lease_id, position FROM {}carried WHERE worker = $1 ORDER BY lease_id, position FOR UPDATE), " +
		"d AS (DELETE FROM {}carried d USING c WHERE d.lease_id = c.lease_id AND d.position = c.position AND d.worker = $1) DELETE FROM {}worker WHERE id = $1")
	qWorkers = define(`SELECT ` + workerColumns + ` FROM {}worker WHERE beat >= {now} - $1 ORDER BY id COLLATE "C"`)
)

const workerColumns = "id, pool, started, beat, steps, memory, in_flight, oldest"

// foundLease is a lease with what only its row says.
type foundLease struct {
	ledger.Lease
	id, group int32
	commits   int64
	now       time.Time

	passedTo    string
	passedUntil time.Time
	passedBy    string
	passedEpoch int64
}

// scanLease reads a row of leaseColumns.
func scanLease(r pgx.CollectableRow) (l foundLease, err error) {
	var expires, lastTime, crc, now int64
	var finished []byte
	c := &l.Counters
	if err := r.Scan(&l.Group, &l.TopicID, &l.Partition, &l.Topic, &l.Owner, &l.Epoch, &expires, &l.Next, &finished, &l.Seq,
		&c.Applied, &c.Duplicate, &c.Refused, &c.Skipped, &c.Ignored, &c.Dead, &c.Waiting, &c.Misrouted, &lastTime, &crc, &l.Generation,
		&l.id, &l.group, &l.commits, &l.passedTo, int64Time{&l.passedUntil}, &l.passedBy, &l.passedEpoch, &now); err != nil {
		return l, err
	}
	l.Expires, l.LastTime, l.LastCRC, l.now = unstamp(expires), unstamp(lastTime), uint32(crc), unstamp(now)
	l.Held = l.Owner != "" && expires > now
	if l.Finished, err = ledger.DecodeRanges(l.Next, finished); err != nil {
		return l, own(fault.Fatalf("read lease of %s on %s/%d: %w", l.Group, l.Topic, l.Partition, err))
	}
	return l, nil
}

// collect hands each row of a query to f.
func collect[T any](rows pgx.Rows, scan func(pgx.CollectableRow) (T, error), f func(T)) error {
	defer rows.Close()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return err
		}
		f(v)
	}
	return rows.Err()
}

func errFenced(f ledger.Fence, now ledger.Lease) error {
	if now.Epoch == 0 {
		return fmt.Errorf("%w: %s never took partition %d", ledger.ErrFenced, f.Group, f.Partition)
	}
	return fmt.Errorf("%w: %s on %s/%d is at epoch %d of %q, and this is epoch %d of %q",
		ledger.ErrFenced, f.Group, now.Topic, f.Partition, now.Epoch, now.Owner, f.Epoch, f.Owner)
}

func errNotCarried(f ledger.Fence, offset int64) error {
	return fmt.Errorf("%w: offset %d of partition %d for %s isn't carried by %q under epoch %d, or isn't any more", ledger.ErrFenced,
		offset, f.Partition, f.Group, f.Owner, f.Epoch)
}

// Acquire implements ledger.Ledger.
func (db *DB) Acquire(ctx context.Context, key ledger.Key, topic, owner string, start int64, ttl time.Duration) (ledger.Lease, error) {
	return db.claim(ctx, "acquire", key, topic, owner, start, ttl, 0)
}

// claim takes a lease, for a generation of a Kafka group where that isn't 0.
func (db *DB) claim(ctx context.Context, verb string, key ledger.Key, topic, owner string, start int64, ttl time.Duration, generation int64) (ledger.Lease, error) {
	what := fmt.Sprintf("%s lease of %s on %s/%d", verb, key.Group, topic, key.Partition)
	if owner == "" || start < 0 {
		return ledger.Lease{}, fault.Fatalf("%s: owner %q and start %d: it takes a name and an offset", what, owner, start)
	}
	var l foundLease
	err := db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		l = foundLease{}
		b := &pgx.Batch{}
		db.open(b, inOwn)
		b.Queue(db.sql[qInsertGroup], key.Group)
		b.Queue(db.sql[qInsertLease], key.Group, key.TopicID, key.Partition, topic, start)
		b.Queue(db.sql[qTouchLease], key.Group, key.TopicID, key.Partition)
		// A statement of its own, since it sees what became of the row while the one before it waited for the lock.
		b.Queue(db.sql[qLeaseByKey], key.Group, key.TopicID, key.Partition).Query(func(rows pgx.Rows) error {
			return collect(rows, scanLease, func(f foundLease) { l = f })
		})
		if err := send(ctx, c, b); err != nil {
			return err
		}
		if err := db.memory.check(l); err != nil {
			return err
		}
		if err := l.refuses(owner, generation); err != nil {
			return err
		}
		l.Topic, l.Owner, l.Generation = topic, owner, generation
		b = &pgx.Batch{}
		b.Queue(db.sql[qTakeLease], l.id, topic, owner, ttl.Microseconds(), generation).QueryRow(func(r pgx.Row) error {
			return r.Scan(&l.Epoch, int64Time{&l.Expires})
		})
		db.endExpired(b, l.id)
		db.readCarried(b, &l.Lease, l.id)
		if err := send(ctx, c, b); err != nil {
			return err
		}
		l.Held = ttl > 0
		return db.commit(c)
	})
	if err != nil {
		return ledger.Lease{}, fmt.Errorf("%s: %w", what, err)
	}
	db.memory.keep(l.Key, l.Epoch, l.commits)
	return l.Lease, nil
}

// refuses tells why an owner can't have the lease now, with a generation of a Kafka group or without.
func (l foundLease) refuses(owner string, generation int64) error {
	until := l.Expires.Format(time.RFC3339Nano)
	switch {
	case l.Held && (generation > 0) != (l.Generation > 0):
		return fmt.Errorf("%w: %s has it until %s, with generation %d: stop the workers of the other kind first", ledger.ErrMode, l.Owner, until, l.Generation)
	case l.Held && generation == 0 && l.Owner != owner:
		return fmt.Errorf("%w: %s has it until %s", ledger.ErrHeld, l.Owner, until)
	case l.Held && generation < l.Generation:
		return fmt.Errorf("%w: %s has it in generation %d, and this is generation %d", ledger.ErrHeld, l.Owner, l.Generation, generation)
	case generation == 0 && l.passedTo != "" && l.passedTo != owner && l.passedUntil.After(l.now):
		return fmt.Errorf("%w: it was passed to %s, who may take it until %s", ledger.ErrHeld, l.passedTo, l.passedUntil.Format(time.RFC3339Nano))
	}
	return nil
}

// int64Time scans microseconds.
type int64Time struct{ t *time.Time }

// ScanInt64 implements pgtype.Int64Scanner.
func (i int64Time) ScanInt64(v pgtype.Int8) error { *i.t = unstamp(v.Int64); return nil }

// fenceArrays are the parts of fences as arrays for unnest.
func fenceArrays(fences []ledger.Fence) (names []string, topics [][16]byte, parts []int32, owners []string, epochs []int64) {
	for _, f := range fences {
		names, topics, parts = append(names, f.Group), append(topics, f.TopicID), append(parts, f.Partition)
		owners, epochs = append(owners, f.Owner), append(epochs, f.Epoch)
	}
	return names, topics, parts, owners, epochs
}

// Release implements ledger.Ledger.
func (db *DB) Release(ctx context.Context, fences ...ledger.Fence) error {
	if len(fences) == 0 {
		return nil
	}
	err := db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		names, topics, parts, owners, epochs := fenceArrays(fences)
		_, err := c.Exec(ctx, db.sql[qReleaseLeases], names, topics, parts, owners, epochs)
		return err
	})
	if err != nil {
		return fmt.Errorf("release %d leases: %w", len(fences), err)
	}
	return nil
}

// Leases implements ledger.Ledger.
func (db *DB) Leases(ctx context.Context, group string) (leases []ledger.Lease, err error) {
	err = db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		leases = nil
		q, args := qLeases, []any{}
		if group != "" {
			q, args = qLeasesOf, []any{group}
		}
		rows, err := c.Query(ctx, db.sql[q], args...)
		if err != nil {
			return err
		}
		return collect(rows, scanLease, func(l foundLease) { leases = append(leases, l.Lease) })
	})
	if err != nil {
		return nil, fmt.Errorf("list leases: %w", err)
	}
	return leases, nil
}

// Beat implements ledger.Ledger. It writes no lease, so that no commit under way holds it up.
func (db *DB) Beat(ctx context.Context, w ledger.Worker, ttl time.Duration) (held []ledger.Fence, err error) {
	err = db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		held = nil
		known := db.memory.copy() // before it's asked, since others may remember more meanwhile
		rows, err := c.Query(ctx, db.sql[qBeat], w.ID, w.Pool, stamp(w.Started), ttl.Microseconds(), int64(w.Steps), w.Memory, int64(w.InFlight), stamp(w.Oldest))
		if err != nil {
			return err
		}
		var p pulse
		if err := collect(rows, p.scan, func(l foundLease) {
			if l.Owner != "" {
				held = append(held, l.Fence)
				p.back = errors.Join(p.back, known.check(l))
			}
		}); err != nil {
			return err
		}
		return db.live(ctx, c, known, p)
	})
	if err != nil {
		return nil, fmt.Errorf("beat of worker %s: %w", w.ID, err)
	}
	return held, nil
}

func scanWorker(r pgx.CollectableRow) (w ledger.Worker, err error) {
	err = r.Scan(&w.ID, &w.Pool, int64Time{&w.Started}, int64Time{&w.Beat}, &w.Steps, &w.Memory, &w.InFlight, int64Time{&w.Oldest})
	return w, err
}

// Retire implements ledger.Ledger.
func (db *DB) Retire(ctx context.Context, worker string) error {
	err := db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, db.sql[qRetire], worker)
		return err
	})
	if err != nil {
		return fmt.Errorf("retire worker %s: %w", worker, err)
	}
	return nil
}

// Workers implements ledger.Ledger.
func (db *DB) Workers(ctx context.Context, ttl time.Duration) (workers []ledger.Worker, err error) {
	err = db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		workers = nil
		rows, err := c.Query(ctx, db.sql[qWorkers], ttl.Microseconds())
		if err != nil {
			return err
		}
		return collect(rows, scanWorker, func(w ledger.Worker) { workers = append(workers, w) })
	})
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return workers, nil
}

// Skip implements ledger.Ledger. What is passed over ends as no outcome: it was never delivered.
func (db *DB) Skip(ctx context.Context, f ledger.Fence, offset int64) (passed int64, err error) {
	err = db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		passed = 0
		var l foundLease
		b := &pgx.Batch{}
		db.open(b, inOwn)
		b.Queue(db.sql[qWriteLease], f.Group, f.TopicID, f.Partition)
		b.Queue(db.sql[qLeaseByKey], f.Group, f.TopicID, f.Partition).Query(func(rows pgx.Rows) error {
			return collect(rows, scanLease, func(f foundLease) { l = f })
		})
		if err := send(ctx, c, b); err != nil {
			return err
		}
		if l.Fence != f {
			return errFenced(f, l.Lease)
		}
		if offset > l.Next {
			passed = pass(&l.Lease, offset)
			b := &pgx.Batch{}
			b.Queue(db.sql[qSkip], l.id, l.Next, l.Finished.Encode(l.Next), int64(l.LastCRC))
			b.Queue(db.sql[qDropSkipped], l.id, offset)
			if err := send(ctx, c, b); err != nil {
				return err
			}
		}
		return db.commit(c)
	})
	if err != nil {
		return 0, fmt.Errorf("skip to offset %d of partition %d for %s: %w", offset, f.Partition, f.Group, err)
	}
	return passed, nil
}

// pass moves a lease's progress up to offset, and tells how many offsets weren't finished.
func pass(l *ledger.Lease, offset int64) (passed int64) {
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
	l.Next, l.Finished = above.Advance(offset)
	return passed
}
