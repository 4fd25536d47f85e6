package sqlite

import (
	"bytes"
	"context"
	"database/sql/driver"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

const waitsLimit = 100 // where a query has none

const (
	waitColumns = "SELECT b.position, b.subject, b.reason, b.dead, b.released, b.sequence, b.message, b.arrived, " +
		"CASE WHEN b.dead = 1 AND NOT (b.released = 1 AND b.alone = 1) " +
		"THEN (SELECT count(*) FROM swarmlog_backlog w WHERE w.lease_id = b.lease_id AND w.subject = b.subject) " +
		"- (SELECT count(*) FROM swarmlog_backlog d WHERE d.lease_id = b.lease_id AND d.subject = b.subject AND d.dead = 1) ELSE 0 END "
	waitPlaces = "WHERE b.lease_id = ?1 AND b.position > ?2 "
	waitOrder  = "ORDER BY b.position LIMIT ?3"
)

// What is few is looked up: else a page of one aggregate, or of the dead, would go through all that waits.
var (
	qWaits       = define(waitColumns + "FROM swarmlog_backlog b " + waitPlaces + waitOrder)
	qWaitsOf     = define(waitColumns + "FROM swarmlog_backlog b INDEXED BY swarmlog_backlog_subject " + waitPlaces + "AND b.subject = ?4 " + waitOrder)
	qDeadWaits   = define(waitColumns + "FROM swarmlog_backlog b INDEXED BY swarmlog_backlog_dead " + waitPlaces + "AND b.dead = 1 " + waitOrder)
	qDeadWaitsOf = define(waitColumns + "FROM swarmlog_backlog b INDEXED BY swarmlog_backlog_head " + waitPlaces + "AND b.dead = 1 AND b.subject = ?4 " + waitOrder)
)

// Waits implements ledger.Redrives. It goes from lease to lease, so that a page costs no more the later it is.
func (db *DB) Waits(ctx context.Context, q ledger.WaitQuery) (rows []ledger.WaitRow, err error) {
	limit := q.Limit
	if limit <= 0 {
		limit = waitsLimit
	}
	err = db.read(ctx, func(c *conn) error {
		leases, err := db.waitLeases(c, q)
		if err != nil {
			return err
		}
		for _, l := range leases {
			if len(rows) >= limit {
				return nil
			}
			if rows, err = l.waits(c, q, rows, limit); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list what waits: %w", err)
	}
	return rows, nil
}

// waitLease is a lease whose rows are listed after an offset.
type waitLease struct {
	ledger.Lease
	id    leaseID
	after int64
}

// waitLeases are those that a query chooses, in order, from the one on that it goes on at.
func (db *DB) waitLeases(c *conn, q ledger.WaitQuery) (leases []waitLease, err error) {
	now := db.opts.Now()
	each := func(r row) error {
		l, id, err := readLease(r, now)
		if err != nil || q.Topic != "" && l.Topic != q.Topic {
			return err
		}
		switch at := comparePlace(l.Key, q.After); {
		case at == 0:
			leases = append(leases, waitLease{l, id, q.After.Offset})
		case at > 0:
			leases = append(leases, waitLease{l, id, math.MinInt64})
		}
		return nil
	}
	if q.Group == "" {
		err = c.query(qLeases, each)
	} else {
		err = c.query(qLeasesOf, each, q.Group)
	}
	slices.SortFunc(leases, func(a, b waitLease) int { return comparePlace(a.Key, placeOf(b.Key)) })
	return leases, err
}

func placeOf(k ledger.Key) ledger.WaitPlace {
	return ledger.WaitPlace{Group: k.Group, TopicID: k.TopicID, Partition: k.Partition}
}

// comparePlace compares a lease with that of a place.
func comparePlace(k ledger.Key, p ledger.WaitPlace) int {
	if n := strings.Compare(k.Group, p.Group); n != 0 {
		return n
	}
	if n := bytes.Compare(k.TopicID[:], p.TopicID[:]); n != 0 {
		return n
	}
	return int(k.Partition) - int(p.Partition)
}

// waits adds a lease's rows up to a limit.
func (l waitLease) waits(c *conn, q ledger.WaitQuery, rows []ledger.WaitRow, limit int) ([]ledger.WaitRow, error) {
	each := func(r row) error {
		m, err := decodeMessage(r.blob(6))
		if err != nil {
			return fault.Fatalf("row of offset %d: %w", r.int(0), err)
		}
		rows = append(rows, ledger.WaitRow{Key: l.Key, Topic: l.Topic, Arrived: unstamp(r.int(7)), Behind: r.int(8),
			Wait: ledger.Wait{Offset: r.int(0), Subject: r.text(1), Reason: r.text(2), Dead: r.int(3) != 0, Released: r.int(4) != 0,
				Sequence: r.int(5), Message: m}})
		return nil
	}
	args := []driver.Value{l.id.id, l.after, int64(limit - len(rows))}
	id := qWaits
	switch {
	case q.Subject != "" && q.DeadOnly:
		id, args = qDeadWaitsOf, append(args, q.Subject)
	case q.Subject != "":
		id, args = qWaitsOf, append(args, q.Subject)
	case q.DeadOnly:
		id = qDeadWaits
	}
	err := c.query(id, each, args...)
	return rows, err
}
