package sqlite

import (
	"context"
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

func sqlEffect(sql string, args ...any) func(context.Context, ledger.Tx) error {
	return func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	}
}

func TestGuardRefuses(t *testing.T) {
	db := open(t, Memory)
	acquire(t, db)
	setup(t, db, "CREATE TABLE mine (id TEXT, lease INTEGER)")
	for _, sql := range []string{
		"DELETE FROM swarmlog_lease",
		"delete from SwarmLog_Lease",
		"UPDATE swarmlog_seen SET digest = x''",
		"INSERT INTO swarmlog_group (name) VALUES ('x')",
		"DROP TABLE swarmlog_outbox",
		"ALTER TABLE swarmlog_outbox ADD COLUMN x",
		"CREATE INDEX mine_i ON swarmlog_outbox (topic)",
		"CREATE TABLE swarmlog_mine (x)",
		"CREATE TRIGGER tr AFTER INSERT ON swarmlog_outbox BEGIN SELECT 1; END",
		"CREATE TRIGGER tr AFTER INSERT ON mine BEGIN DELETE FROM swarmlog_lease; END; INSERT INTO mine VALUES ('x', 1)",
		"ATTACH ':memory:' AS other",
		"PRAGMA synchronous = OFF",
		"PRAGMA journal_mode = DELETE",
		"PRAGMA user_version = 7",
		"PRAGMA wal_checkpoint",
		"PRAGMA writable_schema = ON",
		"VACUUM",
	} {
		err := db.Setup(t.Context(), sqlEffect(sql))
		if err == nil || (fault.ClassOf(err) != fault.Fatal && sql != "VACUUM") {
			t.Errorf("%s: %v (%v), want it refused for good", sql, err, fault.ClassOf(err))
		}
	}
	for _, sql := range []string{
		"INSERT INTO mine SELECT g.name, l.id FROM swarmlog_lease l JOIN swarmlog_group g ON g.id = l.group_id",
		"PRAGMA table_info(mine)",
		"PRAGMA user_version",
		"CREATE INDEX mine_i ON mine (id)",
		"ANALYZE mine",
		"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) INSERT INTO mine SELECT 'n', i FROM n",
	} {
		if err := db.Setup(t.Context(), sqlEffect(sql)); err != nil {
			t.Errorf("%s: %v, want it allowed", sql, err)
		}
	}
	if l := lease(t, db); l.Epoch != 1 {
		t.Errorf("lease is %+v", l)
	}
}

// SQLite ends the transaction itself where a statement says OR ROLLBACK. Had the ledger not looked, what follows
// would commit on its own.
func TestTransactionEndedByAConflictClause(t *testing.T) {
	db := open(t, Memory)
	f := acquire(t, db)
	setup(t, db, "CREATE TABLE mine (id TEXT PRIMARY KEY)")
	s, good := oneStep(f, 0), oneStep(f, 1)
	s.Effects = []func(context.Context, ledger.Tx) error{func(ctx context.Context, tx ledger.Tx) error {
		_, _ = tx.Exec(ctx, "INSERT INTO mine VALUES ('a')")
		_, _ = tx.Exec(ctx, "INSERT OR ROLLBACK INTO mine VALUES ('a')")
		_, _ = tx.Exec(ctx, "INSERT INTO mine VALUES ('b')")
		return nil
	}}
	r, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{s, good}})
	if err != nil {
		t.Fatal(err)
	}
	if r[0].Err == nil || fault.ClassOf(r[0].Err) != fault.Permanent || !strings.Contains(r[0].Err.Error(), "UNIQUE") {
		t.Errorf("the step's error is %v, want its cause", r[0].Err)
	}
	if r[1].Outcome != ledger.Applied {
		t.Errorf("its neighbour: %+v", r[1])
	}
	if err := db.Read(t.Context(), func(ctx context.Context, tx ledger.Tx) error {
		var n int
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM mine").Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows stayed (%v)", n, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Full text and vectors live in the ledger's file and commit with a step; this is what an index of documents needs.
func TestFullTextAndVectorsCommitWithAStep(t *testing.T) {
	db := open(t, Memory)
	f := acquire(t, db)
	setup(t, db, "CREATE VIRTUAL TABLE words USING fts5(doc UNINDEXED, body)", "CREATE VIRTUAL TABLE vectors USING vec0(embedding float[4])")
	index := func(id int64, body string, v ...float32) func(context.Context, ledger.Tx) error {
		return func(ctx context.Context, tx ledger.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO words (rowid, doc, body) VALUES ($1, $2, $3)", id, "d", body); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "DELETE FROM vectors WHERE rowid = $1", id); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO vectors (rowid, embedding) VALUES ($1, $2)", id, floats(v))
			return err
		}
	}
	a, b, bad := oneStep(f, 0), oneStep(f, 1), oneStep(f, 2)
	a.Effects = append(a.Effects, index(1, "an axolotl regrows its limbs", 1, 0, 0, 0))
	b.Effects = append(b.Effects, index(2, "a ledger keeps its word", 0, 1, 0, 0))
	bad.Effects = append(bad.Effects, index(3, "an axolotl that must not stay", 1, 0, 0, 1), func(context.Context, ledger.Tx) error {
		return fault.Permanentf("broken")
	})
	r, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{a, b, bad}})
	if err != nil || r[0].Outcome != ledger.Applied || r[1].Outcome != ledger.Applied || r[2].Err == nil {
		t.Fatalf("commit: %v, %v", r, err)
	}
	if err := db.Read(t.Context(), func(ctx context.Context, tx ledger.Tx) error {
		var id, n int64
		var snippet string
		if err := tx.QueryRow(ctx, "SELECT rowid, snippet(words, 1, '[', ']', '…', 8) FROM words WHERE words MATCH $1 ORDER BY rank", "axolotl").
			Scan(&id, &snippet); err != nil {
			return err
		}
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM words WHERE words MATCH 'axolotl'").Scan(&n); err != nil {
			return err
		}
		if id != 1 || n != 1 || !strings.Contains(snippet, "[axolotl]") {
			t.Errorf("search found %d of %d: %s", id, n, snippet)
		}
		var distance float64
		if err := tx.QueryRow(ctx, "SELECT rowid, distance FROM vectors WHERE embedding MATCH $1 AND k = 1", floats([]float32{0, 0.9, 0, 0})).Scan(&id, &distance); err != nil {
			return err
		}
		if id != 2 || math.Abs(distance-0.1) > 1e-6 {
			t.Errorf("nearest is %d at %g", id, distance)
		}
		return tx.QueryRow(ctx, "SELECT count(*) FROM vectors").Scan(&n)
	}); err != nil {
		t.Fatal(err)
	}
}

func floats(v []float32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(f))
	}
	return b
}

func TestStatementsThatAreInUseOrTooMany(t *testing.T) {
	db := open(t, Memory)
	if err := db.Read(t.Context(), func(ctx context.Context, tx ledger.Tx) error {
		const same = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n"
		outer, err := tx.Query(ctx, same)
		if err != nil {
			return err
		}
		sum := 0
		for outer.Next() {
			inner, err := tx.Query(ctx, same)
			if err != nil {
				return err
			}
			for inner.Next() {
				var a, b int
				if err := outer.Scan(&a); err != nil {
					return err
				}
				if err := inner.Scan(&b); err != nil {
					return err
				}
				sum += a * b
			}
			if err := inner.Close(); err != nil {
				return err
			}
		}
		if sum != 36 || outer.Err() != nil {
			t.Errorf("sum is %d, %v", sum, outer.Err())
		}
		held, err := tx.Query(ctx, same)
		if err != nil {
			return err
		}
		for i := range 3 * keptStatements {
			var n int
			if err := tx.QueryRow(ctx, "SELECT "+strings.Repeat(" ", i)+"1").Scan(&n); err != nil {
				return err
			}
		}
		if !held.Next() {
			t.Errorf("rows went with the statements that were forgotten: %v", held.Err())
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A goroutine that an effect left behind must not hold up the commit, nor write into it.
func TestStatementOfALeakedGoroutineIsInterrupted(t *testing.T) {
	db := open(t, Memory)
	f := acquire(t, db)
	s := oneStep(f, 0)
	leaked := make(chan error, 1)
	s.Effects = append(s.Effects, func(ctx context.Context, tx ledger.Tx) error {
		started := make(chan struct{})
		go func() {
			close(started)
			_, err := tx.Exec(context.WithoutCancel(ctx), hang)
			leaked <- err
		}()
		<-started
		return nil
	})
	commitOne(t, db, s)
	if err := <-leaked; err == nil {
		t.Error("its statement ran to the end")
	}
}
