package postgres

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qSetControl = define("INSERT INTO {}control AS c (group_name, paused, reason, at) VALUES ($1, $2, $3, {now}) " +
		"ON CONFLICT (group_name) DO UPDATE SET paused = excluded.paused, reason = excluded.reason, at = CASE WHEN c.paused = excluded.paused THEN c.at ELSE excluded.at END")
	qControls = define(`SELECT group_name, paused, reason, at FROM {}control ORDER BY group_name COLLATE "C"`)

	qRoute    = define("SELECT slots FROM {}route WHERE topic_id = $1")
	qSetRoute = define("INSERT INTO {}route (topic_id, topic, slots) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING")

	qTouchGroup = define("SELECT l.id FROM {}lease l JOIN {}agent_group g ON g.id = l.group_id WHERE g.name = $1 ORDER BY l.id FOR UPDATE OF l")
	qDropWaits  = define("WITH d AS (DELETE FROM {}backlog WHERE lease_id = $1 AND position >= $2 RETURNING dead) SELECT count(*) FROM d WHERE NOT dead")
	// The epoch rises, so that an owner whose time is over and who comes back commits nothing that was read before.
	qRewind = define("UPDATE {}lease SET owner = '', expires = 0, epoch = epoch + 1, next = $2, finished = NULL, last_crc = 0, waiting = waiting - $3, " +
		"passed_to = '', passed_until = 0 WHERE id = $1")
	qDropAllCarried  = define("DELETE FROM {}carried WHERE lease_id = $1")
	qForgetDead      = define("DELETE FROM {}dead WHERE lease_id = $1 AND position >= $2")
	qForgetApplied   = define("DELETE FROM {}seen WHERE lease_id = ANY ($1::integer[]) AND log_time >= $2")
	qForgetHistories = define("UPDATE {}history SET last = $3, log_time = $2 WHERE group_id = $4 AND (lease_id = ANY ($1::integer[]) AND log_time >= $2 OR lease_id = 0)")
)

// SetControl implements ledger.Controls.
func (db *DB) SetControl(ctx context.Context, c ledger.Control) error {
	err := db.own(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, db.sql[qSetControl], c.Group, c.Paused, text(c.Reason))
		return err
	})
	if err != nil {
		return fmt.Errorf("write what is wanted of %s: %w", c.Group, err)
	}
	return nil
}

// Controls implements ledger.Controls.
func (db *DB) Controls(ctx context.Context) (controls []ledger.Control, err error) {
	err = db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		controls = nil
		rows, err := c.Query(ctx, db.sql[qControls])
		if err != nil {
			return err
		}
		return collect(rows, func(r pgx.CollectableRow) (c ledger.Control, err error) {
			err = r.Scan(&c.Group, &c.Paused, &c.Reason, int64Time{&c.At})
			return c, err
		}, func(c ledger.Control) { controls = append(controls, c) })
	})
	if err != nil {
		return nil, fmt.Errorf("read what is wanted of agents: %w", err)
	}
	return controls, nil
}

// Route implements ledger.Controls.
func (db *DB) Route(ctx context.Context, topicID [16]byte, topic string, partitions int32) (slots int32, err error) {
	if partitions < 1 {
		return 0, fault.Fatalf("route keys of topic %s: it has %d partitions", topic, partitions)
	}
	err = db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		read := func() error {
			rows, err := c.Query(ctx, db.sql[qRoute], topicID)
			if err != nil {
				return err
			}
			return collect(rows, pgx.RowTo[int32], func(n int32) { slots = n })
		}
		if err := read(); err != nil || slots > 0 {
			return err
		}
		if _, err := c.Exec(ctx, db.sql[qSetRoute], topicID, topic, partitions); err != nil {
			return err
		}
		return read() // another may have been faster
	})
	if err != nil {
		return 0, fmt.Errorf("route keys of topic %s: %w", topic, err)
	}
	return slots, nil
}

// Rewind implements ledger.Controls. It has no limit of time but ctx: it may forget many rows.
func (db *DB) Rewind(ctx context.Context, group string, to map[ledger.Key]int64, again bool, since time.Time) (forgotten int64, err error) {
	for k, offset := range to {
		if k.Group != group || offset < 0 {
			return 0, fault.Fatalf("rewind %s: partition %d of %q to offset %d: name its own partitions, and offsets from 0", group, k.Partition, k.Group, offset)
		}
	}
	err = db.ownWithin(ctx, pruneLimit, func(ctx context.Context, c *pgx.Conn) error {
		leases, err := db.touchGroup(ctx, c, group)
		if err != nil {
			return err
		}
		var ids []int32
		var groupID int32
		for k, offset := range to {
			l := leases[k]
			if l.id == 0 {
				return own(fault.Permanentf("it never took partition %d of topic %s: start the agent first, so that it does", k.Partition, hex.EncodeToString(k.TopicID[:])))
			}
			ids, groupID = append(ids, l.id), l.group
			if err := db.rewind(ctx, c, l.id, offset); err != nil {
				return err
			}
		}
		if forgotten = 0; again && len(ids) > 0 {
			if forgotten, err = db.forgetApplied(ctx, c, groupID, ids, since); err != nil {
				return err
			}
		}
		return db.commit(c)
	})
	if err != nil {
		return 0, fmt.Errorf("rewind %s: %w", group, err)
	}
	return forgotten, nil
}

// touchGroup locks all leases of a group, of which none may be held.
func (db *DB) touchGroup(ctx context.Context, c *pgx.Conn, group string) (map[ledger.Key]foundLease, error) {
	leases := make(map[ledger.Key]foundLease)
	var held error
	b := &pgx.Batch{}
	db.open(b, inSetup)
	b.Queue(db.sql[qTouchGroup], group)
	b.Queue(db.sql[qLeasesOf], group).Query(func(rows pgx.Rows) error {
		return collect(rows, scanLease, func(l foundLease) {
			leases[l.Key] = l
			if l.Held && held == nil {
				held = fmt.Errorf("%w: %s has %s/%d until %s: pause the agent, or stop its workers", ledger.ErrHeld, l.Owner, l.Topic, l.Partition, l.Expires.Format(time.RFC3339))
			}
		})
	})
	if err := send(ctx, c, b); err != nil {
		return nil, err
	}
	return leases, held
}

func (db *DB) rewind(ctx context.Context, c *pgx.Conn, lease int32, offset int64) error {
	var waited int64
	if err := c.QueryRow(ctx, db.sql[qDropWaits], lease, offset).Scan(&waited); err != nil {
		return err
	}
	b := &pgx.Batch{}
	b.Queue(db.sql[qRewind], lease, offset, waited)
	b.Queue(db.sql[qDropAllCarried], lease)
	b.Queue(db.sql[qForgetDead], lease, offset)
	return send(ctx, c, b)
}

// forgetApplied forgets what a group applied on some leases at or after a log time. Of its histories nobody knows how
// far they were then, so each goes on at the first event that comes.
func (db *DB) forgetApplied(ctx context.Context, c *pgx.Conn, group int32, ids []int32, since time.Time) (int64, error) {
	from := int64(-1 << 62)
	if !since.IsZero() {
		from = stamp(since)
	}
	tag, err := c.Exec(ctx, db.sql[qForgetApplied], ids, from)
	if err != nil {
		return 0, err
	}
	_, err = c.Exec(ctx, db.sql[qForgetHistories], ids, from, int64(anywhere), group)
	return tag.RowsAffected(), err
}
