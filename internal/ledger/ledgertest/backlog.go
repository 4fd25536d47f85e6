package ledgertest

import (
	"fmt"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// waits is a step that puts its record into the backlog.
func (k *kit) waits(offset int64, subject, reason string) *ledger.Step {
	s := k.step(offset)
	s.Event.Subject = subject
	s.Outcome, s.Effects = ledger.Waiting, nil
	s.Wait = &ledger.Wait{Subject: subject, Reason: reason, Offset: offset, Message: message(fmt.Sprint(offset))}
	return s
}

// dies is a step whose record dies at the head of its parked aggregate.
func (k *kit) dies(offset int64, subject string) *ledger.Step {
	s := k.waits(offset, subject, fmt.Sprintf("parked: offset %d died", offset))
	s.Outcome, s.Wait.Dead = ledger.Dead, true
	s.Emits = []ledger.Outgoing{{Topic: "dead", Message: message(fmt.Sprint(offset))}}
	return s
}

// redrive is the step of a backlog row, with an outcome.
func (k *kit) redrive(s *ledger.Step, o ledger.Outcome) *ledger.Step {
	c := again(s)
	c.Outcome, c.Emits, c.Wait, c.Effects = o, nil, nil, nil
	if o == ledger.Applied {
		c.Effects = []effect{insert(c.Event.ID)}
	}
	return c
}

func (k *kit) wantBacklog(subject string, offsets ...int64) []ledger.Wait {
	k.Helper()
	waits, err := k.l.Backlog(k.ctx, k.fence, subject, 100)
	k.must(err)
	var got []int64
	for _, w := range waits {
		got = append(got, w.Offset)
	}
	if fmt.Sprint(got) != fmt.Sprint(offsets) {
		k.Errorf("backlog of %s holds offsets %v, want %v", subject, got, offsets)
	}
	return waits
}

func (k *kit) wantCounters(c ledger.Counters) {
	k.Helper()
	if l := k.lease(k.fence.Key); l.Counters != c {
		k.Errorf("counters are %+v, want %+v", l.Counters, c)
	}
}

var backlogTests = []test{
	{"ParkAndRedrive", func(k *kit) {
		dead, b, c := k.dies(0, "doc"), k.waits(1, "doc", "parked: behind offset 0"), k.waits(2, "doc", "parked: behind offset 0")
		other := k.waits(3, "other", "budget")
		for _, s := range []*ledger.Step{dead, b, c, other} {
			k.want(k.commit(s)[0], s.Outcome, nil)
		}
		k.wantProgress(4, 4)
		k.wantCounters(ledger.Counters{Dead: 1, Waiting: 3})
		waits := k.wantBacklog("doc", 0, 1, 2)
		if !waits[0].Dead || waits[1].Dead || waits[0].Subject != "doc" || waits[0].Reason != dead.Wait.Reason || string(waits[0].Message.Value) != "0" {
			k.Errorf("backlog is %+v", waits)
		}
		parked, err := k.l.Parked(k.ctx, k.fence)
		k.must(err)
		if len(parked) != 2 || parked["doc"] != dead.Wait.Reason || parked["other"] != "budget" {
			k.Errorf("parked: %v", parked)
		}
		totals, err := k.l.Totals(k.ctx)
		k.must(err)
		if totals.Waiting != 4 {
			k.Errorf("totals have %d waiting, want 4", totals.Waiting)
		}
		first := k.redrive(dead, ledger.Applied)
		k.want(k.commit(first)[0], ledger.Applied, nil)
		k.wantCounters(ledger.Counters{Applied: 1, Waiting: 3})
		k.want(k.commit(first)[0], ledger.Duplicate, nil) // its row is gone: nothing is done or counted again
		k.want(k.commit(k.redrive(b, ledger.Skipped), k.redrive(other, ledger.Ignored))[0], ledger.Skipped, nil)
		k.want(k.commit(k.redrive(c, ledger.Refused))[0], ledger.Refused, nil)
		k.wantCounters(ledger.Counters{Applied: 1, Skipped: 1, Ignored: 1, Refused: 1})
		k.wantEffects(dead)
		k.wantBacklog("doc")
		k.wantProgress(4, 4)
	}},
	{"RedrivenRecordDiesAgain", func(k *kit) {
		dead := k.dies(0, "doc")
		k.commit(dead)
		k.want(k.commit(again(dead))[0], ledger.Dead, nil)
		k.wantCounters(ledger.Counters{Dead: 1})
		if w := k.wantBacklog("doc", 0); !w[0].Dead {
			k.Error("the head isn't dead any more")
		}
		k.want(k.commit(k.redrive(dead, ledger.Dead))[0], ledger.Dead, nil) // and is given up
		k.wantCounters(ledger.Counters{Dead: 1})
		k.wantBacklog("doc")
	}},
	{"WaitingRecordDies", func(k *kit) {
		w := k.waits(0, "doc", "budget")
		k.commit(w)
		d := k.dies(0, "doc")
		d.FromBacklog, d.Event = true, w.Event
		k.want(k.commit(d)[0], ledger.Dead, nil)
		k.wantCounters(ledger.Counters{Dead: 1})
		if got := k.wantBacklog("doc", 0); !got[0].Dead || got[0].Reason != d.Wait.Reason {
			k.Errorf("backlog is %+v", got)
		}
	}},
	{"RedriveThatFailsLeavesItsRow", func(k *kit) {
		w := k.waits(0, "doc", "budget")
		k.commit(w)
		bad := k.redrive(w, ledger.Applied)
		bad.Effects = append(bad.Effects, fails(fault.Permanentf("broken")))
		k.wantClass(k.commit(bad)[0].Err, fault.Permanent)
		k.wantBacklog("doc", 0)
		k.wantCounters(ledger.Counters{Waiting: 1})
		k.wantEffects()
	}},
	{"CopyInTheBacklogIsADuplicate", func(k *kit) {
		w := k.waits(0, "doc", "budget")
		k.commit(w)
		s := k.step(1)
		s.Event, s.Effects = w.Event, []effect{insert(w.Event.ID)}
		k.want(k.commit(s)[0], ledger.Applied, nil)
		k.want(k.commit(k.redrive(w, ledger.Applied))[0], ledger.Duplicate, nil)
		k.wantCounters(ledger.Counters{Applied: 1, Duplicate: 1})
		k.wantEffects(s)
	}},
	{"OrderIsBySequence", func(k *kit) {
		for offset, sequence := range []int64{5, 3, 4} {
			k.want(k.commit(k.inHistory(int64(offset), "doc", sequence))[0], ledger.Waiting, nil)
		}
		waits := k.wantBacklog("doc", 1, 2, 0)
		if waits[0].Sequence != 3 {
			k.Errorf("backlog is %+v", waits)
		}
		k.commit(k.inHistory(3, "doc", 1))
		k.commit(k.inHistory(4, "doc", 2))
		for _, w := range waits {
			s := k.inHistory(w.Offset, "doc", w.Sequence)
			s.FromBacklog = true
			k.want(k.commit(s)[0], ledger.Applied, nil)
		}
		k.wantCounters(ledger.Counters{Applied: 5})
	}},
	{"LimitIsKept", func(k *kit) {
		for i := range int64(5) {
			k.commit(k.waits(i, "doc", "budget"))
		}
		waits, err := k.l.Backlog(k.ctx, k.fence, "doc", 2)
		k.must(err)
		if len(waits) != 2 || waits[1].Offset != 1 {
			k.Errorf("backlog is %+v", waits)
		}
	}},
	{"UnknownCommitOfARedrive", func(k *kit) { // T3
		w := k.waits(0, "doc", "budget")
		k.commit(w)
		b := &ledger.Batch{Steps: []*ledger.Step{k.redrive(w, ledger.Applied)}}
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
		k.wantEffects(w)
		k.wantCounters(ledger.Counters{Applied: 1})
	}},
}
