package postgres

import (
	"context"
	"errors"

	"github.com/swarmlog/swarmlog/ledger"
)

// Dead implements ledger.Redrives.
func (db *DB) Dead(context.Context, ledger.Key, []int64) ([]bool, error) {
	return nil, errors.ErrUnsupported
}

// Dismiss implements ledger.Redrives.
func (db *DB) Dismiss(context.Context, ledger.Key, ...int64) (int64, error) {
	return 0, errors.ErrUnsupported
}
