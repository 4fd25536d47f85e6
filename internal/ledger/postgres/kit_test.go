package postgres

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

type effect = func(context.Context, ledger.Tx) error

func exec(sql string, args ...any) effect {
	return func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	}
}

func setup(t testing.TB, db *DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if err := db.Setup(t.Context(), exec(s)); err != nil {
			t.Fatal(err)
		}
	}
}

const lasting = time.Minute

func leaseKey(partition int32) ledger.Key {
	return ledger.Key{Group: "reader", TopicID: [16]byte{1}, Partition: partition}
}

func acquire(t testing.TB, db *DB, partition int32) ledger.Fence {
	t.Helper()
	l, err := db.Acquire(t.Context(), leaseKey(partition), "pages", "w", 0, lasting)
	if err != nil {
		t.Fatal(err)
	}
	return l.Fence
}

// oneStep applies an event of its own; its effect is a row in the table effect.
func oneStep(f ledger.Fence, offset int64, effects ...effect) *ledger.Step {
	id := fmt.Sprintf("%d-%d", f.Partition, offset)
	s := &ledger.Step{Fence: f, From: offset, Offset: offset, LogTime: time.UnixMilli(1_700_000_000_000 + offset), Outcome: ledger.Applied,
		Event: ledger.Identity{Source: "test", ID: id, Subject: id, Digest: [16]byte{1}}}
	s.Effects = append([]effect{exec("INSERT INTO effect (id) VALUES ($1)", id)}, effects...)
	return s
}

const effectTable = "CREATE TABLE effect (id text NOT NULL)"

// commit commits steps as the engine does: until it's known what became of them.
func commit(ctx context.Context, db *DB, b *ledger.Batch) (results []ledger.Result, err error) {
	unknown := false
	for {
		if unknown {
			var committed bool
			results, committed, err = db.Resolve(ctx, b)
			if err == nil && committed {
				return results, nil
			}
		}
		if !unknown || err == nil {
			results, err = db.Commit(ctx, b)
			unknown = errors.Is(err, ledger.ErrUnknown)
		}
		if err == nil {
			return results, nil
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func mustCommit(t testing.TB, db *DB, steps ...*ledger.Step) []ledger.Result {
	t.Helper()
	results, err := db.Commit(t.Context(), &ledger.Batch{Steps: steps})
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func scan(t testing.TB, db *DB, query string, dest ...any) {
	t.Helper()
	if err := db.Read(t.Context(), func(ctx context.Context, tx ledger.Tx) error {
		return tx.QueryRow(ctx, query).Scan(dest...)
	}); err != nil {
		t.Fatal(err)
	}
}

// wantOnce says that each of n effects happened once, and nothing else did.
func wantOnce(t testing.TB, db *DB, n int) {
	t.Helper()
	var all, distinct int
	scan(t, db, "SELECT count(*), count(DISTINCT id) FROM effect", &all, &distinct)
	if all != n || distinct != n {
		t.Errorf("%d effects of %d events, want each of %d once", all, distinct, n)
	}
}

func lease(t testing.TB, db *DB, key ledger.Key) ledger.Lease {
	t.Helper()
	leases, err := db.Leases(t.Context(), key.Group)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		if l.Key == key {
			return l
		}
	}
	t.Fatalf("no lease of %v", key)
	return ledger.Lease{}
}

// until polls a condition for a while.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
