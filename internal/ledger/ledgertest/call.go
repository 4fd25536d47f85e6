package ledgertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// call is a call of an event's step.
func (k *kit) call(event string, at uint64, reuse bool) ledger.Call {
	return ledger.Call{Fence: k.fence, Source: "test", EventID: event, Name: "notes", Address: address(at), Reuse: reuse, Key: "key-" + event}
}

func (k *kit) wantCall(c ledger.Call, want ledger.CallState, answer string) {
	k.Helper()
	a, state, err := k.l.Recall(k.ctx, c)
	k.must(err)
	if state != want || string(a.Response) != answer {
		k.Fatalf("recall of %s: state %d with answer %q, want %d with %q", c.EventID, state, a.Response, want, answer)
	}
}

func (k *kit) wantCalls(calls, reused, inDoubt int64) {
	k.Helper()
	totals, err := k.l.Totals(k.ctx)
	k.must(err)
	if want := (ledger.InferenceTotals{Calls: calls, Reused: reused, InDoubt: inDoubt}); totals.Inference != want {
		k.Errorf("totals are %+v, want %+v", totals.Inference, want)
	}
}

func answer(text string) ledger.Answer {
	return ledger.Answer{Model: "m-1", Response: []byte(text), TokensIn: 3, TokensOut: 4, At: time.UnixMilli(1_700_000_000_000).UTC()}
}

var callTests = []test{
	{"RecordedAnswerAnswers", func(k *kit) {
		c := k.call("e1", 1, false)
		k.wantCall(c, ledger.CallNew, "")
		k.must(k.l.Settle(k.ctx, c, answer("yes")))
		k.must(k.l.Settle(k.ctx, c, answer("no"))) // the first one stays
		c.Address = address(2)                     // a retry whose prompt differs gets the record too
		a, state, err := k.l.Recall(k.ctx, c)
		k.must(err)
		if state != ledger.CallRecorded || fmt.Sprint(a) != fmt.Sprint(answer("yes")) {
			k.Errorf("state %d with answer %v", state, a)
		}
		k.wantCalls(1, 1, 0)
		k.fence = k.acquire(k.fence.Key, "w1", 0).Fence
		k.wantCall(k.call("e1", 1, false), ledger.CallRecorded, "yes") // after a crash
		k.wantCall(k.call("e2", 1, false), ledger.CallNew, "")         // of another event
		other := k.call("e1", 1, false)
		other.Name = "title"
		k.wantCall(other, ledger.CallNew, "")
		k.wantCalls(3, 2, 0)
	}},
	{"BegunCallIsInDoubt", func(k *kit) {
		c := k.call("e1", 1, false)
		k.wantCall(c, ledger.CallNew, "")
		k.fence = k.acquire(k.fence.Key, worker, 0).Fence // after a crash
		c = k.call("e1", 1, false)
		k.wantCall(c, ledger.CallInDoubt, "")
		k.must(k.l.Settle(k.ctx, c, answer("yes")))
		k.wantCall(c, ledger.CallRecorded, "yes")
		k.wantCalls(2, 1, 1)
	}},
	{"AbandonedCallIsNew", func(k *kit) {
		c := k.call("e1", 1, true)
		k.wantCall(c, ledger.CallNew, "")
		k.must(k.l.Abandon(k.ctx, c))
		k.wantCall(c, ledger.CallNew, "")
		k.must(k.l.Settle(k.ctx, c, answer("yes")))
		k.must(k.l.Abandon(k.ctx, c)) // too late: the answer stays
		k.wantCall(c, ledger.CallRecorded, "yes")
		k.wantCalls(2, 1, 0)
	}},
	{"ReusableAnswerAnswersItsAddress", func(k *kit) {
		a, b := k.call("e1", 1, true), k.call("e2", 1, true)
		k.wantCall(a, ledger.CallNew, "")
		k.must(k.l.Settle(k.ctx, a, answer("yes")))
		k.wantCall(b, ledger.CallReused, "yes")
		k.wantCall(b, ledger.CallRecorded, "yes")
		k.wantCall(k.call("e3", 2, true), ledger.CallNew, "")
		k.wantCall(k.call("e4", 1, false), ledger.CallNew, "") // doesn't want it
		k.wantCalls(3, 2, 0)
	}},
	{"AnswerThatIsNotReusableStaysItsOwn", func(k *kit) {
		a := k.call("e1", 1, false)
		k.wantCall(a, ledger.CallNew, "")
		k.must(k.l.Settle(k.ctx, a, answer("yes")))
		k.wantCall(k.call("e2", 1, true), ledger.CallNew, "")
	}},
	{"PendingAddressIsInDoubtForAnother", func(k *kit) {
		a, b := k.call("e1", 1, true), k.call("e2", 1, true)
		k.wantCall(a, ledger.CallNew, "")
		k.wantCall(b, ledger.CallInDoubt, "")
		k.must(k.l.Settle(k.ctx, b, answer("yes")))
		k.wantCall(a, ledger.CallReused, "yes")
		k.wantCalls(2, 1, 1)
	}},
	{"PendingAtAnotherWorkerIsLeftAlone", func(k *kit) {
		first := k.fence
		a, c := k.call("e1", 1, true), k.call("e3", 2, true)
		k.wantCall(a, ledger.CallNew, "")
		k.wantCall(c, ledger.CallNew, "")
		k.fence = k.acquire(key(1, 1), "w2", 0).Fence
		b, d := k.call("e2", 1, true), k.call("e4", 2, true)
		if _, _, err := k.l.Recall(k.ctx, b); !errors.Is(err, ledger.ErrElsewhere) || fault.ClassOf(err) != fault.Unavailable {
			k.Fatalf("a call that another worker has in the air: %v, want ErrElsewhere, unavailable", err)
		}
		k.wantCalls(2, 0, 0)
		b.Reuse = false // doesn't want its answer
		k.wantCall(b, ledger.CallNew, "")
		k.must(k.l.Abandon(k.ctx, b))
		b.Reuse = true
		k.must(k.l.Settle(k.ctx, a, answer("yes")))
		k.wantCall(b, ledger.CallReused, "yes")
		k.must(k.l.Release(k.ctx, first)) // the other call was never settled
		k.wantCall(d, ledger.CallInDoubt, "")
		k.wantCalls(4, 1, 1)
	}},
	{"PendingUnderAnOlderEpochGivesItsPlace", func(k *kit) {
		k.wantCall(k.call("e1", 1, true), ledger.CallNew, "")
		k.acquire(k.fence.Key, worker, 0) // after a crash
		k.fence = k.acquire(key(1, 1), "w2", 0).Fence
		k.wantCall(k.call("e2", 1, true), ledger.CallInDoubt, "")
	}},
	{"StaleOwnerIsFenced", func(k *kit) {
		c := k.call("e1", 1, false)
		k.wantCall(c, ledger.CallNew, "")
		k.acquire(k.fence.Key, worker, 0)
		_, _, err := k.l.Recall(k.ctx, c)
		for what, err := range map[string]error{
			"Recall": err, "Settle": k.l.Settle(k.ctx, c, answer("late")), "Abandon": k.l.Abandon(k.ctx, c),
		} {
			if !errors.Is(err, ledger.ErrFenced) {
				k.Errorf("%s of a stale owner: %v, want ErrFenced", what, err)
			}
		}
		k.wantCalls(1, 0, 0)
	}},
}

var pruneTests = []test{
	{"SeenGoesByItsLeasesLogTime", func(k *kit) {
		slow := k.acquire(key(1, 1), worker, 0).Fence
		old, recent, last, other := k.step(0), k.step(1), k.step(2), k.step(0)
		last.LogTime = logTime(0).Add(48 * time.Hour)
		recent.LogTime = last.LogTime.Add(-time.Hour)
		other.Fence = slow // its lease's log hasn't moved on, so it isn't old
		for _, r := range k.commit(old, recent, last, other) {
			k.want(r, ledger.Applied, nil)
		}
		n, err := k.l.Prune(k.ctx, 24*time.Hour, time.Hour)
		k.must(err)
		seen, err := k.l.Seen(k.ctx, group, []ledger.Identity{old.Event, recent.Event, last.Event, other.Event})
		k.must(err)
		if n != 1 || seen[0] != nil || seen[1] == nil || seen[2] == nil || seen[3] == nil {
			k.Errorf("%d rows went, leaving %v", n, seen)
		}
		if *seen[1] != recent.Event.Digest {
			k.Errorf("digest is %x, want %x", *seen[1], recent.Event.Digest)
		}
	}},
	{"RecordFromTheFutureDoesNotAgeTheOthers", func(k *kit) {
		now, future := k.step(0), k.step(1)
		now.LogTime, future.LogTime = time.Now(), time.Now().AddDate(50, 0, 0)
		k.commit(now, future)
		if n, err := k.l.Prune(k.ctx, time.Hour, time.Hour); n != 0 || err != nil {
			k.Errorf("%d rows went with error %v", n, err)
		}
	}},
	{"CallsOfWaitingEventsStay", func(k *kit) {
		settle := func(s *ledger.Step) ledger.Call {
			c := k.call(s.Event.ID, 1, false)
			k.wantCall(c, ledger.CallNew, "")
			k.must(k.l.Settle(k.ctx, c, answer("yes")))
			return c
		}
		dead, behind, applied := k.dies(0, "doc"), k.waits(1, "doc", "parked: behind offset 0"), k.step(2)
		a, b, c := settle(dead), settle(behind), settle(applied)
		for _, r := range k.commit(applied) {
			k.want(r, ledger.Applied, nil)
		}
		k.want(k.commit(dead)[0], ledger.Dead, nil)
		k.want(k.commit(behind)[0], ledger.Waiting, nil)
		k.until("the youngest of the records to be old", func() bool {
			_, err := k.l.Prune(k.ctx, time.Hour, time.Millisecond)
			k.must(err)
			_, state, err := k.l.Recall(k.ctx, c)
			k.must(err)
			return state != ledger.CallRecorded
		})
		k.wantCall(a, ledger.CallRecorded, "yes") // their redrive must not pay again
		k.wantCall(b, ledger.CallRecorded, "yes")
		k.want(k.commit(k.redrive(dead, ledger.Applied))[0], ledger.Applied, nil)
		k.until("the record of an event that left the backlog to go", func() bool {
			n, err := k.l.Prune(k.ctx, time.Hour, time.Millisecond)
			k.must(err)
			return n > 0
		})
		k.wantCall(a, ledger.CallNew, "")
	}},
	{"CallsGoByAge", func(k *kit) {
		settled, pending := k.call("e1", 1, false), k.call("e2", 2, false)
		k.wantCall(settled, ledger.CallNew, "")
		k.wantCall(pending, ledger.CallNew, "")
		k.must(k.l.Settle(k.ctx, settled, answer("yes")))
		if n, err := k.l.Prune(k.ctx, time.Hour, time.Hour); n != 0 || err != nil {
			k.Errorf("%d rows went with error %v", n, err)
		}
		k.until("the record to be old", func() bool {
			n, err := k.l.Prune(k.ctx, time.Hour, time.Millisecond)
			k.must(err)
			return n > 0
		})
		k.wantCall(settled, ledger.CallNew, "")
		k.wantCall(pending, ledger.CallInDoubt, "") // what is in doubt isn't forgotten
	}},
}
