package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// Reads under a fence are one statement each, so that fence and rows are of one state. The lease's own row comes even
// where nothing else does.
const fencedRow = "SELECT l.owner, l.epoch, l.topic, x.* FROM {}lease l JOIN {}agent_group g ON g.id = l.group_id "

var (
	qOutbox = define(fencedRow + "LEFT JOIN LATERAL (SELECT o.seq, o.topic, o.part, o.message FROM {}outbox o WHERE o.lease_id = l.id AND o.seq > $4 " +
		"ORDER BY o.seq LIMIT $5) x ON true WHERE g.name = $1 AND l.topic_id = $2 AND l.part = $3 ORDER BY x.seq")
	// A few look-ups for each subject, however many rows wait.
	qParked = define("WITH RECURSIVE l AS (SELECT l.id, l.owner, l.epoch, l.topic FROM {}lease l JOIN {}agent_group g ON g.id = l.group_id " +
		"WHERE g.name = $1 AND l.topic_id = $2 AND l.part = $3), x AS (" +
		"(SELECT b.subject_key, b.subject, b.reason, b.dead FROM {}backlog b, l WHERE b.lease_id = l.id ORDER BY b.subject_key, b.sequence, b.position LIMIT 1) " +
		"UNION ALL SELECT n.subject_key, n.subject, n.reason, n.dead FROM x, l, LATERAL (SELECT b.subject_key, b.subject, b.reason, b.dead FROM {}backlog b " +
		"WHERE b.lease_id = l.id AND b.subject_key > x.subject_key ORDER BY b.subject_key, b.sequence, b.position LIMIT 1) n) " +
		"SELECT l.owner, l.epoch, l.topic, x.subject, x.reason, x.dead, " +
		"EXISTS (SELECT 1 FROM {}backlog b WHERE b.lease_id = l.id AND b.subject_key = x.subject_key AND b.dead AND NOT b.released), " +
		"EXISTS (SELECT 1 FROM {}backlog b WHERE b.lease_id = l.id AND b.subject_key = x.subject_key AND b.released) FROM l LEFT JOIN x ON true")
	qBacklog = define(fencedRow + "LEFT JOIN LATERAL (SELECT b.reason, b.position, b.dead, b.released, b.sequence, b.message FROM {}backlog b WHERE b.lease_id = l.id " +
		"AND b.subject_key = $4 AND b.subject = $5 ORDER BY b.sequence, b.position LIMIT $6) x ON true " +
		"WHERE g.name = $1 AND l.topic_id = $2 AND l.part = $3 ORDER BY x.sequence, x.position")
)

// readFenced runs a query whose rows begin with the owner, the epoch and the topic of a lease. where tells where the
// rest of a row goes, of which the first column is null where there's no row; each is called for every other row.
func (db *DB) readFenced(ctx context.Context, what string, f ledger.Fence, q stmt,
	where func() (dest []any, each func(none bool) error), more ...any) error {
	err := db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, db.sql[q], append([]any{f.Group, f.TopicID, f.Partition}, more...)...)
		if err != nil {
			return err
		}
		defer rows.Close()
		dest, each := where()
		var now ledger.Lease
		for rows.Next() {
			if err := rows.Scan(append([]any{&now.Owner, &now.Epoch, &now.Topic}, dest...)...); err != nil {
				return err
			}
			if now.Owner != f.Owner || now.Epoch != f.Epoch {
				return errFenced(f, now)
			}
			if err := each(rows.RawValues()[3] == nil); err != nil {
				return err
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if now.Epoch == 0 {
			return errFenced(f, now)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s of %s on partition %d: %w", what, f.Group, f.Partition, err)
	}
	return nil
}

// Outbox implements ledger.Ledger.
func (db *DB) Outbox(ctx context.Context, f ledger.Fence, after int64, limit int) (out []ledger.Outgoing, err error) {
	err = db.readFenced(ctx, "read outbox", f, qOutbox, func() ([]any, func(bool) error) {
		out = nil
		var seq *int64
		var topic *string
		var part *int32
		var message []byte
		return []any{&seq, &topic, &part, &message}, func(none bool) error {
			if none {
				return nil
			}
			m, err := decodeMessage(message)
			if err != nil {
				return own(fault.Fatalf("row %d: %w", *seq, err))
			}
			message = nil // the decoded one shares it
			out = append(out, ledger.Outgoing{Seq: *seq, Topic: *topic, Partition: *part, Message: m})
			return nil
		}
	}, after, limit)
	return out, err
}

// Parked implements ledger.Ledger.
func (db *DB) Parked(ctx context.Context, f ledger.Fence) (parked map[string]string, err error) {
	err = db.readFenced(ctx, "list parked aggregates", f, qParked, func() ([]any, func(bool) error) {
		parked = make(map[string]string)
		var subject []byte
		var reason *string
		var dead *bool
		var headed, released bool
		return []any{&subject, &reason, &dead, &headed, &released}, func(none bool) error {
			if none {
				return nil
			}
			why := *reason
			if released || !*dead && !headed && strings.HasPrefix(why, ledger.ParkedReason) {
				why = ledger.GoOnReason + ": " + why
			}
			parked[string(subject)] = why
			return nil
		}
	})
	if err != nil {
		return nil, err
	}
	return parked, nil
}

// Backlog implements ledger.Ledger.
func (db *DB) Backlog(ctx context.Context, f ledger.Fence, subject string, limit int) (waits []ledger.Wait, err error) {
	err = db.readFenced(ctx, "read backlog", f, qBacklog, func() ([]any, func(bool) error) {
		waits = nil
		var reason *string
		var position, sequence *int64
		var dead, released *bool
		var message []byte
		return []any{&reason, &position, &dead, &released, &sequence, &message}, func(none bool) error {
			if none {
				return nil
			}
			m, err := decodeMessage(message)
			if err != nil {
				return own(fault.Fatalf("row of offset %d: %w", *position, err))
			}
			message = nil
			waits = append(waits, ledger.Wait{Subject: subject, Reason: *reason, Offset: *position, Dead: *dead, Released: *released, Sequence: *sequence, Message: m})
			return nil
		}
	}, subjectKey(subject), []byte(subject), limit)
	return waits, err
}
