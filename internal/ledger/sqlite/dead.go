package sqlite

import (
	"context"
	"fmt"

	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qNoteDead   = define("INSERT INTO swarmlog_dead VALUES (?, ?) ON CONFLICT DO NOTHING")
	qDead       = define("SELECT 1 FROM swarmlog_dead WHERE lease_id = ? AND position = ?")
	qForgetDead = define("DELETE FROM swarmlog_dead WHERE lease_id = ? AND position = ?")
	qDismiss    = define("DELETE FROM swarmlog_dead WHERE lease_id = ?1 AND position = ?2 " +
		"AND NOT EXISTS (SELECT 1 FROM swarmlog_backlog WHERE lease_id = ?1 AND position = ?2)")
)

// Dead implements ledger.Redrives.
func (db *DB) Dead(ctx context.Context, key ledger.Key, offsets []int64) ([]bool, error) {
	dead := make([]bool, len(offsets))
	err := db.read(ctx, func(c *conn) error {
		_, id, found, err := db.lease(c, key)
		if err != nil || !found {
			return err
		}
		for i, offset := range offsets {
			if dead[i], err = c.first(qDead, func(row) {}, id.id, offset); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ask which records of %s on partition %d are dead: %w", key.Group, key.Partition, err)
	}
	return dead, nil
}

// Dismiss implements ledger.Redrives.
func (db *DB) Dismiss(ctx context.Context, key ledger.Key, offsets ...int64) (dismissed int64, err error) {
	err = db.write(ctx, func(c *conn) error {
		id, found, err := db.leaseID(c, key)
		if err != nil || !found {
			return err
		}
		for _, offset := range offsets {
			n, err := c.exec(qDismiss, id.id, offset)
			if err != nil {
				return err
			}
			dismissed += n
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("dismiss %d dead records of %s on partition %d: %w", len(offsets), key.Group, key.Partition, err)
	}
	return dismissed, nil
}
