//go:build !sabotage

package sqlite

import (
	"context"

	"github.com/swarmlog/swarmlog/ledger"
)

// earlyCommit is what a build with fault switches commits before its time; here there's none.
type earlyCommit struct{}

func (*earlyCommit) finished(*ledger.Step) bool { return false }
func (*earlyCommit) inserted(*ledger.Step) bool { return false }

func (*DB) commitEarly(context.Context, *conn, *ledger.Batch) *earlyCommit { return nil }
