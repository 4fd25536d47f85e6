package ledgertest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// pass passes the kit's lease on, with these offsets carried, and gives the fence that they were begun under.
func (k *kit) pass(to string, offsets ...int64) ledger.Fence {
	k.Helper()
	old := k.fence
	k.must(k.l.Pass(k.ctx, old, to, carries(offsets...), ttl))
	return old
}

func carries(offsets ...int64) (out []ledger.Carried) {
	for _, o := range offsets {
		out = append(out, ledger.Carried{Offset: o, Subject: fmt.Sprintf("s-%d", o)})
	}
	return out
}

// handOver passes the kit's lease to another worker, which takes it; the kit goes on as that one.
func (k *kit) handOver(to string, offsets ...int64) (old ledger.Fence) {
	k.Helper()
	old = k.pass(to, offsets...)
	k.fence = k.acquire(old.Key, to, 0).Fence
	return old
}

// carriedStep is a step that was begun under an old fence.
func (k *kit) carriedStep(old ledger.Fence, offset int64) *ledger.Step {
	s := k.step(offset)
	s.Fence, s.Carried = old, true
	return s
}

func (k *kit) wantCarried(l ledger.Lease, offsets ...int64) {
	k.Helper()
	var got []int64
	for _, c := range l.Carried {
		got = append(got, c.Offset)
	}
	if !slices.Equal(got, offsets) {
		k.Errorf("carried are the offsets %v, want %v", got, offsets)
	}
}

func (k *kit) progress() ledger.Lease {
	k.Helper()
	l, err := k.l.Progress(k.ctx, k.fence)
	k.must(err)
	return l
}

var handoverTests = []test{
	{"RandomHandOversAddUp", randomHandOvers},
	{"OnlyTheOneItIsPassedToMayTakeIt", func(k *kit) {
		old := k.pass("w2", 3, 5)
		if l := k.lease(old.Key); l.Held || l.Owner != "" {
			k.Errorf("a lease that was passed on is %+v", l)
		}
		for _, other := range []string{"w3", worker} {
			if _, err := k.l.Acquire(k.ctx, old.Key, topic, other, 0, ttl); !errors.Is(err, ledger.ErrHeld) {
				k.Errorf("%s acquires a lease passed to w2: %v, want ErrHeld", other, err)
			}
		}
		l := k.acquire(old.Key, "w2", 0)
		if l.Epoch <= old.Epoch || !l.Held || l.Owner != "w2" {
			k.Errorf("lease is %+v", l)
		}
		k.wantCarried(l, 3, 5)
		for _, c := range l.Carried {
			if c.Worker != worker || c.Epoch != old.Epoch || c.Subject != fmt.Sprintf("s-%d", c.Offset) || time.Until(c.Expires) < ttl/2 {
				k.Errorf("carried is %+v", c)
			}
		}
		if listed := k.lease(old.Key); len(listed.Carried) != 0 {
			k.Errorf("a list tells what is carried: %+v", listed.Carried)
		}
		k.must(k.l.Release(k.ctx, l.Fence)) // which ends the reservation for good
		k.acquire(old.Key, "w3", 0)
	}},
	{"PassedToNobodyIsFree", func(k *kit) {
		old := k.pass("")
		if l := k.acquire(old.Key, "w3", 0); l.Epoch <= old.Epoch {
			k.Errorf("epoch is %d after %d", l.Epoch, old.Epoch)
		}
	}},
	{"PassedToOneThatDoesNotComeIsFreeInTime", func(k *kit) {
		k.must(k.l.Pass(k.ctx, k.fence, "w2", nil, 100*time.Millisecond))
		k.until("the reservation to end", func() bool {
			_, err := k.l.Acquire(k.ctx, k.fence.Key, topic, "w3", 0, ttl)
			return err == nil
		})
	}},
	{"PassIsFenced", func(k *kit) {
		old := k.handOver("w2")
		for what, err := range map[string]error{
			"Pass":     k.l.Pass(k.ctx, old, "w3", carries(1), ttl),
			"Progress": second(k.l.Progress(k.ctx, old)),
		} {
			if !errors.Is(err, ledger.ErrFenced) {
				k.Errorf("%s of a stale owner: %v, want ErrFenced", what, err)
			}
		}
		k.wantCarried(k.progress())
	}},
	{"CarriedStepCommitsOnce", func(k *kit) {
		k.commit(k.step(0))
		old := k.handOver("w2", 1)
		behind := k.step(2)
		k.want(k.commit(behind)[0], ledger.Applied, nil)
		s := k.carriedStep(old, 1)
		s.Emits = []ledger.Outgoing{{Topic: "out", Message: message("1")}}
		mine := k.step(3)
		mine.Emits = []ledger.Outgoing{{Topic: "out", Message: message("3")}}
		results := k.commit(mine, s)
		k.want(results[0], ledger.Applied, nil)
		k.want(results[1], ledger.Applied, nil)
		if results[0].FirstSeq != 1 || results[1].FirstSeq != 2 { // numbers are the lease's, whoever commits
			k.Errorf("outbox numbers are %d and %d, want 1 and 2", results[0].FirstSeq, results[1].FirstSeq)
		}
		k.wantProgress(4, 4)
		k.wantOutbox(0, 10, "3", "1")
		k.wantCarried(k.progress())
		k.want(k.commit(s)[0], 0, ledger.ErrFenced)
		k.wantProgress(4, 4)
	}},
	{"BatchOfCarriedStepsAlone", func(k *kit) {
		old := k.handOver("w2", 0, 1)
		a, b := k.carriedStep(old, 0), k.carriedStep(old, 1)
		for _, r := range k.commit(a, b) {
			k.want(r, ledger.Applied, nil)
		}
		k.wantEffects(a, b)
		k.wantProgress(2, 2)
	}},
	{"CarriedStepCommitsWhileNobodyOwnsTheLease", func(k *kit) {
		old := k.pass("w2", 0)
		s := k.carriedStep(old, 0)
		k.want(k.commit(s)[0], ledger.Applied, nil)
		l := k.acquire(old.Key, "w2", 0)
		k.wantCarried(l)
		if l.Next != 1 {
			k.Errorf("progress is %d, want 1", l.Next)
		}
	}},
	{"OldFenceAloneIsFenced", func(k *kit) {
		old := k.handOver("w2", 0)
		stale := k.carriedStep(old, 0)
		stale.Carried = false
		strange, other, good := k.carriedStep(old, 1), k.carriedStep(old, 0), k.carriedStep(old, 0)
		other.Fence.Owner = "w3"
		older := k.carriedStep(old, 0)
		older.Fence.Epoch--
		results := k.commit(stale, strange, other, older, good)
		for _, r := range results[:4] {
			k.want(r, 0, ledger.ErrFenced)
		}
		k.want(results[4], ledger.Applied, nil)
		k.wantEffects(good)
		k.wantProgress(1, 1)
	}},
	{"OwnerMustNotCommitAsCarried", func(k *kit) {
		s := k.step(0)
		s.Carried = true // without a row
		k.want(k.commit(s)[0], 0, ledger.ErrFenced)
		k.want(k.commit(k.step(0))[0], ledger.Applied, nil)
	}},
	{"CarriedStepThatFailsKeepsItsRow", func(k *kit) {
		old := k.handOver("w2", 0)
		s := k.carriedStep(old, 0)
		s.Effects = append(s.Effects, fails(fault.Permanentf("broken")))
		k.wantClass(k.commit(s)[0].Err, fault.Permanent)
		k.wantCarried(k.progress(), 0)
		s.Effects = s.Effects[:1]
		k.want(k.commit(s)[0], ledger.Applied, nil)
		k.wantEffects(s)
	}},
	{"CarriedCopyIsADuplicate", func(k *kit) {
		first := k.step(0)
		k.commit(first)
		old := k.handOver("w2", 1, 2)
		again := k.carriedStep(old, 1)
		again.Event = first.Event
		other := k.carriedStep(old, 2)
		other.Event = first.Event
		other.Event.Digest = digest("other content")
		results := k.commit(again, other)
		k.want(results[0], ledger.Duplicate, nil)
		k.want(results[1], 0, ledger.ErrConflict)
		k.wantCarried(k.progress(), 2) // it is to be dead-lettered by its carrier
		other.Outcome, other.Effects = ledger.Dead, nil
		k.want(k.commit(other)[0], ledger.Dead, nil)
		k.wantCarried(k.progress())
		k.wantEffects(first)
		k.wantProgress(3, 3)
	}},
	{"CarriedStepFromTheBacklog", func(k *kit) {
		w, d := k.waits(0, "doc", "budget"), k.waits(1, "other", "budget")
		k.commit(w, d)
		old := k.handOver("w2", 0, 1)
		s := k.redrive(w, ledger.Applied)
		s.Carried = true
		dies := k.dies(1, "other")
		dies.FromBacklog, dies.Carried, dies.Fence, dies.Event = true, true, old, d.Event
		results := k.commit(s, dies)
		k.want(results[0], ledger.Applied, nil)
		k.want(results[1], ledger.Dead, nil)
		k.wantCounters(ledger.Counters{Applied: 1, Dead: 1})
		k.wantBacklog("doc")
		k.wantBacklog("other", 1)
		k.wantCarried(k.progress())
		k.wantProgress(2, 2)
	}},
	{"CarriedStepMayWait", func(k *kit) {
		old := k.handOver("w2", 0)
		s := k.waits(0, "doc", "budget")
		s.Fence, s.Carried = old, true
		k.want(k.commit(s)[0], ledger.Waiting, nil)
		k.wantBacklog("doc", 0)
		k.wantCarried(k.progress())
	}},
	{"CarriedOverSeveralOwners", func(k *kit) {
		first := k.handOver("w2", 0, 3)
		second := k.handOver("w3", 1)
		l := k.progress()
		k.wantCarried(l, 0, 1, 3)
		if l.Carried[0].Worker != worker || l.Carried[1].Worker != "w2" || l.Carried[1].Epoch != second.Epoch {
			k.Errorf("carried are %+v", l.Carried)
		}
		a, b, c := k.carriedStep(first, 0), k.carriedStep(second, 1), k.step(2)
		wrong := k.carriedStep(second, 3) // another's
		results := k.commit(a, wrong, c, b)
		k.want(results[1], 0, ledger.ErrFenced)
		for _, i := range []int{0, 2, 3} {
			k.want(results[i], ledger.Applied, nil)
		}
		k.wantProgress(3, 3)
		k.wantCarried(k.progress(), 3)
	}},
	{"BackToTheFirstWhileItCarries", func(k *kit) {
		old := k.handOver("w2", 0)
		k.handOver(worker, 1)
		k.wantCarried(k.progress(), 0, 1)
		k.want(k.commit(k.carriedStep(old, 0))[0], ledger.Applied, nil)
	}},
	{"ProgressEndsWhatHasExpired", func(k *kit) {
		old := k.fence
		k.must(k.l.Pass(k.ctx, old, "w2", carries(0, 1), ttl))
		k.fence = k.acquire(old.Key, "w2", 0).Fence
		second := k.handOver("w3", 2)
		_, err := k.l.Beat(k.ctx, ledger.Worker{ID: worker}, time.Millisecond) // it carries 0 and 1
		k.must(err)
		k.until("the carried rows to expire", func() bool {
			return len(k.progress().Carried) == 1
		})
		k.wantCarried(k.progress(), 2)
		late, mine := k.carriedStep(old, 0), k.step(0)
		k.want(k.commit(late)[0], 0, ledger.ErrFenced)
		k.want(k.commit(mine)[0], ledger.Applied, nil)
		k.want(k.commit(k.carriedStep(second, 2))[0], ledger.Applied, nil)
		k.wantProgress(1, 2, ledger.Span{From: 2, To: 2})
	}},
	{"AcquireEndsWhatHasExpired", func(k *kit) {
		old := k.fence
		k.must(k.l.Pass(k.ctx, old, "", carries(0), time.Millisecond))
		k.until("the carried row to expire", func() bool {
			k.fence = k.acquire(old.Key, "w2", 0).Fence
			return len(k.acquire(old.Key, "w2", 0).Carried) == 0
		})
		k.want(k.commit(k.carriedStep(old, 0))[0], 0, ledger.ErrFenced)
	}},
	{"ExpiredCarrierGoesOnUntilItIsEnded", func(k *kit) {
		old := k.fence
		k.must(k.l.Pass(k.ctx, old, "w2", carries(0, 1), time.Millisecond))
		clock := k.acquire(key(1, 1), worker, 0).Fence
		k.must(k.l.Pass(k.ctx, clock, "w2", nil, time.Millisecond))
		k.until("a reservation that was made later to end", func() bool {
			_, err := k.l.Acquire(k.ctx, clock.Key, topic, "w3", 0, ttl)
			return err == nil
		})
		k.want(k.commit(k.carriedStep(old, 0))[0], ledger.Applied, nil)
		_, err := k.l.Beat(k.ctx, ledger.Worker{ID: worker}, time.Hour)
		k.must(err)
		l := k.acquire(old.Key, "w2", 0)
		k.wantCarried(l, 1)
		if time.Until(l.Carried[0].Expires) < 50*time.Minute {
			k.Errorf("a beat put the expiry off to %v", l.Carried[0].Expires)
		}
	}},
	{"BeatPutsOnlyOnesOwnOff", func(k *kit) {
		k.handOver("w2", 0)
		before := k.progress().Carried[0].Expires
		held, err := k.l.Beat(k.ctx, ledger.Worker{ID: "w2"}, time.Hour)
		k.must(err)
		if len(held) != 1 || held[0] != k.fence {
			k.Errorf("the new owner holds %v", held)
		}
		if c := k.progress().Carried[0]; !c.Expires.Equal(before) {
			k.Error("a beat put off what another worker carries")
		}
		held, err = k.l.Beat(k.ctx, ledger.Worker{ID: worker}, time.Hour)
		k.must(err)
		if len(held) != 0 {
			k.Errorf("the carrier holds %v", held)
		}
		if c := k.progress().Carried[0]; time.Until(c.Expires) < 50*time.Minute {
			k.Errorf("carried is %+v after its worker's beat", c)
		}
	}},
	{"PutDownEndsCarrying", func(k *kit) {
		old := k.handOver("w2", 0, 1, 2)
		k.must(k.l.PutDown(k.ctx, old, 0, 1, 9))
		k.must(k.l.PutDown(k.ctx, old))
		k.must(k.l.PutDown(k.ctx, k.fence, 2)) // not its own
		k.must(k.l.PutDown(k.ctx, ledger.Fence{Key: key(9, 9), Owner: worker, Epoch: 1}, 2))
		k.wantCarried(k.progress(), 2)
		k.want(k.commit(k.carriedStep(old, 0))[0], 0, ledger.ErrFenced)
		k.want(k.commit(k.step(0))[0], ledger.Applied, nil)
	}},
	{"RetiringPutsDownWhatIsCarried", func(k *kit) {
		old := k.handOver("w2", 0)
		third := k.handOver("w3", 1)
		k.must(k.l.Retire(k.ctx, worker))
		k.wantCarried(k.progress(), 1)
		k.want(k.commit(k.carriedStep(old, 0))[0], 0, ledger.ErrFenced)
		k.want(k.commit(k.carriedStep(third, 1))[0], ledger.Applied, nil)
	}},
	{"SkipPutsDownWhatIsGone", func(k *kit) {
		w := k.waits(0, "doc", "budget")
		k.commit(w)
		old := k.handOver("w2", 0, 2, 7)
		n, err := k.l.Skip(k.ctx, k.fence, 5)
		k.must(err)
		if n != 4 {
			k.Errorf("passed over %d offsets, want 4", n)
		}
		k.wantCarried(k.progress(), 0, 7) // what comes from the backlog doesn't need the log
		k.want(k.commit(k.carriedStep(old, 2))[0], 0, ledger.ErrFenced)
		k.wantProgress(5, 1)
	}},
	{"UnknownCommitOfACarriedStep", func(k *kit) { // T3
		old := k.handOver("w2", 0, 1)
		for offset, happened := range []bool{true, false} {
			s := k.carriedStep(old, int64(offset))
			b := &ledger.Batch{Steps: []*ledger.Step{s}}
			k.f.FailCommit(k.l, happened)
			_, err := k.l.Commit(k.ctx, b)
			k.want(ledger.Result{Err: err}, 0, ledger.ErrUnknown)
			results, committed, err := k.l.Resolve(k.ctx, b)
			k.must(err)
			if committed != happened {
				k.Fatalf("committed is %v, want %v", committed, happened)
			}
			if !committed {
				results, err = k.l.Commit(k.ctx, b)
				k.must(err)
			}
			k.want(results[0], ledger.Applied, nil)
			if n := k.effects()[s.Event.ID]; n != 1 {
				k.Errorf("the effect happened %d times", n)
			}
		}
		k.wantProgress(2, 2)
		k.wantCarried(k.progress())
	}},
	{"UnknownCommitOfACarriedStepWhosePartitionMovedOn", func(k *kit) {
		old := k.handOver("w2", 0)
		b := &ledger.Batch{Steps: []*ledger.Step{k.carriedStep(old, 0)}}
		k.f.FailCommit(k.l, true)
		_, err := k.l.Commit(k.ctx, b)
		k.want(ledger.Result{Err: err}, 0, ledger.ErrUnknown)
		k.handOver("w3")
		results, committed, err := k.l.Resolve(k.ctx, b)
		k.must(err)
		if !committed {
			k.Fatal("a carried step that was committed must not be committed again")
		}
		if r := results[0]; r.Err != nil && !errors.Is(r.Err, ledger.ErrFenced) || r.Err == nil && r.Outcome != ledger.Applied {
			k.Errorf("result is %+v, want applied, or fenced where that can't be told", r)
		}
		k.wantEffects(b.Steps...)
		k.wantProgress(1, 1)
	}},
	{"CarriedStepGoesOnCalling", func(k *kit) {
		k.wantCall(k.call("e0", 9, true), ledger.CallNew, "") // of a step that isn't carried, at offset 0
		old := k.handOver("w2", 5)
		c := k.call("e1", 1, true)
		c.Fence, c.Offset = old, 5
		k.wantCall(c, ledger.CallNew, "")
		other := c
		other.Offset = 6
		if _, _, err := k.l.Recall(k.ctx, other); !errors.Is(err, ledger.ErrFenced) {
			k.Errorf("recall of a step that isn't carried: %v, want ErrFenced", err)
		}
		k.wantCall(k.call("e2", 9, true), ledger.CallInDoubt, "") // its step was not carried: nobody has it in the air
		if _, _, err := k.l.Recall(k.ctx, k.call("e3", 1, true)); !errors.Is(err, ledger.ErrElsewhere) {
			k.Errorf("a call that a carrier has in the air: %v, want ErrElsewhere", err)
		}
		k.must(k.l.Settle(k.ctx, c, answer("yes")))
		k.wantCall(k.call("e3", 1, true), ledger.CallReused, "yes")
		d := c
		d.Name, d.Address = "title", address(2)
		k.wantCall(d, ledger.CallNew, "")
		k.must(k.l.Abandon(k.ctx, d))
		k.wantCall(d, ledger.CallNew, "")
		k.must(k.l.PutDown(k.ctx, old, 5))
		for what, err := range map[string]error{
			"Settle": k.l.Settle(k.ctx, d, answer("no")), "Abandon": k.l.Abandon(k.ctx, d), "Recall": second(recall(k, d)),
		} {
			if !errors.Is(err, ledger.ErrFenced) {
				k.Errorf("%s of a step that was put down: %v, want ErrFenced", what, err)
			}
		}
		k.wantCall(k.call("e4", 2, true), ledger.CallInDoubt, "") // nobody has it in the air now
	}},
}

func recall(k *kit, c ledger.Call) (ledger.CallState, error) {
	_, state, err := k.l.Recall(k.ctx, c)
	return state, err
}
