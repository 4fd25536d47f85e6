package sqlite

import (
	"context"
	"errors"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// SetPlan implements ledger.Plans.
func (db *DB) SetPlan(context.Context, ledger.Fence, []ledger.Want) error {
	return errors.ErrUnsupported
}

// Plan implements ledger.Plans.
func (db *DB) Plan(context.Context) ([]ledger.Want, error) { return nil, nil }

// SetControl implements ledger.Controls.
func (db *DB) SetControl(context.Context, ledger.Control) error { return errors.ErrUnsupported }

// Controls implements ledger.Controls.
func (db *DB) Controls(context.Context) ([]ledger.Control, error) { return nil, nil }

// Rewind implements ledger.Controls.
func (db *DB) Rewind(context.Context, string, map[ledger.Key]int64, bool, time.Time) (int64, error) {
	return 0, errors.ErrUnsupported
}

// Route implements ledger.Controls.
func (db *DB) Route(_ context.Context, _ [16]byte, _ string, partitions int32) (int32, error) {
	return partitions, nil
}
