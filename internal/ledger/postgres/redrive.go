package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

const (
	hasSubject  = "b.lease_id = $1 AND b.subject_key = $2 AND b.subject = $3"
	fewestWaits = 100 // that are listed where nobody says how many
)

var (
	qRelease = define("UPDATE {}backlog SET released = true WHERE (lease_id, position) = (SELECT b.lease_id, b.position FROM {}backlog b WHERE " + hasSubject +
		" AND b.dead AND NOT b.released ORDER BY b.sequence, b.position LIMIT 1) AND ($4::bigint < 0 OR position = $4)")
	qDiscard = define("DELETE FROM {}backlog WHERE (lease_id, position) = (SELECT b.lease_id, b.position FROM {}backlog b WHERE " + hasSubject +
		" AND b.dead AND NOT b.released ORDER BY b.sequence, b.position LIMIT 1) AND ($4::bigint < 0 OR position = $4) RETURNING position, sequence, history")
	// A dead record that nobody will handle takes its place in its history after all, and leaves no gap.
	qBeginHistory = define("INSERT INTO {}history (group_id, history, last, lease_id, log_time) SELECT $1, $2, $3::bigint, $4, $5 WHERE $3::bigint = 1 ON CONFLICT DO NOTHING")
	qMoveHistory  = define("UPDATE {}history SET last = $3::bigint, lease_id = $4, log_time = $5 WHERE group_id = $1 AND history = $2 AND last = $3::bigint - 1 AND last > 0")
	qRequeue      = define("INSERT INTO {}backlog (lease_id, position, sequence, subject_key, subject, reason, dead, released, alone, event, message, arrived) " +
		"SELECT $1, $2, $3, $4, $5, $6, true, true, true, $7, $8, {now} FROM {}dead d WHERE d.lease_id = $1 AND d.position = $2 ON CONFLICT DO NOTHING")
	qDead = define("SELECT d.position FROM {}dead d JOIN {}lease l ON l.id = d.lease_id JOIN {}agent_group g ON g.id = l.group_id " +
		"WHERE g.name = $1 AND l.topic_id = $2 AND l.part = $3 AND d.position = ANY ($4::bigint[])")
	qDismiss = define("DELETE FROM {}dead d WHERE d.lease_id = $1 AND d.position = ANY ($2::bigint[]) AND " +
		"NOT EXISTS (SELECT 1 FROM {}backlog b WHERE b.lease_id = d.lease_id AND b.position = d.position)")
	qAsk  = define("INSERT INTO {}ask (lease_id, subject_key, subject) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")
	qAsks = define("SELECT g.name, l.topic_id, l.part, l.owner, l.epoch, a.subject FROM {}ask a JOIN {}lease l ON l.id = a.lease_id JOIN {}agent_group g ON g.id = l.group_id " +
		"WHERE l.owner = $1 AND $1 <> '' ORDER BY a.lease_id, a.subject_key")
	qAnswer = define("DELETE FROM {}ask WHERE lease_id = $1 AND subject_key = ANY ($2::uuid[])")
)

// Redrive implements ledger.Redrives.
func (db *DB) Redrive(ctx context.Context, key ledger.Key, subject string, offset int64) (done bool, err error) {
	return db.decideOn(ctx, "redrive", key, subject, func(ctx context.Context, c *pgx.Conn, l foundLease) (bool, error) {
		tag, err := c.Exec(ctx, db.sql[qRelease], l.id, subjectKey(subject), []byte(subject), offset)
		return tag.RowsAffected() > 0, err
	})
}

// Discard implements ledger.Redrives.
func (db *DB) Discard(ctx context.Context, key ledger.Key, subject string, offset int64) (done bool, err error) {
	return db.decideOn(ctx, "discard", key, subject, func(ctx context.Context, c *pgx.Conn, l foundLease) (bool, error) {
		var position, sequence int64
		var history []byte
		found := false
		rows, err := c.Query(ctx, db.sql[qDiscard], l.id, subjectKey(subject), []byte(subject), offset)
		if err != nil {
			return false, err
		}
		if err := collect(rows, func(r pgx.CollectableRow) (struct{}, error) {
			return struct{}{}, r.Scan(&position, &sequence, &history)
		},
			func(struct{}) { found = true }); err != nil || !found {
			return false, err
		}
		b := &pgx.Batch{}
		b.Queue(db.sql[qRecover], []int32{l.id}, []int64{position})
		if sequence > 0 && history != nil {
			b.Queue(db.sql[qBeginHistory], l.group, history, sequence, l.id, stamp(l.LastTime))
			b.Queue(db.sql[qMoveHistory], l.group, history, sequence, l.id, stamp(l.LastTime))
		}
		return true, send(ctx, c, b)
	})
}

// Requeue implements ledger.Redrives.
func (db *DB) Requeue(ctx context.Context, key ledger.Key, w ledger.Wait) (done bool, err error) {
	if n := size(w.Message); n > largestMessage {
		return false, fault.Permanentf("requeue offset %d of partition %d for %s: it has %d bytes, and the backlog takes %d at most", w.Offset, key.Partition, key.Group, n, largestMessage)
	}
	return db.decideOn(ctx, "requeue", key, w.Subject, func(ctx context.Context, c *pgx.Conn, l foundLease) (bool, error) {
		tag, err := c.Exec(ctx, db.sql[qRequeue], l.id, w.Offset, w.Sequence, subjectKey(w.Subject), []byte(w.Subject), text(w.Reason),
			eventOf(w.Message, event.Position{Topic: l.Topic, Partition: l.Partition, Offset: w.Offset}), encodeMessage(w.Message))
		return tag.RowsAffected() > 0, err
	})
}

// eventOf is what a record's event is found by among recorded calls; zero where it isn't an event.
func eventOf(m event.Message, at event.Position) (key [16]byte) {
	if e, err := event.Decode(m, at); err == nil {
		key = eventKey(e.Source, e.ID)
	}
	return key
}

// decideOn carries a person's decision about an aggregate out under its lease's lock, so that no commit is halfway
// through its rows, and puts it on the list of what the owner is asked to look at.
func (db *DB) decideOn(ctx context.Context, what string, key ledger.Key, subject string,
	f func(context.Context, *pgx.Conn, foundLease) (bool, error)) (done bool, err error) {
	err = db.underLease(ctx, qWriteLease, key, func(ctx context.Context, c *pgx.Conn, l foundLease) error {
		if done = false; l.id == 0 {
			return nil
		}
		decided, err := f(ctx, c, l)
		if err != nil || !decided {
			return err
		}
		done = true
		_, err = c.Exec(ctx, db.sql[qAsk], l.id, subjectKey(subject), []byte(subject))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("%s %s of %s on partition %d: %w", what, subject, key.Group, key.Partition, err)
	}
	return done, nil
}

// Dead implements ledger.Redrives.
func (db *DB) Dead(ctx context.Context, key ledger.Key, offsets []int64) ([]bool, error) {
	dead := make(map[int64]bool)
	err := db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		clear(dead)
		rows, err := c.Query(ctx, db.sql[qDead], key.Group, key.TopicID, key.Partition, offsets)
		if err != nil {
			return err
		}
		return collect(rows, pgx.RowTo[int64], func(offset int64) { dead[offset] = true })
	})
	if err != nil {
		return nil, fmt.Errorf("ask which records of %s on partition %d are dead: %w", key.Group, key.Partition, err)
	}
	out := make([]bool, len(offsets))
	for i, offset := range offsets {
		out[i] = dead[offset]
	}
	return out, nil
}

// Dismiss implements ledger.Redrives.
func (db *DB) Dismiss(ctx context.Context, key ledger.Key, offsets ...int64) (dismissed int64, err error) {
	err = db.underLease(ctx, qWriteLease, key, func(ctx context.Context, c *pgx.Conn, l foundLease) error {
		tag, err := c.Exec(ctx, db.sql[qDismiss], l.id, offsets)
		dismissed = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("dismiss %d dead records of %s on partition %d: %w", len(offsets), key.Group, key.Partition, err)
	}
	return dismissed, nil
}

// Asks implements ledger.Redrives.
func (db *DB) Asks(ctx context.Context, worker string) (asks []ledger.Ask, err error) {
	err = db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		asks = nil
		rows, err := c.Query(ctx, db.sql[qAsks], worker)
		if err != nil {
			return err
		}
		return collect(rows, func(r pgx.CollectableRow) (a ledger.Ask, err error) {
			var subject []byte
			err = r.Scan(&a.Fence.Group, &a.Fence.TopicID, &a.Fence.Partition, &a.Fence.Owner, &a.Fence.Epoch, &subject)
			a.Subject = string(subject)
			return a, err
		}, func(a ledger.Ask) { asks = append(asks, a) })
	})
	if err != nil {
		return nil, fmt.Errorf("list what worker %s is asked: %w", worker, err)
	}
	return asks, nil
}

// Answer implements ledger.Redrives.
func (db *DB) Answer(ctx context.Context, f ledger.Fence, subjects ...string) error {
	keys := make([][16]byte, len(subjects))
	for i, s := range subjects {
		keys[i] = subjectKey(s)
	}
	err := db.underLease(ctx, qKeyShareLease, f.Key, func(ctx context.Context, c *pgx.Conn, l foundLease) error {
		if !holds(l, f) {
			return errFenced(f, l.Lease)
		}
		_, err := c.Exec(ctx, db.sql[qAnswer], l.id, keys)
		return err
	})
	if err != nil {
		return fmt.Errorf("answer about %d aggregates of %s on partition %d: %w", len(subjects), f.Group, f.Partition, err)
	}
	return nil
}

// Waits implements ledger.Redrives. Each lease gives its first rows, and the first of all those are the answer: however
// many wait, no more are read than the limit for each lease.
func (db *DB) Waits(ctx context.Context, q ledger.WaitQuery) (waits []ledger.WaitRow, err error) {
	if q.Limit <= 0 {
		q.Limit = fewestWaits
	}
	sql, args := waitsOf(q)
	err = db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		waits = nil
		rows, err := c.Query(ctx, fill(sql, db.opts.Schema), args...)
		if err != nil {
			return err
		}
		return collect(rows, scanWaitRow, func(w ledger.WaitRow) { waits = append(waits, w) })
	})
	if err != nil {
		return nil, fmt.Errorf("list the backlog: %w", err)
	}
	return waits, nil
}

// waitsOf puts the statement for a query together, from constant parts alone.
func waitsOf(q ledger.WaitQuery) (string, []any) {
	after := q.After
	args := []any{after.Group, after.TopicID, after.Partition, after.Offset, q.Limit}
	given := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	var leases, rows []string
	if after == (ledger.WaitPlace{}) {
		args[3] = int64(-1) // the first row may be at offset 0
	}
	if q.Group != "" {
		leases = append(leases, "g.name = "+given(q.Group))
	}
	if q.Topic != "" {
		leases = append(leases, "l.topic = "+given(q.Topic))
	}
	if q.Subject != "" {
		rows = append(rows, "b.subject_key = "+given(subjectKey(q.Subject))+" AND b.subject = "+given([]byte(q.Subject)))
	}
	if q.DeadOnly {
		rows = append(rows, "b.dead")
	}
	and := func(parts []string) string {
		if len(parts) == 0 {
			return ""
		}
		return " AND " + strings.Join(parts, " AND ")
	}
	const order = `l.name COLLATE "C", l.topic_id, l.part`
	return "SELECT l.name, l.topic_id, l.part, l.topic, x.position, x.subject, x.reason, x.dead, x.released, x.sequence, x.arrived, x.message, " +
		"CASE WHEN x.dead AND NOT (x.released AND x.alone) THEN (SELECT count(*) FROM {}backlog o WHERE o.lease_id = l.id AND o.subject_key = x.subject_key AND o.subject = x.subject AND NOT o.dead) ELSE 0 END " +
		"FROM (SELECT l.id, g.name, l.topic_id, l.part, l.topic FROM {}lease l JOIN {}agent_group g ON g.id = l.group_id " +
		`WHERE (g.name COLLATE "C", l.topic_id, l.part) >= ($1 COLLATE "C", $2::uuid, $3::integer)` + and(leases) + ") l CROSS JOIN LATERAL (" +
		`SELECT b.* FROM {}backlog b WHERE b.lease_id = l.id AND b.position > CASE WHEN (l.name COLLATE "C", l.topic_id, l.part) = ($1 COLLATE "C", $2::uuid, $3::integer) THEN $4::bigint ELSE -1 END` +
		and(rows) + " ORDER BY b.position LIMIT $5) x ORDER BY " + order + ", x.position LIMIT $5", args
}

func scanWaitRow(r pgx.CollectableRow) (w ledger.WaitRow, err error) {
	var subject, message []byte
	if err := r.Scan(&w.Key.Group, &w.Key.TopicID, &w.Key.Partition, &w.Topic, &w.Offset, &subject, &w.Reason, &w.Dead, &w.Released, &w.Sequence,
		int64Time{&w.Arrived}, &message, &w.Behind); err != nil {
		return w, err
	}
	w.Subject = string(subject)
	if w.Message, err = decodeMessage(message); err != nil {
		return w, own(fault.Fatalf("row of offset %d of %s on %s/%d: %w", w.Offset, w.Key.Group, w.Topic, w.Key.Partition, err))
	}
	return w, nil
}
