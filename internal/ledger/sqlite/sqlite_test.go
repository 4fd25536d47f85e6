package sqlite

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/internal/ledger/ledgertest"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const effectTimeout = 300 * time.Millisecond

func open(t testing.TB, path string) *DB {
	t.Helper()
	db, err := Open(t.Context(), path, Options{EffectTimeout: effectTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// hang counts far, with little memory, and can be interrupted.
const hang = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c WHERE n < 0"

func TestConformance(t *testing.T) {
	ledgertest.Run(t, func(t *testing.T) ledger.Ledger { return open(t, Memory) }, ledgertest.Features{
		FailCommit: failCommit, Hang: hang, Bytes: "BLOB",
	})
}

// failCommit lets the next COMMIT lose its answer.
func failCommit(l ledger.Ledger, committed bool) {
	db := l.(*DB)
	w := <-db.writer
	defer func() { db.writer <- w }()
	db.endTx = func(c *conn) error {
		db.endTx = (*conn).commit
		end := c.rollback
		if committed {
			end = c.commit
		}
		return errors.Join(fmt.Errorf("%w: the answer was lost", ledger.ErrUnknown), end())
	}
}
