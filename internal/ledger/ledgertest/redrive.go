package ledgertest

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// behind is a step that puts its record behind a dead one.
func (k *kit) behind(offset int64, subject string) *ledger.Step {
	return k.waits(offset, subject, ledger.ParkedReason+" what died")
}

// parks is a step whose record dies and parks its aggregate.
func (k *kit) parks(offset int64, subject string) *ledger.Step {
	s := k.dies(offset, subject)
	s.Wait.Reason = ledger.ParkedReason + " what died"
	return s
}

// decides calls Redrive or Discard and says what it should answer.
func (k *kit) decides(want bool, done bool, err error) {
	k.Helper()
	k.must(err)
	if done != want {
		k.Fatalf("decided: %v, want %v", done, want)
	}
}

func (k *kit) wantParked(subject, prefix string) {
	k.Helper()
	parked, err := k.l.Parked(k.ctx, k.fence)
	k.must(err)
	if reason, ok := parked[subject]; !ok || !strings.HasPrefix(reason, prefix) {
		k.Errorf("%s is parked with %q, want %q", subject, reason, prefix)
	}
}

func (k *kit) wantAsks(worker string, subjects ...string) {
	k.Helper()
	asks, err := k.l.Asks(k.ctx, worker)
	k.must(err)
	var got []string
	for _, a := range asks {
		if a.Fence != k.fence {
			k.Errorf("asked under %+v, want %+v", a.Fence, k.fence)
		}
		got = append(got, a.Subject)
	}
	if fmt.Sprint(got) != fmt.Sprint(subjects) {
		k.Errorf("%s is asked about %v, want %v", worker, got, subjects)
	}
}

func (k *kit) wantDead(want bool, offsets ...int64) {
	k.Helper()
	dead, err := k.l.Dead(k.ctx, k.fence.Key, offsets)
	k.must(err)
	for i, got := range dead {
		if got != want {
			k.Errorf("offset %d is dead: %v, want %v", offsets[i], got, want)
		}
	}
}

func (k *kit) wantTotals(waiting, parked int64) {
	k.Helper()
	totals, err := k.l.Totals(k.ctx)
	k.must(err)
	if totals.Waiting != waiting || totals.Parked != parked {
		k.Errorf("totals have %d waiting and %d parked, want %d and %d", totals.Waiting, totals.Parked, waiting, parked)
	}
}

func (k *kit) wantWaits(q ledger.WaitQuery, places ...string) []ledger.WaitRow {
	k.Helper()
	rows, err := k.l.Waits(k.ctx, q)
	k.must(err)
	var got []string
	for _, r := range rows {
		got = append(got, fmt.Sprintf("%s/%d@%d", r.Topic, r.Key.Partition, r.Offset))
	}
	if fmt.Sprint(got) != fmt.Sprint(places) {
		k.Fatalf("query %+v lists %v, want %v", q, got, places)
	}
	return rows
}

// dead commits a dead record that parks nothing, and is its row to put it back with.
func (k *kit) dead(offset int64, subject string) (*ledger.Step, ledger.Wait) {
	k.Helper()
	s := k.step(offset)
	s.Event.Subject, s.Outcome, s.Effects = subject, ledger.Dead, nil
	k.want(k.commit(s)[0], ledger.Dead, nil)
	return s, ledger.Wait{Subject: subject, Reason: "put back", Offset: offset, Message: message(fmt.Sprint(offset))}
}

var redriveTests = []test{
	{"RandomRedrivesAddUp", randomRedrives},
	{"ReleasedHeadIsHandledAndThenWhatIsBehindIt", func(k *kit) {
		dead, b, c := k.parks(0, "doc"), k.behind(1, "doc"), k.behind(2, "doc")
		for _, s := range []*ledger.Step{dead, b, c} {
			k.want(k.commit(s)[0], s.Outcome, nil)
		}
		k.wantTotals(3, 1)
		k.wantParked("doc", ledger.ParkedReason)
		done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.wantTotals(3, 0)
		k.wantCounters(ledger.Counters{Dead: 1, Waiting: 2})
		k.wantAsks(worker, "doc")
		k.wantAsks("w2")
		k.wantAsks("")
		k.wantParked("doc", ledger.GoOnReason)
		if w := k.wantBacklog("doc", 0, 1, 2); !w[0].Dead || !w[0].Released || w[1].Dead || w[1].Released {
			k.Errorf("backlog is %+v", w)
		}
		done, err = k.l.Redrive(k.ctx, k.fence.Key, "doc", -1) // again, before it was handled
		k.decides(false, done, err)
		done, err = k.l.Discard(k.ctx, k.fence.Key, "doc", -1)
		k.decides(false, done, err)
		k.must(k.l.Answer(k.ctx, k.fence, "doc", "another"))
		k.wantAsks(worker)
		k.wantParked("doc", ledger.GoOnReason) // should the owner end now
		k.want(k.commit(k.redrive(dead, ledger.Applied))[0], ledger.Applied, nil)
		k.wantCounters(ledger.Counters{Applied: 1, Waiting: 2})
		k.wantParked("doc", ledger.GoOnReason) // nothing is dead before it
		k.want(k.commit(k.redrive(b, ledger.Applied))[0], ledger.Applied, nil)
		k.want(k.commit(k.redrive(c, ledger.Applied))[0], ledger.Applied, nil)
		k.wantCounters(ledger.Counters{Applied: 3})
		k.wantTotals(0, 0)
		k.wantEffects(dead, b, c)
		k.wantProgress(3, 3)
	}},
	{"ReleasedHeadThatDiesAgainParksAgain", func(k *kit) {
		dead, b := k.parks(0, "doc"), k.behind(1, "doc")
		k.commit(dead)
		k.commit(b)
		for range 3 {
			done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
			k.decides(true, done, err)
			k.want(k.commit(again(dead))[0], ledger.Dead, nil)
			k.wantCounters(ledger.Counters{Dead: 1, Waiting: 1})
			if w := k.wantBacklog("doc", 0, 1); !w[0].Dead || w[0].Released {
				k.Errorf("backlog is %+v", w)
			}
			k.wantParked("doc", ledger.ParkedReason)
			k.wantTotals(2, 1)
		}
	}},
	{"ReleasedHeadMayWaitForSomethingElse", func(k *kit) {
		dead := k.parks(0, "doc")
		k.commit(dead)
		done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		budget := k.redrive(dead, ledger.Waiting)
		budget.Wait = &ledger.Wait{Subject: "doc", Reason: "budget", Offset: 0}
		k.want(k.commit(budget)[0], ledger.Waiting, nil)
		k.wantCounters(ledger.Counters{Waiting: 1})
		if w := k.wantBacklog("doc", 0); w[0].Dead || w[0].Released || w[0].Reason != "budget" {
			k.Errorf("backlog is %+v", w)
		}
		k.wantParked("doc", "budget")
	}},
	{"NothingToDecide", func(k *kit) {
		k.commit(k.waits(0, "doc", "budget"))
		for _, key := range []ledger.Key{k.fence.Key, key(9, 9)} {
			done, err := k.l.Redrive(k.ctx, key, "doc", -1)
			k.decides(false, done, err)
			done, err = k.l.Discard(k.ctx, key, "other", -1)
			k.decides(false, done, err)
		}
		k.wantAsks(worker)
		k.wantParked("doc", "budget") // and goes by what it waits for
	}},
	{"WhatIsDecidedHoldsForTheHeadThatWasLookedAt", func(k *kit) {
		k.commit(k.parks(0, "doc"))
		k.commit(k.parks(1, "doc"))
		done, err := k.l.Discard(k.ctx, k.fence.Key, "doc", 1)
		k.decides(false, done, err)
		done, err = k.l.Redrive(k.ctx, k.fence.Key, "doc", 1)
		k.decides(false, done, err)
		k.wantAsks(worker)
		k.wantBacklog("doc", 0, 1)
		done, err = k.l.Discard(k.ctx, k.fence.Key, "doc", 0)
		k.decides(true, done, err)
		done, err = k.l.Redrive(k.ctx, k.fence.Key, "doc", 1)
		k.decides(true, done, err)
		if w := k.wantBacklog("doc", 1); !w[0].Released {
			k.Errorf("backlog is %+v", w)
		}
	}},
	{"DiscardedHeadStaysDeadAndTheOthersGoOn", func(k *kit) {
		dead, b := k.parks(0, "doc"), k.behind(1, "doc")
		k.commit(dead)
		k.commit(b)
		done, err := k.l.Discard(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.wantCounters(ledger.Counters{Dead: 1, Waiting: 1})
		k.wantTotals(1, 0)
		k.wantAsks(worker, "doc")
		k.wantParked("doc", ledger.GoOnReason)
		k.wantBacklog("doc", 1)
		done, err = k.l.Discard(k.ctx, k.fence.Key, "doc", -1)
		k.decides(false, done, err)
		k.want(k.commit(again(dead))[0], ledger.Duplicate, nil) // its row is gone
		k.want(k.commit(k.redrive(b, ledger.Applied))[0], ledger.Applied, nil)
		k.wantCounters(ledger.Counters{Applied: 1, Dead: 1})
		k.wantEffects(b)
		k.wantProgress(2, 2)
	}},
	{"DiscardedHeadOfNobodyElseIsAskedAboutToo", func(k *kit) {
		k.commit(k.parks(0, "doc"))
		done, err := k.l.Discard(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.wantAsks(worker, "doc") // so that the owner lets new records of it through
		k.wantBacklog("doc")
	}},
	{"DiscardedHeadTakesItsPlaceInItsHistory", func(k *kit) {
		k.commit(k.inHistory(0, "doc", 1))
		head, next := k.inHistory(1, "doc", 2), k.inHistory(2, "doc", 3)
		head.Outcome, head.Effects, head.Wait.Dead, head.Wait.Reason = ledger.Dead, nil, true, ledger.ParkedReason+" offset 1"
		k.want(k.commit(head)[0], ledger.Dead, nil)
		waits := *next
		waits.Outcome, waits.Effects = ledger.Waiting, nil
		k.want(k.commit(&waits)[0], ledger.Waiting, nil)
		done, err := k.l.Discard(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.want(k.commit(again(next))[0], ledger.Applied, nil)
		k.wantCounters(ledger.Counters{Applied: 2, Dead: 1})
		k.want(k.commit(k.inHistory(3, "doc", 2))[0], ledger.Duplicate, nil) // a copy of it comes too late
	}},
	{"RedrivenHeadTakesItsPlaceInItsHistory", func(k *kit) {
		head, next := k.inHistory(0, "doc", 1), k.inHistory(1, "doc", 2)
		dies, waits := *head, *next
		row := *head.Wait
		row.Dead = true
		dies.Outcome, dies.Effects, dies.Wait = ledger.Dead, nil, &row
		k.want(k.commit(&dies)[0], ledger.Dead, nil)
		waits.Outcome, waits.Effects = ledger.Waiting, nil
		k.want(k.commit(&waits)[0], ledger.Waiting, nil)
		done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.want(k.commit(again(head))[0], ledger.Applied, nil)
		k.want(k.commit(again(next))[0], ledger.Applied, nil)
		k.wantCounters(ledger.Counters{Applied: 2})
	}},
	{"AsksGoWithTheLease", func(k *kit) {
		k.commit(k.parks(0, "doc"))
		k.must(k.l.Release(k.ctx, k.fence))
		done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1) // while nobody has it
		k.decides(true, done, err)
		k.wantAsks(worker)
		old := k.fence
		k.fence = k.acquire(k.fence.Key, "w2", 0).Fence
		k.wantAsks("w2", "doc")
		if err := k.l.Answer(k.ctx, old, "doc"); !errors.Is(err, ledger.ErrFenced) {
			k.Errorf("answer of a stale owner: %v, want ErrFenced", err)
		}
		k.wantAsks("w2", "doc")
		k.must(k.l.Answer(k.ctx, k.fence, "doc"))
		k.wantAsks("w2")
	}},
	{"DeadRecordIsPutBackOnce", func(k *kit) {
		s, w := k.dead(0, "doc")
		k.commit(k.step(1))
		done, err := k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(true, done, err)
		k.wantCounters(ledger.Counters{Dead: 1, Applied: 1})
		k.wantTotals(1, 0)
		k.wantAsks(worker, "doc")
		k.wantParked("doc", ledger.GoOnReason)
		if got := k.wantBacklog("doc", 0)[0]; !got.Dead || !got.Released || got.Reason != "put back" || string(got.Message.Value) != "0" {
			k.Errorf("backlog is %+v", got)
		}
		done, err = k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(false, done, err)
		k.want(k.commit(k.redrive(s, ledger.Applied))[0], ledger.Applied, nil)
		k.wantCounters(ledger.Counters{Applied: 2})
		done, err = k.l.Requeue(k.ctx, k.fence.Key, w) // a second letter of it, or a command that runs again
		k.decides(false, done, err)
		k.wantTotals(0, 0)
		k.wantProgress(2, 2)
	}},
	{"PutBackAndDeadAgainMayBePutBackAgain", func(k *kit) {
		s, w := k.dead(0, "doc")
		for range 2 {
			done, err := k.l.Requeue(k.ctx, k.fence.Key, w)
			k.decides(true, done, err)
			k.want(k.commit(k.redrive(s, ledger.Dead))[0], ledger.Dead, nil)
			k.wantCounters(ledger.Counters{Dead: 1})
			k.wantBacklog("doc")
		}
		done, err := k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(true, done, err)
		parks := again(k.parks(0, "doc"))
		parks.Event = s.Event
		k.want(k.commit(parks)[0], ledger.Dead, nil)
		k.wantCounters(ledger.Counters{Dead: 1})
		k.wantTotals(1, 1)
		done, err = k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(false, done, err)
		done, err = k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.want(k.commit(k.redrive(s, ledger.Applied))[0], ledger.Applied, nil)
		k.wantCounters(ledger.Counters{Applied: 1})
	}},
	{"RedrivenHeadIsNotPutBackByItsLetter", func(k *kit) {
		head := k.parks(0, "doc")
		k.commit(head)
		k.dead(1, "other")
		done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.want(k.commit(k.redrive(head, ledger.Applied))[0], ledger.Applied, nil)
		w := *head.Wait
		done, err = k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(false, done, err)
		k.wantCounters(ledger.Counters{Applied: 1, Dead: 1})
		k.wantEffects(head)
	}},
	{"DiscardedHeadIsSettled", func(k *kit) {
		head := k.parks(0, "doc")
		k.commit(head)
		k.wantDead(true, 0)
		done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.wantDead(true, 0) // until it is handled
		k.commit(again(head))
		k.wantDead(true, 0)
		done, err = k.l.Discard(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.wantDead(false, 0)
		done, err = k.l.Requeue(k.ctx, k.fence.Key, *head.Wait)
		k.decides(false, done, err)
		k.wantCounters(ledger.Counters{Dead: 1})
	}},
	{"WhatIsDeadIsKnown", func(k *kit) {
		k.commit(k.parks(0, "doc"), k.step(1))
		k.commit(k.behind(2, "doc"))
		k.dead(3, "other")
		k.dead(4, "another")
		dead, err := k.l.Dead(k.ctx, k.fence.Key, []int64{4, 0, 1, 2, 3, 9})
		k.must(err)
		if fmt.Sprint(dead) != "[true true false false true false]" {
			k.Errorf("dead are %v", dead)
		}
		if dead, err := k.l.Dead(k.ctx, key(9, 9), []int64{0}); err != nil || len(dead) != 1 || dead[0] {
			k.Errorf("dead of a lease that was never taken: %v, %v", dead, err)
		}
		n, err := k.l.Dismiss(k.ctx, k.fence.Key, 0, 1, 3, 9) // 0 has a row: Discard is for that
		k.must(err)
		if n != 1 {
			k.Errorf("%d were dismissed, want 1", n)
		}
		k.wantDead(true, 0, 4)
		k.wantDead(false, 3)
		k.wantCounters(ledger.Counters{Applied: 1, Dead: 3, Waiting: 1})
		done, err := k.l.Requeue(k.ctx, k.fence.Key, ledger.Wait{Subject: "other", Offset: 3, Message: message("3")})
		k.decides(false, done, err)
		if n, err = k.l.Dismiss(k.ctx, key(9, 9), 0); n != 0 || err != nil {
			k.Errorf("dismissed %d of a lease that was never taken: %v", n, err)
		}
	}},
	{"FailingStepLeavesWhatIsDead", func(k *kit) {
		head := k.parks(0, "doc")
		bad := k.step(1)
		bad.Effects = []effect{fails(fault.Permanentf("broken"))}
		results := k.commit(head, bad)
		k.want(results[0], ledger.Dead, nil)
		k.wantDead(true, 0)
		k.wantDead(false, 1)
	}},
	{"WaitingForSomethingElseLeavesItDead", func(k *kit) {
		s, w := k.dead(0, "doc")
		done, err := k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(true, done, err)
		budget := k.redrive(s, ledger.Waiting)
		budget.Wait = &ledger.Wait{Subject: "doc", Reason: "budget", Offset: 0}
		k.want(k.commit(budget)[0], ledger.Waiting, nil)
		k.wantDead(true, 0)
		k.want(k.commit(k.redrive(s, ledger.Refused))[0], ledger.Refused, nil)
		k.wantDead(false, 0)
		k.wantCounters(ledger.Counters{Refused: 1})
	}},
	{"OnlyADeadRecordIsPutBack", func(k *kit) {
		k.commit(k.step(0))
		w := ledger.Wait{Subject: "doc", Offset: 0, Message: message("0")}
		done, err := k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(false, done, err)
		k.dead(1, "other")
		w.Offset = 2 // isn't finished
		done, err = k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(false, done, err)
		done, err = k.l.Requeue(k.ctx, key(9, 9), w)
		k.decides(false, done, err)
		k.commit(k.waits(3, "doc", "budget"))
		w.Offset = 3
		done, err = k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(false, done, err)
		k.wantAsks(worker)
		k.wantTotals(1, 0)
	}},
	{"PutBackRecordOfAHistoryThatHasGoneOn", func(k *kit) {
		a, b, c := k.inHistory(0, "doc", 1), k.inHistory(1, "doc", 2), k.inHistory(2, "doc", 3)
		k.commit(a)
		died := *b
		died.Outcome, died.Effects = ledger.Dead, nil
		k.want(k.commit(&died)[0], ledger.Dead, nil)
		k.want(k.commit(c)[0], ledger.Applied, nil)
		done, err := k.l.Requeue(k.ctx, k.fence.Key, *b.Wait)
		k.decides(true, done, err)
		k.want(k.commit(again(b))[0], ledger.Applied, nil)
		k.wantEffects(a, b, c)
		k.wantCounters(ledger.Counters{Applied: 3})
		k.want(k.commit(k.inHistory(3, "doc", 2))[0], ledger.Duplicate, nil)
		k.want(k.commit(k.inHistory(4, "doc", 4))[0], ledger.Applied, nil)
	}},
	{"PutBackRecordWhosePlaceIsTakenMayWaitAndDieFirst", func(k *kit) {
		died, next := k.inHistory(0, "doc", 1), k.inHistory(1, "doc", 2)
		c := *died
		c.Outcome, c.Effects = ledger.Dead, nil
		k.want(k.commit(&c)[0], ledger.Dead, nil)
		k.want(k.commit(next)[0], ledger.Applied, nil)
		done, err := k.l.Requeue(k.ctx, k.fence.Key, *died.Wait)
		k.decides(true, done, err)
		budget := k.redrive(died, ledger.Waiting)
		budget.Wait = &ledger.Wait{Subject: "doc", Reason: "budget", Sequence: 1}
		k.want(k.commit(budget)[0], ledger.Waiting, nil)
		parks := k.redrive(died, ledger.Dead)
		parks.Wait = &ledger.Wait{Subject: "doc", Reason: ledger.ParkedReason + " itself", Sequence: 1, Dead: true}
		k.want(k.commit(parks)[0], ledger.Dead, nil)
		done, err = k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.want(k.commit(again(died))[0], ledger.Applied, nil) // not a copy: it was never applied
		k.wantEffects(died, next)
	}},
	{"PutBackBehindAParkedHead", func(k *kit) {
		k.commit(k.parks(0, "doc"))
		_, w := k.dead(1, "doc") // an agent that skipped then
		done, err := k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(true, done, err)
		k.wantParked("doc", ledger.GoOnReason)
		k.wantTotals(2, 1)
		k.wantWaits(ledger.WaitQuery{DeadOnly: true}, "pages/0@0", "pages/0@1")
	}},
	{"CopyThatSortsBeforeADeadHeadStaysBehindIt", func(k *kit) {
		head := k.inHistory(0, "doc", 1)
		head.Outcome, head.Effects, head.Wait.Dead, head.Wait.Reason = ledger.Dead, nil, true, ledger.ParkedReason+" offset 0"
		k.want(k.commit(head)[0], ledger.Dead, nil)
		behind := k.behind(1, "doc") // its place, none, is before the head's
		k.want(k.commit(behind)[0], ledger.Waiting, nil)
		k.wantBacklog("doc", 1, 0)
		k.wantParked("doc", ledger.ParkedReason)
		done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.wantParked("doc", ledger.GoOnReason)
	}},
	{"CopyOfAPutBackRecordIsADuplicate", func(k *kit) {
		s, w := k.dead(0, "doc")
		c := k.step(1)
		c.Event = s.Event
		done, err := k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(true, done, err)
		k.want(k.commit(c)[0], ledger.Applied, nil)
		k.want(k.commit(k.redrive(s, ledger.Applied))[0], ledger.Duplicate, nil)
		k.wantCounters(ledger.Counters{Applied: 1, Duplicate: 1})
	}},
	{"ReleasedHeadIsCarried", func(k *kit) {
		head := k.parks(0, "doc")
		k.commit(head)
		done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		k.handOver("w2", 0)
		s := k.redrive(head, ledger.Applied)
		s.Carried = true
		k.want(k.commit(s)[0], ledger.Applied, nil)
		k.wantCounters(ledger.Counters{Applied: 1})
		k.wantTotals(0, 0)
	}},
	{"ListsGoByPlace", func(k *kit) {
		second := k.acquire(key(1, 1), worker, 0)
		other := ledger.Key{Group: "writer", TopicID: [16]byte{1}}
		l, err := k.l.Acquire(k.ctx, other, "words", worker, 0, ttl)
		k.must(err)
		on := func(f ledger.Fence, s *ledger.Step) *ledger.Step { s.Fence = f; return s }
		for _, s := range []*ledger.Step{k.parks(3, "doc"), k.behind(4, "doc"), k.waits(5, "note", "budget"), k.behind(6, "doc"),
			on(second.Fence, k.waits(0, "page", "budget")), on(l.Fence, k.parks(2, "doc"))} {
			k.want(k.commit(s)[0], s.Outcome, nil)
		}
		rows := k.wantWaits(ledger.WaitQuery{}, "pages/0@3", "pages/0@4", "pages/0@5", "pages/0@6", "pages/1@0", "words/0@2")
		head := rows[0]
		if head.Key != k.fence.Key || head.Subject != "doc" || !head.Dead || head.Behind != 2 || string(head.Message.Value) != "3" ||
			time.Since(head.Arrived).Abs() > time.Minute {
			k.Errorf("head is %+v", head)
		}
		if rows[1].Behind != 0 || rows[2].Behind != 0 || rows[5].Behind != 0 {
			k.Errorf("rows are %+v", rows)
		}
		k.wantWaits(ledger.WaitQuery{Group: group}, "pages/0@3", "pages/0@4", "pages/0@5", "pages/0@6", "pages/1@0")
		k.wantWaits(ledger.WaitQuery{Topic: "words"}, "words/0@2")
		k.wantWaits(ledger.WaitQuery{Subject: "doc"}, "pages/0@3", "pages/0@4", "pages/0@6", "words/0@2")
		k.wantWaits(ledger.WaitQuery{DeadOnly: true}, "pages/0@3", "words/0@2")
		k.wantWaits(ledger.WaitQuery{DeadOnly: true, Group: group, Subject: "note"})
		k.wantWaits(ledger.WaitQuery{Group: "nobody"})
		var q ledger.WaitQuery
		q.Limit = 2
		for _, page := range [][]string{{"pages/0@3", "pages/0@4"}, {"pages/0@5", "pages/0@6"}, {"pages/1@0", "words/0@2"}, nil} {
			for _, r := range k.wantWaits(q, page...) {
				q.After = ledger.WaitPlace{Group: r.Key.Group, TopicID: r.Key.TopicID, Partition: r.Key.Partition, Offset: r.Offset}
			}
		}
		done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		if r := k.wantWaits(ledger.WaitQuery{DeadOnly: true, Group: group}, "pages/0@3")[0]; !r.Released || r.Behind != 2 {
			k.Errorf("released head is %+v", r)
		}
	}},
	{"ListHasALimitOfItsOwn", func(k *kit) {
		var steps []*ledger.Step
		for i := range int64(101) {
			steps = append(steps, k.waits(i, "doc", "budget"))
		}
		k.commit(steps...)
		rows, err := k.l.Waits(k.ctx, ledger.WaitQuery{})
		k.must(err)
		if len(rows) != 100 {
			k.Errorf("%d rows, want 100", len(rows))
		}
	}},
	{"UnknownCommitOfAReleasedHead", func(k *kit) { // T3
		head := k.parks(0, "doc")
		k.commit(head)
		done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		b := &ledger.Batch{Steps: []*ledger.Step{k.redrive(head, ledger.Applied)}}
		for _, happened := range []bool{false, true} {
			k.f.FailCommit(k.l, happened)
			_, err := k.l.Commit(k.ctx, b)
			k.want(ledger.Result{Err: err}, 0, ledger.ErrUnknown)
			_, committed, err := k.l.Resolve(k.ctx, b)
			k.must(err)
			if committed != happened {
				k.Fatalf("committed is %v, want %v", committed, happened)
			}
		}
		k.wantEffects(head)
		k.wantCounters(ledger.Counters{Applied: 1})
	}},
	{"FailingRedriveLeavesItReleased", func(k *kit) {
		head := k.parks(0, "doc")
		k.commit(head)
		done, err := k.l.Redrive(k.ctx, k.fence.Key, "doc", -1)
		k.decides(true, done, err)
		bad := k.redrive(head, ledger.Applied)
		bad.Effects = append(bad.Effects, fails(fault.Permanentf("broken")))
		k.wantClass(k.commit(bad)[0].Err, fault.Permanent)
		if w := k.wantBacklog("doc", 0)[0]; !w.Dead || !w.Released {
			k.Errorf("row is %+v", w)
		}
	}},
	{"CallsOfAPutBackRecordStay", func(k *kit) {
		e := event.New("PageReadEvent", "doc", map[string]int{"page": 1})
		e.ID, e.Source, e.Time = "e-doc", "test", logTime(0)
		m, err := e.Encode()
		k.must(err)
		s, w := k.dead(0, "doc")
		w.Message = m
		c := k.call("e-doc", 1, false)
		k.wantCall(c, ledger.CallNew, "")
		k.must(k.l.Settle(k.ctx, c, answer("yes")))
		done, err := k.l.Requeue(k.ctx, k.fence.Key, w)
		k.decides(true, done, err)
		old := k.call("old", 2, false)
		k.wantCall(old, ledger.CallNew, "")
		k.must(k.l.Settle(k.ctx, old, answer("old")))
		k.until("a younger record to be old", func() bool {
			n, err := k.l.Prune(k.ctx, time.Hour, time.Millisecond)
			k.must(err)
			return n > 0
		})
		k.wantCall(c, ledger.CallRecorded, "yes") // its redrive must not pay again
		k.want(k.commit(k.redrive(s, ledger.Applied))[0], ledger.Applied, nil)
	}},
}
