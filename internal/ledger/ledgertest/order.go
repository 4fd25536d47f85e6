package ledgertest

import (
	"bytes"
	"fmt"
	"reflect"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// inHistory is a step for an event with a place in a history.
func (k *kit) inHistory(offset int64, subject string, sequence int64) *ledger.Step {
	s := k.step(offset)
	s.Event.Subject, s.Event.Sequence = subject, sequence
	s.Wait = &ledger.Wait{Subject: subject, Offset: offset, Message: message(s.Event.ID), Sequence: sequence}
	return s
}

// again is the step of a record that comes from the backlog.
func again(s *ledger.Step) *ledger.Step {
	c := *s
	c.FromBacklog = true
	return &c
}

var orderTests = []test{
	{"HistoryAbsorbsCopies", func(k *kit) {
		a, b, copyOfA := k.inHistory(0, "doc", 1), k.inHistory(1, "doc", 2), k.inHistory(2, "doc", 1)
		for _, s := range []*ledger.Step{a, b} {
			k.want(k.commit(s)[0], ledger.Applied, nil)
		}
		k.want(k.commit(copyOfA)[0], ledger.Duplicate, nil)
		k.want(k.commit(k.inHistory(3, "doc", 2))[0], ledger.Duplicate, nil)
		k.wantEffects(a, b)
		k.wantProgress(4, 4)
		seen, err := k.l.Seen(k.ctx, group, []ledger.Identity{a.Event, {Source: a.Event.Source, ID: a.Event.ID}})
		k.must(err)
		if seen[0] != nil || seen[1] != nil {
			k.Error("an event with a sequence was kept in seen")
		}
	}},
	{"GapWaitsInTheBacklog", func(k *kit) {
		one, two, three := k.inHistory(0, "doc", 1), k.inHistory(2, "doc", 2), k.inHistory(1, "doc", 3)
		three.Emits = []ledger.Outgoing{{Topic: "out", Message: message("3")}}
		k.commit(one)
		r := k.commit(three)[0]
		k.want(r, ledger.Waiting, nil)
		k.wantEffects(one)
		l := k.wantProgress(2, 2)
		if l.Counters.Waiting != 1 || l.Seq != 0 {
			k.Errorf("counters %+v, outbox number %d", l.Counters, l.Seq)
		}
		k.want(k.commit(again(three))[0], ledger.Waiting, nil) // still
		parked, err := k.l.Parked(k.ctx, k.fence)
		k.must(err)
		if len(parked) != 1 || len(parked["doc"]) < len(ledger.GapReason) || parked["doc"][:len(ledger.GapReason)] != ledger.GapReason {
			k.Errorf("parked: %v", parked)
		}
		k.want(k.commit(two)[0], ledger.Applied, nil)
		r = k.commit(again(three))[0]
		k.want(r, ledger.Applied, nil)
		if r.FirstSeq != 1 {
			k.Errorf("outbox number is %d, want 1", r.FirstSeq)
		}
		k.wantEffects(one, two, three)
		if l := k.wantProgress(3, 3); l.Counters.Applied != 3 {
			k.Errorf("counters %+v", l.Counters)
		}
	}},
	{"FirstEventMayBeMissing", func(k *kit) {
		k.want(k.commit(k.inHistory(0, "doc", 2))[0], ledger.Waiting, nil)
		k.want(k.commit(k.inHistory(1, "doc", 1))[0], ledger.Applied, nil)
	}},
	{"EachSourceHasItsOwnHistory", func(k *kit) {
		a, b := k.inHistory(0, "doc", 1), k.inHistory(1, "doc", 1)
		b.Event.Source = "another"
		c := k.inHistory(2, "other", 1)
		for _, s := range []*ledger.Step{a, b, c} {
			k.want(k.commit(s)[0], ledger.Applied, nil)
		}
	}},
	{"WhateverSettlesTakesItsPlace", func(k *kit) {
		for i, o := range []ledger.Outcome{ledger.Ignored, ledger.Skipped, ledger.Refused, ledger.Dead} {
			s := k.inHistory(int64(i), "doc", int64(i+1))
			s.Outcome, s.Effects = o, nil
			k.want(k.commit(s)[0], o, nil)
		}
		k.want(k.commit(k.inHistory(4, "doc", 5))[0], ledger.Applied, nil)
		k.want(k.commit(k.inHistory(5, "doc", 2))[0], ledger.Duplicate, nil)
	}},
	{"FailingStepDoesNotTakeItsPlace", func(k *kit) {
		s := k.inHistory(0, "doc", 1)
		s.Effects = append(s.Effects, fails(fault.Permanentf("broken")))
		k.wantClass(k.commit(s)[0].Err, fault.Permanent)
		s.Effects = s.Effects[:1]
		k.want(k.commit(s)[0], ledger.Applied, nil)
	}},
	{"GapWithoutARowIsRefused", func(k *kit) {
		s := k.inHistory(0, "doc", 5)
		s.Wait = nil
		k.wantClass(k.commit(s)[0].Err, fault.Fatal)
		k.wantProgress(0, 0)
	}},
	{"OutboxIsInOrderWithoutGaps", func(k *kit) { // T2
		bad := k.step(1)
		bad.Effects = append(bad.Effects, fails(fault.Permanentf("broken")))
		bad.Emits = []ledger.Outgoing{{Topic: "out", Message: message("never")}}
		a, b := k.step(0), k.step(2)
		a.Emits = []ledger.Outgoing{{Topic: "out", Partition: -1, Message: message("1")}, {Topic: "two", Partition: 3, Message: message("2")}}
		b.Emits = []ledger.Outgoing{{Topic: "out", Message: message("3")}}
		results := k.commit(a, bad, b)
		if results[0].FirstSeq != 1 || results[2].FirstSeq != 3 {
			k.Errorf("outbox numbers are %d and %d, want 1 and 3", results[0].FirstSeq, results[2].FirstSeq)
		}
		k.wantOutbox(0, 10, "1", "2", "3")
		k.wantOutbox(0, 2, "1", "2")
		k.wantOutbox(2, 10, "3")
		rows, err := k.l.Outbox(k.ctx, k.fence, 0, 10)
		k.must(err)
		if rows[1].Topic != "two" || rows[1].Partition != 3 || rows[0].Partition != -1 {
			k.Errorf("rows are %+v", rows)
		}
		_, err = k.l.Commit(k.ctx, &ledger.Batch{Published: []ledger.Published{{Fence: k.fence, From: 2, To: 2}}})
		k.must(err)
		k.wantOutbox(0, 10, "1", "3") // row 1 isn't skipped since a later one is gone
		c := k.step(3)
		c.Emits = []ledger.Outgoing{{Topic: "out", Message: message("4")}}
		r, err := k.l.Commit(k.ctx, &ledger.Batch{Steps: []*ledger.Step{c}, Published: []ledger.Published{{Fence: k.fence, From: 1, To: 3}}})
		k.must(err)
		if r[0].FirstSeq != 4 {
			k.Errorf("outbox number is %d, want 4", r[0].FirstSeq)
		}
		k.fence = k.acquire(k.fence.Key, worker, 0).Fence
		k.wantOutbox(0, 10, "4")
		totals, err := k.l.Totals(k.ctx)
		k.must(err)
		if totals.Outbox != 1 {
			k.Errorf("totals have %d outbox rows, want 1", totals.Outbox)
		}
	}},
	{"MessagesStayAsTheyAre", func(k *kit) { // P1, P7
		messages := []event.Message{
			{},
			{Key: []byte{}, Value: []byte{}},
			{Key: nil, Value: []byte("null"), Time: logTime(5)},
			{Key: []byte("k\x00\xff"), Value: []byte("{\"a\":\"\xff\xfe\"}"), Headers: []event.Header{{Key: "a"}, {Key: "", Value: []byte{}}, {Key: "a", Value: []byte("\xff")}}},
			{Value: bytes.Repeat([]byte("x"), 1<<20)},
		}
		s := k.step(0)
		for _, m := range messages {
			s.Emits = append(s.Emits, ledger.Outgoing{Topic: "out", Message: m})
		}
		k.want(k.commit(s)[0], ledger.Applied, nil)
		rows, err := k.l.Outbox(k.ctx, k.fence, 0, 10)
		k.must(err)
		for i, r := range rows {
			w := k.step(int64(i + 1))
			w.Outcome, w.Effects, w.Wait = ledger.Waiting, nil, &ledger.Wait{Subject: "s", Message: r.Message, Reason: "parked"}
			k.want(k.commit(w)[0], ledger.Waiting, nil)
		}
		waits, err := k.l.Backlog(k.ctx, k.fence, "s", 10)
		k.must(err)
		if len(rows) != len(messages) || len(waits) != len(messages) {
			k.Fatalf("%d rows and %d waits, want %d", len(rows), len(waits), len(messages))
		}
		for i, m := range messages {
			for from, got := range map[string]event.Message{"outbox": rows[i].Message, "backlog": waits[i].Message} {
				if !reflect.DeepEqual(got, m) {
					k.Errorf("%s: message %d was %.80v and is %.80v", from, i, m, got)
				}
			}
		}
	}},
}

func (k *kit) wantOutbox(after int64, limit int, values ...string) {
	k.Helper()
	rows, err := k.l.Outbox(k.ctx, k.fence, after, limit)
	k.must(err)
	var got []string
	for i, r := range rows {
		got = append(got, string(r.Message.Value))
		if i > 0 && r.Seq <= rows[i-1].Seq {
			k.Errorf("row %d follows row %d", r.Seq, rows[i-1].Seq)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(values) {
		k.Errorf("outbox after %d holds %v, want %v", after, got, values)
	}
}
