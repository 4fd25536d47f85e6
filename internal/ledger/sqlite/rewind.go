package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

var (
	// Without an owner, since one whose time is over could still commit. The CRC is that of a record which isn't the
	// last one any more.
	qRewind        = define("UPDATE swarmlog_lease SET owner = '', expires = 0, next = ?, finished = NULL, last_crc = 0, waiting = waiting - ? WHERE id = ?")
	qDropWaiting   = define("DELETE FROM swarmlog_backlog WHERE lease_id = ? AND position >= ? AND dead = 0")
	qDropDead      = define("DELETE FROM swarmlog_backlog WHERE lease_id = ? AND position >= ? AND dead = 1")
	qForgetDeadOn  = define("DELETE FROM swarmlog_dead WHERE lease_id = ? AND position >= ?")
	qDropCarried   = define("DELETE FROM swarmlog_carried WHERE lease_id = ?")
	qForgetApplied = define("DELETE FROM swarmlog_seen WHERE lease_id IN (SELECT value FROM json_each(?)) AND log_time >= ?")
	// A history that went on at or after that time begins anew with the first of its events that comes from then on.
	qOpenHistories = define("UPDATE swarmlog_cursor SET last = -1, log_time = ?3 WHERE group_id = ?1 " +
		"AND (lease_id = 0 OR lease_id IN (SELECT value FROM json_each(?2))) AND log_time >= ?3")
)

// Rewind implements ledger.Controls, in one transaction. Forgetting what was applied looks at all that was ever seen.
func (db *DB) Rewind(ctx context.Context, group string, to map[ledger.Key]int64, again bool, since time.Time) (forgotten int64, err error) {
	err = db.write(ctx, func(c *conn) error {
		forgotten = 0
		offsets, groupID, err := db.rewindable(c, group, to)
		if err != nil {
			return err
		}
		ids := make([]int64, 0, len(offsets))
		for id, offset := range offsets {
			if err := rewindLease(c, id, offset); err != nil {
				return err
			}
			ids = append(ids, id)
		}
		if !again || len(ids) == 0 {
			return nil
		}
		list, err := json.Marshal(ids)
		if err != nil {
			return err
		}
		if forgotten, err = c.exec(qForgetApplied, string(list), stamp(since)); err != nil {
			return err
		}
		_, err = c.exec(qOpenHistories, groupID, string(list), stamp(since))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("rewind %s: %w", group, err)
	}
	return forgotten, nil
}

// rewindable finds the leases to rewind, by id, where none of the group's is held.
func (db *DB) rewindable(c *conn, group string, to map[ledger.Key]int64) (offsets map[int64]int64, groupID int64, err error) {
	leases, err := db.list(c, group)
	if err != nil {
		return nil, 0, err
	}
	for _, l := range leases {
		if l.Held {
			return nil, 0, fmt.Errorf("%w: %s has %s/%d until %s: pause the agent, and try again once its workers have let go",
				ledger.ErrHeld, l.Owner, l.Topic, l.Partition, l.Expires.Format(time.RFC3339Nano))
		}
	}
	offsets = make(map[int64]int64, len(to))
	for key, offset := range to {
		id, found, err := db.leaseID(c, key)
		switch {
		case err != nil:
			return nil, 0, err
		case key.Group != group || offset < 0:
			return nil, 0, fault.Fatalf("partition %d of agent %q to offset %d: it takes a partition of this agent and an offset", key.Partition, key.Group, offset)
		case !found:
			return nil, 0, fault.Permanentf("the agent has never taken partition %d: start it once, or leave that partition out", key.Partition)
		}
		offsets[id.id], groupID = offset, id.group
	}
	return offsets, groupID, nil
}

func rewindLease(c *conn, lease, offset int64) error {
	waiting, err := c.exec(qDropWaiting, lease, offset)
	if err != nil {
		return err
	}
	for _, q := range []stmtID{qDropDead, qForgetDeadOn} {
		if _, err := c.exec(q, lease, offset); err != nil {
			return err
		}
	}
	if _, err := c.exec(qDropCarried, lease); err != nil {
		return err
	}
	_, err = c.exec(qRewind, offset, waiting, lease)
	return err
}
