package prove

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/ledger"
)

// A frozen worker believes that it holds its leases, and doesn't: another takes them, and what the frozen one commits
// is refused, which is noted.
func TestFrozenWorkerLosesItsLeases(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, err := sqlite.Open(ctx, ":memory:", sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	path := filepath.Join(t.TempDir(), "frost.log")
	f, err := newFrost(1, true, path)
	if err != nil {
		t.Fatal(err)
	}
	frozen, other := f.wrap("frozen", db), f.wrap("other", db)
	key := ledger.Key{Group: "g", TopicID: [16]byte{1}}
	const ttl = 50 * time.Millisecond
	lease, err := frozen.Acquire(ctx, key, "t", "frozen", 0, ttl)
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.frozen = "frozen"
	f.mu.Unlock()
	deadline := time.Now().Add(10 * time.Second)
	for {
		held, err := frozen.Beat(ctx, ledger.Worker{ID: "frozen", Started: time.Now()}, time.Hour)
		if err != nil || len(held) != 1 || held[0] != lease.Fence {
			t.Fatalf("a frozen worker is told %v, %v", held, err)
		}
		_, err = other.Acquire(ctx, key, "t", "other", 0, time.Minute)
		if err == nil {
			break
		}
		if !errors.Is(err, ledger.ErrHeld) || time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if _, err := frozen.Acquire(ctx, key, "t", "frozen", 0, ttl); !errors.Is(err, ledger.ErrHeld) {
		t.Errorf("a frozen worker takes its lease back: %v", err)
	}
	results, err := frozen.Commit(ctx, &ledger.Batch{Steps: []*ledger.Step{{Fence: lease.Fence, Outcome: ledger.Skipped, LogTime: time.Now()}}})
	if err != nil || !errors.Is(results[0].Err, ledger.ErrFenced) {
		t.Errorf("a frozen worker commits: %v, %v", results, err)
	}
	if err := f.close(); err != nil {
		t.Fatal(err)
	}
	if _, fenced, err := frosts(filepath.Dir(path)); err != nil || fenced != 1 {
		t.Errorf("%d refusals noted, %v", fenced, err)
	}
}

// Workers are frozen in turn, and none is any more once it's stopped; each life adds to the notes.
func TestFrostComesAndGoes(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	for life := int64(1); life <= 2; life++ {
		f, err := newFrost(1, true, frostPath(data))
		if err != nil {
			t.Fatal(err)
		}
		f.names = []string{"a", "b"}
		stop := f.run(context.Background())
		for deadline := time.Now().Add(10 * time.Second); ; {
			if n, _, err := frosts(data); err != nil || time.Now().After(deadline) {
				t.Fatalf("life %d: %d times, %v", life, n, err)
			} else if n >= life {
				break
			}
			time.Sleep(time.Millisecond)
		}
		stop()
		if f.frozen != "" {
			t.Errorf("%s stays frozen", f.frozen)
		}
		if err := f.close(); err != nil {
			t.Fatal(err)
		}
	}
}
