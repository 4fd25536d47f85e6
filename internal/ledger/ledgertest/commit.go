package ledgertest

import (
	"context"
	"encoding/hex"
	"errors"
	"strings"
	"sync"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

var commitTests = []test{
	{"EmptyBatch", func(k *kit) { k.commit() }},
	{"CountsEachOutcome", func(k *kit) {
		var steps []*ledger.Step
		for o := ledger.Applied; o <= ledger.Dead; o++ {
			s := k.step(int64(len(steps)))
			if s.Outcome = o; o != ledger.Applied {
				s.Effects = nil
			}
			steps = append(steps, s)
		}
		for i, r := range k.commit(steps...) {
			k.want(r, steps[i].Outcome, nil)
		}
		l := k.wantProgress(6, 6)
		if l.Counters != (ledger.Counters{Applied: 1, Duplicate: 1, Refused: 1, Skipped: 1, Ignored: 1, Dead: 1}) {
			k.Errorf("counters are %+v", l.Counters)
		}
		ids := make([]ledger.Identity, len(steps))
		for i, s := range steps {
			ids[i] = s.Event
		}
		seen, err := k.l.Seen(k.ctx, group, ids)
		k.must(err)
		for i, d := range seen {
			if (d != nil) != (steps[i].Outcome == ledger.Applied) {
				k.Errorf("after %v, Seen has %v", steps[i].Outcome, d)
			}
		}
	}},
	{"WatermarkWaitsForWhatIsInFlight", func(k *kit) { // R3, R4 input 1
		k.commit(k.step(1), k.step(2))
		k.wantProgress(0, 2, ledger.Span{From: 1, To: 2})
		again := k.acquire(k.fence.Key, worker, 99)
		if again.Next != 0 || len(again.Finished) != 1 {
			k.Errorf("a new owner starts with %d and %v", again.Next, again.Finished)
		}
		k.fence = again.Fence
		k.commit(k.step(0))
		k.wantProgress(3, 3)
	}},
	{"WatermarkPassesGaps", func(k *kit) { // R4 input 2
		a, b, c := k.step(5), k.step(9), k.step(10)
		a.From, b.From, c.From = 0, 6, 10
		k.commit(c)
		k.wantProgress(0, 1, ledger.Span{From: 10, To: 10})
		k.commit(b)
		k.wantProgress(0, 2, ledger.Span{From: 6, To: 10})
		k.commit(a)
		k.wantProgress(11, 3)
	}},
	{"LastRecordIsTheHighest", func(k *kit) {
		k.commit(k.step(4))
		k.commit(k.step(2))
		if l := k.lease(k.fence.Key); l.LastCRC != 4 || !l.LastTime.Equal(logTime(4)) {
			k.Errorf("last record has CRC %d and time %v, want those of offset 4", l.LastCRC, l.LastTime)
		}
	}},
	{"CopyIsADuplicate", func(k *kit) { // P9
		first := k.step(0)
		again := k.step(1)
		again.Event = first.Event
		k.want(k.commit(first)[0], ledger.Applied, nil)
		again.Emits = []ledger.Outgoing{{Topic: "out", Message: message("again")}}
		k.want(k.commit(again)[0], ledger.Duplicate, nil)
		k.wantEffects(first)
		l := k.wantProgress(2, 2)
		if l.Seq != 0 || l.Counters.Duplicate != 1 {
			k.Errorf("the copy left outbox number %d and counters %+v", l.Seq, l.Counters)
		}
	}},
	{"CopyInTheSameBatchIsADuplicate", func(k *kit) {
		first, again := k.step(0), k.step(1)
		again.Event = first.Event
		results := k.commit(first, again)
		k.want(results[0], ledger.Applied, nil)
		k.want(results[1], ledger.Duplicate, nil)
		k.wantEffects(first)
	}},
	{"SameIDWithOtherContentIsAConflict", func(k *kit) { // P9
		first, other, good := k.step(0), k.step(1), k.step(2)
		other.Event = first.Event
		other.Event.Digest = digest("something else")
		k.commit(first)
		results := k.commit(other, good)
		k.want(results[0], 0, ledger.ErrConflict)
		for _, d := range [][16]byte{first.Event.Digest, other.Event.Digest} {
			if !strings.Contains(results[0].Err.Error(), hex.EncodeToString(d[:])) {
				k.Errorf("%q doesn't name the digest %x", results[0].Err, d)
			}
		}
		k.want(results[1], ledger.Applied, nil)
		k.wantEffects(first, good)
		k.wantProgress(1, 2, ledger.Span{From: 2, To: 2})
		other.Outcome, other.Effects = ledger.Dead, nil
		k.want(k.commit(other)[0], ledger.Dead, nil)
		k.wantProgress(3, 3)
	}},
	{"SourceAndGroupAreOfTheID", func(k *kit) {
		a, b, c := k.step(0), k.step(1), k.step(0)
		b.Event, c.Event = a.Event, a.Event
		b.Event.Source = "another"
		ab := k.step(2)
		ab.Event = a.Event
		ab.Event.Source, ab.Event.ID = a.Event.Source+a.Event.ID[:1], a.Event.ID[1:]
		other := k.acquire(ledger.Key{Group: "other", TopicID: [16]byte{1}}, worker, 0)
		c.Fence = other.Fence
		for _, r := range k.commit(a, b, c, ab) {
			k.want(r, ledger.Applied, nil)
		}
	}},
	{"PositionalIDsHaveNoCopies", func(k *kit) {
		s := k.step(0)
		s.Event.Positional = true
		k.want(k.commit(s)[0], ledger.Applied, nil)
		seen, err := k.l.Seen(k.ctx, group, []ledger.Identity{s.Event, {Source: "test", ID: s.Event.ID}})
		k.must(err)
		if seen[0] != nil || seen[1] != nil {
			k.Error("a positional id was kept")
		}
	}},
	{"FinishedOffsetIsNotDoneAgain", func(k *kit) {
		s := k.step(0)
		k.commit(s)
		again := *s
		again.Event.ID = "not seen"
		k.want(k.commit(&again)[0], ledger.Duplicate, nil)
		k.wantEffects(s)
		k.wantProgress(1, 1) // counted once
	}},
	{"FailingStepLeavesNothing", func(k *kit) { // T5
		broken := errors.New("broken")
		var steps []*ledger.Step
		for i := range int64(10) {
			s := k.step(i)
			s.Emits = []ledger.Outgoing{{Topic: "out", Message: message(s.Event.ID)}}
			steps = append(steps, s)
		}
		bad := steps[3]
		bad.Effects = append(bad.Effects, fails(fault.As(fault.Permanent, broken)))
		results := k.commit(steps...)
		var good []*ledger.Step
		for i, s := range steps {
			if s == bad {
				k.want(results[i], 0, broken)
				if c := fault.ClassOf(results[i].Err); c != fault.Permanent {
					k.Errorf("class is %v, want the effect's own", c)
				}
				continue
			}
			k.want(results[i], ledger.Applied, nil)
			if want := int64(len(good) + 1); results[i].FirstSeq != want {
				k.Errorf("step %d has outbox number %d, want %d", i, results[i].FirstSeq, want)
			}
			good = append(good, s)
		}
		k.wantEffects(good...)
		k.wantProgress(3, 9, ledger.Span{From: 4, To: 9})
		seen, err := k.l.Seen(k.ctx, group, []ledger.Identity{bad.Event})
		k.must(err)
		if seen[0] != nil {
			k.Error("the failing step's id stayed")
		}
		bad.Effects = []effect{insert(bad.Event.ID)}
		k.want(k.commit(bad)[0], ledger.Applied, nil) // so it can be done again
		k.wantEffects(steps...)
		k.wantProgress(10, 10)
	}},
	{"AllStepsMayFail", func(k *kit) {
		broken := errors.New("broken")
		a, b := k.step(0), k.step(1)
		a.Effects, b.Effects = []effect{fails(broken)}, []effect{insert("b"), fails(broken)}
		for _, r := range k.commit(a, b) {
			k.want(r, 0, broken)
			if c := fault.ClassOf(r.Err); c != fault.Transient {
				k.Errorf("class is %v, want transient where the effect gave none", c)
			}
		}
		k.wantEffects()
		k.wantProgress(0, 0)
	}},
	{"CopyOfAFailingStepIsApplied", func(k *kit) {
		bad, again := k.step(0), k.step(1)
		again.Event, again.Effects = bad.Event, []effect{insert(bad.Event.ID)}
		bad.Effects = append(bad.Effects, fails(errors.New("broken")))
		results := k.commit(bad, again)
		if results[0].Err == nil {
			k.Error("the failing step has no error")
		}
		k.want(results[1], ledger.Applied, nil)
		k.wantEffects(again)
	}},
	{"SenselessStepIsRefusedAlone", func(k *kit) {
		bad, good := k.step(5), k.step(0)
		bad.From = 6
		results := k.commit(bad, good)
		if fault.ClassOf(results[0].Err) != fault.Fatal {
			k.Errorf("an empty range: %v, want a fatal error", results[0].Err)
		}
		k.want(results[1], ledger.Applied, nil)
	}},
	{"UnknownCommitThatHappened", func(k *kit) { unknown(k, true) }}, // T3
	{"UnknownCommitThatDidNot", func(k *kit) { unknown(k, false) }},
	{"UnknownCommitOfALeaseThatMovedOn", func(k *kit) {
		b := &ledger.Batch{Steps: []*ledger.Step{k.step(0)}}
		k.f.FailCommit(k.l, true)
		if _, err := k.l.Commit(k.ctx, b); !errors.Is(err, ledger.ErrUnknown) {
			k.Fatalf("commit: %v, want ErrUnknown", err)
		}
		k.must(k.l.Release(k.ctx, k.fence))
		k.acquire(k.fence.Key, "w2", 0)
		results, committed, err := k.l.Resolve(k.ctx, b)
		k.must(err)
		if !committed {
			k.Fatal("a batch whose lease has moved on must not be committed again")
		}
		if r := results[0]; r.Err != nil && !errors.Is(r.Err, ledger.ErrFenced) || r.Err == nil && r.Outcome != ledger.Applied {
			k.Errorf("result is %+v, want applied, or fenced where that can't be told", r)
		}
		k.wantEffects(b.Steps...)
	}},
	{"CancelledBeforeItBegins", func(k *kit) {
		ctx, cancel := context.WithCancel(k.ctx)
		cancel()
		release := make(chan struct{})
		holding := make(chan struct{})
		done := make(chan struct{})
		go func() { // keeps the writer
			defer close(done)
			_ = k.l.Setup(k.ctx, func(context.Context, ledger.Tx) error {
				close(holding)
				<-release
				return nil
			})
		}()
		<-holding
		s := k.step(0)
		_, err := k.l.Commit(ctx, &ledger.Batch{Steps: []*ledger.Step{s}})
		close(release)
		<-done
		if err == nil {
			if k.effects()[s.Event.ID] != 1 { // an implementation with several writers may have gone ahead
				k.Error("commit returned nil and did nothing")
			}
			return
		}
		if !errors.Is(err, context.Canceled) {
			k.Errorf("commit: %v, want the context's error", err)
		}
		k.wantEffects()
	}},
	{"ManyAtOnce", func(k *kit) {
		const partitions, batches, size = 4, 12, 8
		var wg sync.WaitGroup
		errs := make(chan error, 4*partitions*batches)
		for p := range int32(partitions) {
			fence := k.acquire(key(1, p+10), worker, 0).Fence
			wg.Go(func() {
				for b := range int64(batches) {
					batch := &ledger.Batch{}
					for i := range int64(size) {
						s := k.step(b*size + i)
						s.Fence = fence
						batch.Steps = append(batch.Steps, s)
					}
					results, err := k.l.Commit(k.ctx, batch)
					if err == nil && results[0].Err != nil {
						err = results[0].Err
					}
					if err == nil {
						_, err = k.l.Seen(k.ctx, group, []ledger.Identity{batch.Steps[0].Event})
					}
					if err == nil {
						_, err = k.l.Beat(k.ctx, ledger.Worker{ID: worker}, ttl)
					}
					if err == nil {
						_, err = k.l.Totals(k.ctx)
					}
					errs <- err
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			k.must(err)
		}
		for p := range int32(partitions) {
			if l := k.lease(key(1, p+10)); l.Next != batches*size || l.Counters.Applied != batches*size {
				k.Errorf("partition %d is at %d with %+v", p, l.Next, l.Counters)
			}
		}
		for id, n := range k.effects() {
			if n != 1 {
				k.Errorf("effect of %s happened %d times", id, n)
			}
		}
	}},
}

func unknown(k *kit, happened bool) {
	bad := k.step(2)
	bad.Effects = []effect{fails(errors.New("broken"))}
	good, other := k.step(0), k.step(1)
	good.Emits = []ledger.Outgoing{{Topic: "out", Message: message("x")}}
	k.commit(k.step(5)) // so that an offset finished before says nothing
	repeat := k.step(5)
	b := &ledger.Batch{Steps: []*ledger.Step{repeat, good, other, bad}}
	k.f.FailCommit(k.l, happened)
	if results, err := k.l.Commit(k.ctx, b); !errors.Is(err, ledger.ErrUnknown) {
		k.Fatalf("commit: %v and %v, want ErrUnknown", results, err)
	}
	results, committed, err := k.l.Resolve(k.ctx, b)
	k.must(err)
	if committed != happened {
		k.Fatalf("committed is %v, want %v", committed, happened)
	}
	if !committed {
		results, err = k.l.Commit(k.ctx, b)
		k.must(err)
	}
	k.want(results[0], ledger.Duplicate, nil)
	k.want(results[1], ledger.Applied, nil)
	k.want(results[2], ledger.Applied, nil)
	if results[1].FirstSeq != 1 || results[3].Err == nil {
		k.Errorf("results are %v", results)
	}
	// Whoever commits it again nevertheless does nothing twice.
	again, err := k.l.Commit(k.ctx, b)
	k.must(err)
	k.want(again[1], ledger.Duplicate, nil)
	counts := k.effects()
	if counts[good.Event.ID] != 1 || counts[other.Event.ID] != 1 || len(counts) != 3 {
		k.Errorf("effects are %v", counts)
	}
	l := k.wantProgress(2, 3, ledger.Span{From: 5, To: 5})
	if l.Seq != 1 {
		k.Errorf("outbox number is %d, want 1", l.Seq)
	}
	rows, err := k.l.Outbox(k.ctx, k.fence, 0, 10)
	k.must(err)
	if len(rows) != 1 {
		k.Errorf("outbox holds %d rows, want 1", len(rows))
	}
	if _, _, err := k.l.Resolve(k.ctx, b); err == nil {
		k.Error("a batch that was resolved was resolved again")
	}
}
