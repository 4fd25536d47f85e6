package ledgertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

func (k *kit) claim(key ledger.Key, owner string, generation int64) ledger.Lease {
	k.Helper()
	l, err := k.l.Claim(k.ctx, key, topic, owner, 7, ttl, generation)
	k.must(err)
	return l
}

func (k *kit) refusesClaim(key ledger.Key, owner string, generation int64, want error) {
	k.Helper()
	if l, err := k.l.Claim(k.ctx, key, topic, owner, 7, ttl, generation); !errors.Is(err, want) {
		k.Errorf("%s claims in generation %d: %+v and %v, want %v", owner, generation, l, err, want)
	}
}

var claimTests = []test{
	{"AHigherGenerationTakesItWhoeverHoldsIt", func(k *kit) {
		at := key(1, 1)
		l := k.claim(at, "m1", 4)
		if l.Generation != 4 || l.Next != 7 || l.Owner != "m1" || !l.Held || l.Epoch != 1 {
			k.Fatalf("claimed lease is %+v", l)
		}
		k.refusesClaim(at, "m2", 3, ledger.ErrHeld)
		next := k.claim(at, "m2", 5)
		if next.Generation != 5 || next.Epoch <= l.Epoch || next.Owner != "m2" {
			k.Errorf("claimed lease is %+v", next)
		}
		if got := k.lease(at); got.Generation != 5 {
			k.Errorf("a list tells generation %d", got.Generation)
		}
		stale, fresh := k.step(7), k.step(7)
		stale.Fence, fresh.Fence = l.Fence, next.Fence
		results := k.commit(stale, fresh)
		k.want(results[0], 0, ledger.ErrFenced)
		k.want(results[1], ledger.Applied, nil)
		k.refusesClaim(at, "m1", 4, ledger.ErrHeld)
		if again := k.claim(at, "m1", 5); again.Owner != "m1" || again.Next != 8 { // the coordinator knows
			k.Errorf("claimed lease is %+v", again)
		}
	}},
	{"AFreeLeaseTakesAnyGeneration", func(k *kit) { // a group that was made anew counts from 1
		l := k.claim(key(1, 1), "m1", 9)
		k.must(k.l.Release(k.ctx, l.Fence))
		if l = k.claim(key(1, 1), "m2", 1); l.Generation != 1 {
			k.Errorf("claimed lease is %+v", l)
		}
		k.claim(key(1, 1), "m1", 9)
	}},
	{"MixedMembershipIsRefused", func(k *kit) {
		k.refusesClaim(k.fence.Key, "m1", 1, ledger.ErrMode)
		k.refusesClaim(k.fence.Key, worker, 1, ledger.ErrMode)
		l := k.claim(key(1, 1), "m1", 1)
		for _, owner := range []string{worker, "m1"} {
			if _, err := k.l.Acquire(k.ctx, l.Key, topic, owner, 0, ttl); !errors.Is(err, ledger.ErrMode) {
				k.Errorf("%s acquires a claimed lease: %v, want ErrMode", owner, err)
			}
		}
		k.must(k.l.Release(k.ctx, k.fence, l.Fence)) // from here on the other way round
		if l := k.claim(k.fence.Key, "m1", 1); l.Generation != 1 {
			k.Errorf("claimed lease is %+v", l)
		}
		if l := k.acquire(key(1, 1), worker, 0); l.Generation != 0 {
			k.Errorf("acquired lease is %+v", l)
		}
	}},
	{"GenerationsAreFromOne", func(k *kit) {
		if _, err := k.l.Claim(k.ctx, key(1, 1), topic, "m1", 0, ttl, 0); fault.ClassOf(err) != fault.Fatal {
			k.Errorf("claim in generation 0: %v, want a fatal error", err)
		}
	}},
	{"CarriedStepsOutliveAClaim", func(k *kit) {
		k.fence = k.claim(key(1, 1), "m1", 1).Fence
		old := k.pass("", 7)
		l := k.claim(old.Key, "m2", 2)
		k.fence = l.Fence
		k.wantCarried(l, 7)
		k.want(k.commit(k.carriedStep(old, 7))[0], ledger.Applied, nil)
		k.wantProgress(8, 1)
	}},
	{"WhatWasPassedToAnotherIsClaimed", func(k *kit) { // the coordinator's word is the last one
		k.fence = k.claim(key(1, 1), "m1", 1).Fence
		old := k.pass("m3")
		if l := k.claim(old.Key, "m2", 2); l.Owner != "m2" {
			k.Errorf("claimed lease is %+v", l)
		}
	}},
}

var planTests = []test{
	{"PlanIsReplaced", func(k *kit) {
		if p, err := k.l.Plan(k.ctx); len(p) != 0 || err != nil {
			k.Errorf("a new ledger has the plan %v, %v", p, err)
		}
		other := ledger.Key{Group: "a", TopicID: [16]byte{3}, Partition: 9}
		first := []ledger.Want{{Key: key(2, 1), Worker: "w1"}, {Key: key(1, 2), Worker: "w2"}, {Key: other, Worker: "w1"}}
		k.must(k.l.SetPlan(k.ctx, k.fence, first))
		k.wantPlan(first[2], first[1], first[0])
		second := ledger.Want{Key: key(1, 2), Worker: "w3"}
		k.must(k.l.SetPlan(k.ctx, k.fence, []ledger.Want{second}))
		k.wantPlan(second)
		k.must(k.l.SetPlan(k.ctx, k.fence, nil))
		k.wantPlan()
	}},
	{"StalePlannerIsFenced", func(k *kit) {
		old := k.fence
		k.fence = k.acquire(old.Key, worker, 0).Fence
		want := ledger.Want{Key: key(1, 2), Worker: "w1"}
		k.must(k.l.SetPlan(k.ctx, k.fence, []ledger.Want{want}))
		if err := k.l.SetPlan(k.ctx, old, nil); !errors.Is(err, ledger.ErrFenced) {
			k.Errorf("plan of a stale planner: %v, want ErrFenced", err)
		}
		k.wantPlan(want)
	}},
	{"WorkersTellTheirSize", func(k *kit) {
		for _, w := range []ledger.Worker{{ID: "w1", Steps: 64, Memory: 8 << 30}, {ID: "w1", Steps: 32, Memory: 4 << 30}} {
			_, err := k.l.Beat(k.ctx, w, ttl)
			k.must(err)
			got, err := k.l.Workers(k.ctx, time.Hour)
			k.must(err)
			if len(got) != 1 || got[0].Steps != w.Steps || got[0].Memory != w.Memory {
				k.Errorf("workers are %+v, want %+v", got, w)
			}
		}
	}},
}

func (k *kit) wantPlan(wants ...ledger.Want) {
	k.Helper()
	got, err := k.l.Plan(k.ctx)
	k.must(err)
	if fmt.Sprint(got) != fmt.Sprint(wants) {
		k.Errorf("plan is %v, want %v", got, wants)
	}
}

var controlTests = []test{
	{"PausesAndLetsGoOn", func(k *kit) {
		if c, err := k.l.Controls(k.ctx); len(c) != 0 || err != nil {
			k.Errorf("a new ledger has the controls %v, %v", c, err)
		}
		k.must(k.l.SetControl(k.ctx, ledger.Control{Group: "writer", Paused: true, Reason: "it spends too much"}))
		k.must(k.l.SetControl(k.ctx, ledger.Control{Group: "reader", Paused: true}))
		first := k.controls()
		if len(first) != 2 || first[0].Group != "reader" || first[1].Reason != "it spends too much" || !first[1].Paused ||
			time.Since(first[1].At).Abs() > time.Minute {
			k.Fatalf("controls are %+v", first)
		}
		k.until("the clock to move on", func() bool {
			k.must(k.l.SetControl(k.ctx, ledger.Control{Group: "writer", Paused: true, Reason: "it still does"}))
			k.must(k.l.SetControl(k.ctx, ledger.Control{Group: "reader"}))
			return k.controls()[0].At.After(first[0].At)
		})
		now := k.controls()
		if now[0].Paused || now[1].Reason != "it still does" || !now[1].Paused || !now[1].At.Equal(first[1].At) {
			k.Errorf("controls are %+v after %+v", now, first)
		}
	}},
}

func (k *kit) controls() []ledger.Control {
	k.Helper()
	c, err := k.l.Controls(k.ctx)
	k.must(err)
	return c
}

var routeTests = []test{
	{"TheFirstCountStays", func(k *kit) {
		for _, partitions := range []int32{12, 24, 6} {
			n, err := k.l.Route(k.ctx, [16]byte{1}, topic, partitions)
			k.must(err)
			if n != 12 {
				k.Errorf("keys of a topic that has %d partitions now have %d slots, want 12", partitions, n)
			}
		}
		n, err := k.l.Route(k.ctx, [16]byte{2}, topic, 24) // a topic made anew
		k.must(err)
		if n != 24 {
			k.Errorf("keys of a new topic have %d slots, want 24", n)
		}
		if _, err := k.l.Route(k.ctx, [16]byte{3}, topic, 0); fault.ClassOf(err) != fault.Fatal {
			k.Errorf("route of a topic without partitions: %v, want a fatal error", err)
		}
	}},
	{"MisroutedRecordsAreCounted", func(k *kit) {
		s := k.step(0)
		s.Outcome, s.Effects = ledger.Misrouted, nil
		s.Emits = []ledger.Outgoing{{Topic: topic, Partition: 2, Message: message("0")}}
		r := k.commit(s)[0]
		k.want(r, ledger.Misrouted, nil)
		if r.FirstSeq != 1 {
			k.Errorf("outbox number is %d, want 1", r.FirstSeq)
		}
		k.wantCounters(ledger.Counters{Misrouted: 1})
		k.wantProgress(1, 1)
		seen, err := k.l.Seen(k.ctx, group, []ledger.Identity{s.Event})
		k.must(err)
		if seen[0] != nil {
			k.Error("a misrouted event is taken for applied, and won't be where it's forwarded to")
		}
		there := k.acquire(key(1, 2), worker, 0)
		f := k.step(0)
		f.Fence, f.Event = there.Fence, s.Event
		k.want(k.commit(f)[0], ledger.Applied, nil)
		if totals, err := k.l.Totals(k.ctx); err != nil || totals.Leases[0].Counters.Misrouted != 1 {
			k.Errorf("totals are %+v, %v", totals, err)
		}
	}},
	{"MisroutedRecordsTakeNoPlaceInTheirHistory", func(k *kit) {
		k.want(k.commit(k.inHistory(0, "doc", 1))[0], ledger.Applied, nil)
		for offset, sequence := range []int64{2, 7, 1} { // the next one, one behind a gap, a copy
			s := k.inHistory(int64(offset+1), "doc", sequence)
			s.Outcome, s.Effects = ledger.Misrouted, nil
			k.want(k.commit(s)[0], ledger.Misrouted, nil)
		}
		there := k.acquire(key(1, 2), worker, 0)
		f := k.inHistory(0, "doc", 2)
		f.Fence = there.Fence
		k.want(k.commit(f)[0], ledger.Applied, nil)
	}},
}
