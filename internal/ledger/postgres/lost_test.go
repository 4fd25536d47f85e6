package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// brief lets sessions time out soon.
func brief(o *Options) {
	o.LeaseTime, o.EffectTimeout = 1500*time.Millisecond, 500*time.Millisecond
}

// T3: the connection breaks at the COMMIT, before it or after it, and the outcome is settled by looking.
func TestConnectionLostAtCommit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		way      way
		happened bool
	}{{"before", loseCommit, false}, {"after", loseAnswer, true}, {"server still has it open", swallow, false}, {"answer never comes", holdAnswer, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRoom(t)
			p, dsn := newProxy(t, r.dsn)
			db := room{dsn, r.schema}.open(t, brief)
			f := acquire(t, db, 0)
			setup(t, db, effectTable)
			s := oneStep(f, 0)
			s.Emits = []ledger.Outgoing{{Topic: "out"}}
			b := &ledger.Batch{Steps: []*ledger.Step{s}}
			p.next.Store(int32(c.way))
			_, err := db.Commit(t.Context(), b)
			if !errors.Is(err, ledger.ErrUnknown) {
				t.Fatalf("commit: %v, want ErrUnknown", err)
			}
			var results []ledger.Result
			var committed bool
			until(t, "it's settled", func() bool { // where the server has the transaction open, its lock says wait
				results, committed, err = db.Resolve(t.Context(), b)
				return err == nil
			})
			if committed != c.happened {
				t.Fatalf("committed is %v, want %v", committed, c.happened)
			}
			if !committed {
				results = mustCommit(t, db, s)
			}
			if results[0].Outcome != ledger.Applied || results[0].FirstSeq != 1 {
				t.Errorf("result is %+v", results[0])
			}
			p.thaw()
			wantOnce(t, db, 1)
			if rows, err := db.Outbox(t.Context(), f, 0, 10); err != nil || len(rows) != 1 {
				t.Errorf("outbox: %v, %v", rows, err)
			}
			if l := lease(t, db, f.Key); l.Next != 1 || l.Counters != (ledger.Counters{Applied: 1}) {
				t.Errorf("lease is %+v", l)
			}
		})
	}
}

// Another commit of the same lease doesn't go ahead of one whose outcome is unknown.
func TestUnknownOutcomeIsSettledBeforeTheNextCommit(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	p, dsn := newProxy(t, r.dsn)
	db := room{dsn, r.schema}.open(t)
	f := acquire(t, db, 0)
	setup(t, db, effectTable)
	for i, w := range []way{loseCommit, loseAnswer, loseCommit} {
		b := &ledger.Batch{Steps: []*ledger.Step{oneStep(f, int64(2*i))}}
		p.next.Store(int32(w))
		if _, err := db.Commit(t.Context(), b); !errors.Is(err, ledger.ErrUnknown) {
			t.Fatalf("commit: %v, want ErrUnknown", err)
		}
		mustCommit(t, db, oneStep(f, int64(2*i+1)))
		_, committed, err := db.Resolve(t.Context(), b)
		if err != nil || committed != (w == loseAnswer) {
			t.Errorf("lost %d: committed is %v, %v", i, committed, err)
		}
		if !committed {
			mustCommit(t, db, b.Steps...)
		}
	}
	wantOnce(t, db, 6)
}

// Whatever is lost, in whatever order: each event has one effect, and the counters account for it.
func TestManyLostCommits(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	p, dsn := newProxy(t, r.dsn)
	db := room{dsn, r.schema}.open(t)
	f := acquire(t, db, 0)
	setup(t, db, effectTable)
	const batches, size = 60, 5
	for i := range int64(batches) {
		b := &ledger.Batch{}
		for n := range int64(size) {
			s := oneStep(f, i*size+n)
			s.Emits = []ledger.Outgoing{{Topic: "out"}}
			b.Steps = append(b.Steps, s)
		}
		p.next.Store(rand.Int32N(3))
		results, err := commit(t.Context(), db, b)
		if err != nil || results[size-1].FirstSeq != (i+1)*size {
			t.Fatalf("batch %d: %+v, %v", i, results, err)
		}
	}
	p.next.Store(int32(straight))
	wantOnce(t, db, batches*size)
	if l := lease(t, db, f.Key); l.Next != batches*size || l.Counters != (ledger.Counters{Applied: batches * size}) {
		t.Errorf("lease is %+v", l)
	}
}

// R6: an owner is stopped in the middle of its transaction, with its lease's row locked. Another takes the partition
// over within the lease time and a second, and what the old one does when it goes on is refused.
func TestStoppedOwnerHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	p, dsn := newProxy(t, r.dsn)
	old, other := room{dsn, r.schema}.open(t, brief), r.open(t, brief)
	setup(t, other, effectTable)
	l, err := old.Acquire(t.Context(), leaseKey(0), "pages", "old", 0, old.opts.LeaseTime)
	if err != nil {
		t.Fatal(err)
	}
	s := oneStep(l.Fence, 0)
	b := &ledger.Batch{Steps: []*ledger.Step{s}}
	p.next.Store(int32(stopTheOwner))
	stopped := time.Now()
	commitErr := make(chan error, 1)
	go func() {
		_, err := old.Commit(context.WithoutCancel(t.Context()), b)
		commitErr <- err
	}()
	var now ledger.Lease
	until(t, "another has the lease", func() bool {
		now, err = other.Acquire(t.Context(), leaseKey(0), "pages", "other", 0, lasting)
		return err == nil
	})
	if took := time.Since(stopped); took > old.opts.LeaseTime+time.Second {
		t.Errorf("the take-over took %v, want the lease time of %v and a second at most", took, old.opts.LeaseTime)
	}
	again := oneStep(now.Fence, 0)
	if r := mustCommit(t, other, again); r[0].Outcome != ledger.Applied {
		t.Errorf("the new owner: %+v", r)
	}
	p.next.Store(int32(straight))
	p.thaw()
	if err := <-commitErr; err == nil {
		t.Fatal("the stopped owner's COMMIT went through")
	}
	results, committed, err := old.Resolve(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	if !committed {
		results, err = commit(t.Context(), old, b)
	}
	if err != nil || !errors.Is(results[0].Err, ledger.ErrFenced) {
		t.Errorf("the stopped owner: %+v, %v, want it fenced", results, err)
	}
	wantOnce(t, other, 1)
}

// A database that went back, by a fail-over that lost commits or a restored backup, is no place to go on.
func TestLedgerThatWentBackIsFatal(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	p, dsn := newProxy(t, r.dsn)
	db := room{dsn, r.schema}.open(t)
	f := acquire(t, db, 0)
	setup(t, db, effectTable)
	mustCommit(t, db, oneStep(f, 0))
	b := &ledger.Batch{Steps: []*ledger.Step{oneStep(f, 1)}}
	p.next.Store(int32(loseAnswer))
	_, _ = db.Commit(t.Context(), b)
	admin(t, r.dsn, fmt.Sprintf("UPDATE %s.lease SET commits = 0", r.schema))
	_, _, err := db.Resolve(t.Context(), b)
	wantClass(t, "resolve", err, fault.Fatal)
}
