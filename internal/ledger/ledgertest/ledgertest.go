// Package ledgertest owns the conformance suite of ledgers: what package
// ledger's comments promise, as tests that every implementation passes
// unchanged. It knows implementations by the interface and Features alone, and
// keeps nothing.
package ledgertest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/ledger"
)

// Features say what a test needs to know of an implementation and can't get through the interface.
type Features struct {
	// FailCommit lets the next COMMIT of a ledger end without a known outcome, having happened or not.
	FailCommit func(l ledger.Ledger, committed bool)
	// Hang is a query that runs for minutes and can be interrupted.
	Hang string
	// Bytes is the column type for bytes.
	Bytes string
}

// Run runs the suite. open gives a new, empty ledger each time and closes it with the test; it limits an effect to a
// second or less, so that tests of those that hang end soon.
func Run(t *testing.T, open func(t *testing.T) ledger.Ledger, f Features) {
	t.Helper()
	groups := []struct {
		name  string
		tests []test
	}{
		{"Lease", leaseTests}, {"Commit", commitTests}, {"Effect", effectTests}, {"Order", orderTests},
		{"Backlog", backlogTests}, {"Call", callTests}, {"Prune", pruneTests}, {"Model", modelTests},
		{"Handover", handoverTests}, {"Redrive", redriveTests}, {"Claim", claimTests}, {"Plan", planTests},
		{"Control", controlTests}, {"Route", routeTests}, {"Rewind", rewindTests},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, tc := range g.tests {
				t.Run(tc.name, func(t *testing.T) {
					t.Parallel()
					tc.run(newKit(t, open(t), f))
				})
			}
		})
	}
}

type test struct {
	name string
	run  func(k *kit)
}

const (
	group  = "reader"
	topic  = "pages"
	worker = "w1"
	ttl    = time.Minute
)

// kit is a ledger with one lease, and a user's table to see effects in. The table has no key, so that an effect that
// happened twice is there twice.
type kit struct {
	*testing.T
	l     ledger.Ledger
	f     Features
	ctx   context.Context
	fence ledger.Fence
	ids   atomic.Uint64
}

func newKit(t *testing.T, l ledger.Ledger, f Features) *kit {
	t.Helper()
	k := &kit{T: t, l: l, f: f, ctx: t.Context()}
	k.setup(
		"CREATE TABLE IF NOT EXISTS effect (id TEXT NOT NULL, n BIGINT, body TEXT, raw "+f.Bytes+")",
		"CREATE TABLE IF NOT EXISTS only_one (id TEXT PRIMARY KEY)",
	)
	k.fence = k.acquire(key(1, 0), worker, 0).Fence
	return k
}

func (k *kit) setup(statements ...string) {
	k.Helper()
	k.must(k.l.Setup(k.ctx, func(ctx context.Context, tx ledger.Tx) error {
		for _, s := range statements {
			if _, err := tx.Exec(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}))
}

func key(topicID byte, partition int32) ledger.Key {
	return ledger.Key{Group: group, TopicID: [16]byte{topicID}, Partition: partition}
}

func (k *kit) must(err error) {
	k.Helper()
	if err != nil {
		k.Fatal(err)
	}
}

func (k *kit) acquire(key ledger.Key, owner string, start int64) ledger.Lease {
	k.Helper()
	l, err := k.l.Acquire(k.ctx, key, topic, owner, start, ttl)
	k.must(err)
	return l
}

// lease reads a lease as it is now.
func (k *kit) lease(key ledger.Key) ledger.Lease {
	k.Helper()
	leases, err := k.l.Leases(k.ctx, key.Group)
	k.must(err)
	for _, l := range leases {
		if l.Key == key {
			return l
		}
	}
	k.Fatalf("no lease of %v", key)
	return ledger.Lease{}
}

// step is a step that applies an event of its own at an offset, with one effect: a row with the event's id.
func (k *kit) step(offset int64) *ledger.Step {
	id := fmt.Sprintf("e%d", k.ids.Add(1))
	return &ledger.Step{Fence: k.fence, From: offset, Offset: offset, LogTime: logTime(offset), CRC: uint32(offset),
		Event:   ledger.Identity{Source: "test", ID: id, Subject: "s-" + id, Digest: digest(id)},
		Outcome: ledger.Applied, Effects: []effect{insert(id)}}
}

type effect = func(context.Context, ledger.Tx) error

func insert(id string) effect {
	return func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO effect (id) VALUES ($1)", id)
		return err
	}
}

func fails(err error) effect {
	return func(context.Context, ledger.Tx) error { return err }
}

func logTime(offset int64) time.Time { return time.UnixMilli(1_700_000_000_000 + offset).UTC() }

func digest(content string) (d [16]byte) {
	copy(d[:], content)
	return d
}

func message(value string) event.Message {
	return event.Message{Key: []byte("k"), Value: []byte(value), Time: logTime(0)}
}

func (k *kit) commit(steps ...*ledger.Step) []ledger.Result {
	k.Helper()
	results, err := k.l.Commit(k.ctx, &ledger.Batch{Steps: steps})
	k.must(err)
	if len(results) != len(steps) {
		k.Fatalf("%d results for %d steps", len(results), len(steps))
	}
	return results
}

// want compares a result; err is nil or what the result's error wraps.
func (k *kit) want(r ledger.Result, o ledger.Outcome, err error) {
	k.Helper()
	switch {
	case err == nil && r.Err != nil:
		k.Fatalf("result is the error %v, want %v", r.Err, o)
	case err != nil && !errors.Is(r.Err, err):
		k.Fatalf("result is %v with error %v, want the error %v", r.Outcome, r.Err, err)
	case err == nil && r.Outcome != o:
		k.Fatalf("result is %v, want %v", r.Outcome, o)
	}
}

// effects counts the rows of the user's table by id.
func (k *kit) effects() map[string]int {
	k.Helper()
	counts := make(map[string]int)
	k.must(k.l.Read(k.ctx, func(ctx context.Context, tx ledger.Tx) error {
		rows, err := tx.Query(ctx, "SELECT id, count(*) FROM effect GROUP BY id")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var id string
			var n int
			if err := rows.Scan(&id, &n); err != nil {
				return err
			}
			counts[id] = n
		}
		return rows.Err()
	}))
	return counts
}

// wantEffects says that these steps' effects happened once each, and nothing else did.
func (k *kit) wantEffects(steps ...*ledger.Step) {
	k.Helper()
	got := k.effects()
	for _, s := range steps {
		if got[s.Event.ID] != 1 {
			k.Errorf("effect of %s happened %d times, want once", s.Event.ID, got[s.Event.ID])
		}
		delete(got, s.Event.ID)
	}
	if len(got) > 0 {
		k.Errorf("effects that nobody should have: %v", got)
	}
}

// wantProgress compares how far the kit's lease got, and that its counters account for delivered records.
func (k *kit) wantProgress(next int64, delivered int64, finished ...ledger.Span) ledger.Lease {
	k.Helper()
	l := k.lease(k.fence.Key)
	if l.Next != next || fmt.Sprint(l.Finished) != fmt.Sprint(ledger.Ranges(finished)) {
		k.Errorf("progress is %d and %v, want %d and %v", l.Next, l.Finished, next, finished)
	}
	if l.Counters.Delivered() != delivered {
		k.Errorf("counters account for %d records, want %d: %+v", l.Counters.Delivered(), delivered, l.Counters)
	}
	return l
}

// until polls a condition for a while.
func (k *kit) until(what string, ok func() bool) {
	k.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			k.Fatalf("waited too long for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func address(n uint64) (a [32]byte) {
	binary.BigEndian.PutUint64(a[:], n)
	return a
}
