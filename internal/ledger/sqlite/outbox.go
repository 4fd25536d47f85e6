package sqlite

import (
	"context"
	"fmt"
	"strings"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qOutbox           = define("SELECT seq, topic, part, message FROM swarmlog_outbox WHERE lease_id = ? AND seq > ? ORDER BY seq LIMIT ?")
	qNextSubject      = define("SELECT subject, reason, dead FROM swarmlog_backlog WHERE lease_id = ? AND subject > ? ORDER BY subject, sequence, position LIMIT 1")
	qAnySubject       = define("SELECT subject, reason, dead FROM swarmlog_backlog WHERE lease_id = ? ORDER BY subject, sequence, position LIMIT 1")
	qReleasedSubjects = define("SELECT DISTINCT subject FROM swarmlog_backlog WHERE lease_id = ? AND released = 1")
	qBacklog          = define("SELECT reason, position, dead, sequence, message, released FROM swarmlog_backlog WHERE lease_id = ? AND subject = ? " +
		"ORDER BY sequence, position LIMIT ?")
)

// readFenced runs f on a reader with the id of a lease whose owner and epoch are still these.
func (db *DB) readFenced(ctx context.Context, what string, f ledger.Fence, do func(c *conn, lease int64) error) error {
	err := db.read(ctx, func(c *conn) error {
		_, id, err := db.fenced(c, f)
		if err != nil {
			return err
		}
		return do(c, id.id)
	})
	if err != nil {
		return fmt.Errorf("%s of %s on partition %d: %w", what, f.Group, f.Partition, err)
	}
	return nil
}

// Outbox implements ledger.Ledger.
func (db *DB) Outbox(ctx context.Context, f ledger.Fence, after int64, limit int) (out []ledger.Outgoing, err error) {
	err = db.readFenced(ctx, "read outbox", f, func(c *conn, lease int64) error {
		return c.query(qOutbox, func(r row) error {
			m, err := decodeMessage(r.blob(3))
			if err != nil {
				return fault.Fatalf("row %d: %w", r.int(0), err)
			}
			out = append(out, ledger.Outgoing{Seq: r.int(0), Topic: r.text(1), Partition: int32(r.int(2)), Message: m})
			return nil
		}, lease, after, int64(limit))
	})
	return out, err
}

// Parked implements ledger.Ledger. It takes a look-up or two per subject, however many rows wait.
func (db *DB) Parked(ctx context.Context, f ledger.Fence) (map[string]string, error) {
	parked := make(map[string]string)
	err := db.readFenced(ctx, "list parked aggregates", f, func(c *conn, lease int64) error {
		var subject, reason string
		var dead bool
		read := func(r row) { subject, reason, dead = r.text(0), r.text(1), r.int(2) != 0 }
		found, err := c.first(qAnySubject, read, lease)
		for found && err == nil {
			parked[subject] = reason
			if !dead && strings.HasPrefix(reason, ledger.ParkedReason) {
				headed, err := c.first(qHead, func(row) {}, lease, subject)
				if err != nil {
					return err
				}
				if !headed {
					parked[subject] = goesOn(reason)
				}
			}
			found, err = c.first(qNextSubject, read, lease, subject)
		}
		if err != nil {
			return err
		}
		return c.query(qReleasedSubjects, func(r row) error {
			if reason := parked[r.text(0)]; !strings.HasPrefix(reason, ledger.GoOnReason) {
				parked[r.text(0)] = goesOn(reason)
			}
			return nil
		}, lease)
	})
	if err != nil {
		return nil, err
	}
	return parked, nil
}

func goesOn(reason string) string { return ledger.GoOnReason + ": " + reason }

// Backlog implements ledger.Ledger.
func (db *DB) Backlog(ctx context.Context, f ledger.Fence, subject string, limit int) (waits []ledger.Wait, err error) {
	err = db.readFenced(ctx, "read backlog", f, func(c *conn, lease int64) error {
		return c.query(qBacklog, func(r row) error {
			m, err := decodeMessage(r.blob(4))
			if err != nil {
				return fault.Fatalf("row of offset %d: %w", r.int(1), err)
			}
			waits = append(waits, ledger.Wait{Subject: subject, Reason: r.text(0), Offset: r.int(1), Dead: r.int(2) != 0,
				Released: r.int(5) != 0, Sequence: r.int(3), Message: m})
			return nil
		}, lease, subject, int64(limit))
	})
	return waits, err
}
