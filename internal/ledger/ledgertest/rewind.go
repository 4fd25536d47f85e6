package ledgertest

import (
	"errors"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// rewind releases the kit's lease, rewinds it, and takes it again.
func (k *kit) rewind(offset int64, again bool, since time.Time) (forgotten int64) {
	k.Helper()
	k.must(k.l.Release(k.ctx, k.fence))
	n, err := k.l.Rewind(k.ctx, group, map[ledger.Key]int64{k.fence.Key: offset}, again, since)
	k.must(err)
	k.fence = k.acquire(k.fence.Key, worker, 0).Fence
	return n
}

// repeat is the step of a record that is delivered again.
func (k *kit) repeat(s *ledger.Step) *ledger.Step {
	c := *s
	c.Fence = k.fence
	return &c
}

var rewindTests = []test{
	{"BackToAnOffset", func(k *kit) {
		a, b, c := k.step(0), k.step(1), k.step(4)
		k.commit(a, b, c)
		k.wantProgress(2, 3, ledger.Span{From: 4, To: 4})
		if n := k.rewind(1, false, time.Time{}); n != 0 {
			k.Errorf("%d ids were forgotten, want none", n)
		}
		k.wantProgress(1, 3)
		k.want(k.commit(k.repeat(b))[0], ledger.Duplicate, nil) // applied before
		k.want(k.commit(k.repeat(c))[0], ledger.Duplicate, nil)
		k.wantEffects(a, b, c)
		k.wantProgress(2, 5, ledger.Span{From: 4, To: 4})
	}},
	{"ForwardToAnOffset", func(k *kit) {
		k.commit(k.step(0), k.step(7))
		k.rewind(5, false, time.Time{})
		k.wantProgress(5, 2) // what was passed over was never delivered, what is ahead will be again
		k.want(k.commit(k.step(5))[0], ledger.Applied, nil)
		k.wantProgress(6, 3)
	}},
	{"OutboxStaysAndItsNumbersGoOn", func(k *kit) {
		s := k.step(0)
		s.Emits = []ledger.Outgoing{{Topic: "out", Message: message("0")}}
		k.commit(s)
		k.rewind(0, false, time.Time{})
		k.wantOutbox(0, 10, "0")
		next := k.step(1)
		next.Emits = []ledger.Outgoing{{Topic: "out", Message: message("1")}}
		if r := k.commit(next)[0]; r.FirstSeq != 2 {
			k.Errorf("outbox number is %d, want 2", r.FirstSeq)
		}
	}},
	{"WhileItIsHeld", func(k *kit) {
		k.commit(k.step(0))
		other := k.acquire(key(1, 1), "w2", 0)
		k.must(k.l.Release(k.ctx, k.fence)) // another partition is held still
		to := map[ledger.Key]int64{k.fence.Key: 0}
		if _, err := k.l.Rewind(k.ctx, group, to, true, time.Time{}); !errors.Is(err, ledger.ErrHeld) {
			k.Fatalf("rewind of a held group: %v, want ErrHeld", err)
		}
		if l := k.lease(k.fence.Key); l.Next != 1 {
			k.Errorf("progress is %d, want 1", l.Next)
		}
		k.must(k.l.Release(k.ctx, other.Fence))
		_, err := k.l.Rewind(k.ctx, group, to, false, time.Time{})
		k.must(err)
		if l := k.lease(k.fence.Key); l.Next != 0 {
			k.Errorf("progress is %d, want 0", l.Next)
		}
	}},
	{"WhatIsNotThere", func(k *kit) {
		k.must(k.l.Release(k.ctx, k.fence))
		for _, at := range []ledger.Key{key(9, 9), {Group: "other", TopicID: [16]byte{1}}} {
			if _, err := k.l.Rewind(k.ctx, group, map[ledger.Key]int64{at: 0}, false, time.Time{}); err == nil {
				k.Errorf("rewound %v, which the group never took", at)
			}
		}
		n, err := k.l.Rewind(k.ctx, "nobody", nil, true, time.Time{})
		if n != 0 || err != nil {
			k.Errorf("rewind of nothing: %d, %v", n, err)
		}
	}},
	{"AnOwnerWhoseTimeIsOverIsFenced", func(k *kit) {
		l, err := k.l.Acquire(k.ctx, k.fence.Key, topic, worker, 0, time.Millisecond)
		k.must(err)
		k.fence = l.Fence
		k.until("the lease to expire", func() bool {
			_, err := k.l.Rewind(k.ctx, group, map[ledger.Key]int64{l.Key: 5}, false, time.Time{})
			return !errors.Is(err, ledger.ErrHeld)
		})
		k.want(k.commit(k.step(9))[0], 0, ledger.ErrFenced)
	}},
	{"CarriedStepsArePutDown", func(k *kit) {
		old := k.pass("", 0)
		_, err := k.l.Rewind(k.ctx, group, map[ledger.Key]int64{old.Key: 9}, false, time.Time{})
		k.must(err)
		k.want(k.commit(k.carriedStep(old, 0))[0], 0, ledger.ErrFenced)
		k.wantCarried(k.acquire(old.Key, worker, 0))
	}},
	{"BacklogAboveGoesAndCountersAddUp", func(k *kit) {
		below, head, behind, wait := k.waits(0, "low", "budget"), k.parks(2, "doc"), k.behind(3, "doc"), k.waits(4, "note", "budget")
		for _, s := range []*ledger.Step{below, k.step(1), head, behind, wait} {
			k.want(k.commit(s)[0], s.Outcome, nil)
		}
		k.dead(5, "other")
		k.wantCounters(ledger.Counters{Applied: 1, Dead: 2, Waiting: 3})
		k.rewind(2, false, time.Time{})
		// The two that waited haven't ended, and will be counted when they come again. The dead have ended so, once.
		k.wantCounters(ledger.Counters{Applied: 1, Dead: 2, Waiting: 1})
		k.wantBacklog("low", 0)
		k.wantBacklog("doc")
		k.wantBacklog("note")
		k.wantTotals(1, 0)
		k.wantDead(false, 2, 5)
		k.want(k.commit(k.repeat(k.redrive(below, ledger.Applied)))[0], ledger.Applied, nil)
		for _, s := range []*ledger.Step{head, behind, wait} {
			r := k.repeat(s)
			r.Outcome, r.Wait, r.Emits, r.Effects = ledger.Applied, nil, nil, []effect{insert(s.Event.ID)}
			k.want(k.commit(r)[0], ledger.Applied, nil)
		}
		k.wantCounters(ledger.Counters{Applied: 5, Dead: 2})
	}},
	{"AgainFromATimeOn", func(k *kit) {
		a, b, c := k.step(0), k.step(1), k.step(2)
		other := k.acquire(key(1, 1), worker, 0)
		elsewhere := k.step(5)
		elsewhere.Fence = other.Fence
		foreign, err := k.l.Acquire(k.ctx, ledger.Key{Group: "other", TopicID: [16]byte{1}}, topic, worker, 0, ttl)
		k.must(err)
		theirs := k.step(2)
		theirs.Fence, theirs.Event, theirs.Effects = foreign.Fence, c.Event, nil
		for _, r := range k.commit(a, b, c, elsewhere, theirs) {
			k.want(r, ledger.Applied, nil)
		}
		k.must(k.l.Release(k.ctx, other.Fence))
		if n := k.rewind(0, true, logTime(1)); n != 2 {
			k.Errorf("%d ids were forgotten, want 2", n)
		}
		k.want(k.commit(k.repeat(a))[0], ledger.Duplicate, nil)
		k.want(k.commit(k.repeat(b))[0], ledger.Applied, nil)
		k.want(k.commit(k.repeat(c))[0], ledger.Applied, nil)
		copied := k.step(3)
		copied.Event = elsewhere.Event // applied on a partition that wasn't rewound
		k.want(k.commit(copied)[0], ledger.Duplicate, nil)
		counts := k.effects()
		if counts[a.Event.ID] != 1 || counts[b.Event.ID] != 2 || counts[c.Event.ID] != 2 || counts[elsewhere.Event.ID] != 1 {
			k.Errorf("effects are %v", counts)
		}
	}},
	{"HistoriesBeginAnewFromATimeOn", func(k *kit) {
		var steps []*ledger.Step
		for i := range int64(5) {
			s := k.inHistory(i, "doc", i+1)
			steps = append(steps, s)
			k.want(k.commit(s)[0], ledger.Applied, nil)
		}
		quiet := k.inHistory(5, "quiet", 1)
		quiet.LogTime = logTime(0) // nothing of it is from the time that is to be applied again
		k.want(k.commit(quiet)[0], ledger.Applied, nil)
		other := k.acquire(key(1, 1), worker, 0)
		elsewhere := k.inHistory(9, "elsewhere", 1)
		elsewhere.Fence = other.Fence
		k.want(k.commit(elsewhere)[0], ledger.Applied, nil)
		k.must(k.l.Release(k.ctx, other.Fence))
		k.rewind(1, true, logTime(2))
		k.want(k.commit(k.repeat(steps[1]))[0], ledger.Duplicate, nil) // before that time
		k.want(k.commit(k.repeat(steps[2]))[0], ledger.Applied, nil)
		k.want(k.commit(k.repeat(steps[4]))[0], ledger.Waiting, nil) // a gap is one still
		k.want(k.commit(k.repeat(steps[3]))[0], ledger.Applied, nil)
		k.want(k.commit(k.repeat(again(steps[4])))[0], ledger.Applied, nil)
		k.want(k.commit(k.repeat(quiet))[0], ledger.Duplicate, nil)
		copied := k.inHistory(6, "elsewhere", 1)
		k.want(k.commit(copied)[0], ledger.Duplicate, nil) // of a partition that wasn't rewound
		k.want(k.commit(k.inHistory(7, "doc", 6))[0], ledger.Applied, nil)
	}},
	{"HistoriesBeginAnewFromTheStart", func(k *kit) {
		a, b := k.inHistory(0, "doc", 1), k.inHistory(1, "doc", 2)
		k.commit(a)
		k.commit(b)
		k.rewind(0, true, time.Time{})
		k.want(k.commit(k.repeat(a))[0], ledger.Applied, nil)
		k.want(k.commit(k.repeat(a))[0], ledger.Duplicate, nil)
		k.want(k.commit(k.repeat(b))[0], ledger.Applied, nil)
	}},
	{"HistoryBeginsAnewBehindADeadHead", func(k *kit) {
		a, b, c := k.inHistory(0, "doc", 1), k.inHistory(1, "doc", 2), k.inHistory(2, "doc", 3)
		for _, s := range []*ledger.Step{a, b, c} {
			k.commit(s)
		}
		k.rewind(1, true, logTime(1))
		dies := k.repeat(b)
		row := *b.Wait
		row.Dead, row.Reason = true, ledger.ParkedReason+" offset 1"
		dies.Outcome, dies.Effects, dies.Wait = ledger.Dead, nil, &row
		k.want(k.commit(dies)[0], ledger.Dead, nil)
		waits := k.repeat(c)
		waits.Outcome, waits.Effects = ledger.Waiting, nil
		k.want(k.commit(waits)[0], ledger.Waiting, nil)
		done, err := k.l.Discard(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.want(k.commit(k.repeat(again(c)))[0], ledger.Applied, nil)
	}},
}
