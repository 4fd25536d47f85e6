package ledgertest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/ledger"
)

// randomRedrives lets records of two aggregates die, wait, be redriven, discarded, put back and dismissed, with and
// without histories. What was decided, what is handled next and the counters are as the model says at each step, and
// no record is applied twice.
func randomRedrives(k *kit) {
	rapid.Check(k.T, func(t *rapid.T) {
		r := newRedriveMachine(k, t)
		t.Repeat(map[string]func(*rapid.T){
			"deliver":  func(t *rapid.T) { r.m.t = t; r.deliver(r.subject()) },
			"delivers": func(t *rapid.T) { r.m.t = t; r.deliver(r.subject()) },
			"redrive":  func(t *rapid.T) { r.m.t = t; r.redrive(r.subject()) },
			"discard":  func(t *rapid.T) { r.m.t = t; r.discard(r.subject()) },
			"requeue":  func(t *rapid.T) { r.m.t = t; r.requeue() },
			"dismiss":  func(t *rapid.T) { r.m.t = t; r.dismiss() },
			"handle":   func(t *rapid.T) { r.m.t = t; r.handle(r.subject()) },
			"handles":  func(t *rapid.T) { r.m.t = t; r.handle(r.subject()) },
			"":         func(t *rapid.T) { r.m.t = t; r.m.sometimes(r.compare) },
		})
		r.m.t = t
		r.compare()
	})
}

// redriveRow is a backlog row as the model has it.
type redriveRow struct {
	offset, sequence      int64
	dead, released, alone bool
	reason                string
}

type redriveMachine struct {
	m        *machine // for its ways to commit
	k        *kit
	fence    ledger.Fence
	history  bool // events have a place in a history
	records  []ledger.Identity
	last     map[string]int64 // sequence given out
	rows     map[string][]*redriveRow
	dead     map[int64]bool
	applied  map[string]bool
	counters ledger.Counters
}

func newRedriveMachine(k *kit, t *rapid.T) *redriveMachine {
	k.setup("DELETE FROM effect")
	r := &redriveMachine{k: k, m: &machine{k: k, t: t, unknown: 20, name: fmt.Sprintf("redrive-%d", k.ids.Add(1))}, history: rapid.Bool().Draw(t, "history"),
		last: map[string]int64{}, rows: map[string][]*redriveRow{}, dead: map[int64]bool{}, applied: map[string]bool{}}
	l, err := k.l.Acquire(k.ctx, ledger.Key{Group: r.m.name, TopicID: [16]byte{1}}, topic, worker, 0, ttl)
	if err != nil {
		t.Fatal(err)
	}
	r.fence = l.Fence
	return r
}

func (r *redriveMachine) subject() string {
	return rapid.SampledFrom([]string{"a", "b"}).Draw(r.m.t, "subject")
}

// deliver commits the next record: behind what is parked, or as it happens to end.
func (r *redriveMachine) deliver(subject string) {
	offset := int64(len(r.records))
	e := ledger.Identity{Source: "test", ID: fmt.Sprintf("%s-%d", r.m.name, offset), Subject: subject, Digest: digest("x")}
	if r.history {
		r.last[subject]++
		e.Sequence = r.last[subject]
	}
	r.records = append(r.records, e)
	held := slices.ContainsFunc(r.rows[subject], func(row *redriveRow) bool { return !row.alone || !row.released })
	row := &redriveRow{offset: offset, sequence: e.Sequence}
	if held {
		row.reason = ledger.ParkedReason + " another"
		r.commit(row, ledger.Waiting, false)
		return
	}
	r.end(row, false)
}

// end commits a record with an outcome that is drawn.
func (r *redriveMachine) end(row *redriveRow, fromBacklog bool) {
	o := rapid.SampledFrom([]ledger.Outcome{ledger.Applied, ledger.Applied, ledger.Refused, ledger.Dead, ledger.Dead, ledger.Dead, ledger.Waiting}).Draw(r.m.t, "outcome")
	row.reason = "budget"
	row.dead = o == ledger.Dead && !r.m.chance("skips", 3)
	if row.dead {
		row.reason = ledger.ParkedReason + " itself"
	}
	row.released = false
	r.commit(row, o, fromBacklog)
}

// commit commits a record, and leaves its row in the model where it stays.
func (r *redriveMachine) commit(row *redriveRow, o ledger.Outcome, fromBacklog bool) {
	e := r.records[row.offset]
	s := &ledger.Step{Fence: r.fence, From: row.offset, Offset: row.offset, LogTime: logTime(row.offset), Event: e, Outcome: o, FromBacklog: fromBacklog}
	stays := o == ledger.Waiting || row.dead
	if stays || e.Sequence > 0 {
		s.Wait = &ledger.Wait{Subject: e.Subject, Reason: row.reason, Offset: row.offset, Message: message("x"), Sequence: e.Sequence, Dead: row.dead}
	}
	if o == ledger.Applied {
		s.Effects = []effect{insert(e.ID)}
		r.applied[e.ID] = true
	}
	if got := r.m.commit(&ledger.Batch{Steps: []*ledger.Step{s}})[0]; got.Err != nil || got.Outcome != o {
		r.m.t.Fatalf("step %+v: %+v, want %v", s, got, o)
	}
	*r.counters.Of(o)++
	switch {
	case o == ledger.Dead:
		r.dead[row.offset] = true
	case o != ledger.Waiting:
		delete(r.dead, row.offset)
	}
	if stays {
		r.put(e.Subject, row)
	}
}

func (r *redriveMachine) put(subject string, row *redriveRow) {
	r.rows[subject] = append(r.rows[subject], row)
	slices.SortFunc(r.rows[subject], func(a, b *redriveRow) int {
		return cmp.Or(cmp.Compare(a.sequence, b.sequence), cmp.Compare(a.offset, b.offset))
	})
}

func (r *redriveMachine) take(subject string, row *redriveRow) {
	r.rows[subject] = slices.DeleteFunc(r.rows[subject], func(other *redriveRow) bool { return other == row })
}

// handle does what an owner does: the first row, unless it's dead and not released, or else one that is released.
func (r *redriveMachine) handle(subject string) {
	rows := r.rows[subject]
	if len(rows) == 0 {
		return
	}
	row := rows[0]
	if row.dead && !row.released {
		i := slices.IndexFunc(rows, func(row *redriveRow) bool { return row.released })
		if i < 0 {
			return
		}
		row = rows[i]
	}
	before := ledger.Waiting
	if row.dead {
		before = ledger.Dead
	}
	r.take(subject, row)
	*r.counters.Of(before)--
	r.end(row, true)
}

// head is the row that an aggregate is parked behind, or nil.
func (r *redriveMachine) head(subject string) *redriveRow {
	i := slices.IndexFunc(r.rows[subject], func(row *redriveRow) bool { return row.dead && !row.released })
	if i < 0 {
		return nil
	}
	return r.rows[subject][i]
}

func (r *redriveMachine) decided(what string, done bool, err error, want bool) {
	if err != nil || done != want {
		r.m.t.Fatalf("%s: %v and %v, want %v", what, done, err, want)
	}
}

func (r *redriveMachine) redrive(subject string) {
	h := r.head(subject)
	done, err := r.k.l.Redrive(r.k.ctx, r.fence.Key, subject, -1)
	r.decided("redrive", done, err, h != nil)
	if h != nil {
		h.released = true
	}
}

func (r *redriveMachine) discard(subject string) {
	h := r.head(subject)
	done, err := r.k.l.Discard(r.k.ctx, r.fence.Key, subject, -1)
	r.decided("discard", done, err, h != nil)
	if h != nil {
		r.take(subject, h)
		delete(r.dead, h.offset)
	}
}

// inBacklog tells whether a record has a row.
func (r *redriveMachine) inBacklog(offset int64) bool {
	return slices.ContainsFunc(slices.Concat(slices.Collect(maps.Values(r.rows))...), func(row *redriveRow) bool { return row.offset == offset })
}

func (r *redriveMachine) offset() int64 {
	dead := slices.Sorted(maps.Keys(r.dead))
	if len(dead) > 0 && r.m.chance("a dead one", 2) {
		return rapid.SampledFrom(dead).Draw(r.m.t, "dead")
	}
	return rapid.Int64Range(0, int64(len(r.records))).Draw(r.m.t, "offset")
}

func (r *redriveMachine) requeue() {
	o := r.offset()
	subject, sequence := "a", int64(0)
	if o < int64(len(r.records)) {
		subject, sequence = r.records[o].Subject, r.records[o].Sequence
	}
	want := r.dead[o] && !r.inBacklog(o)
	done, err := r.k.l.Requeue(r.k.ctx, r.fence.Key, ledger.Wait{Subject: subject, Reason: "put back", Offset: o, Message: message("x"), Sequence: sequence})
	r.decided("requeue", done, err, want)
	if want {
		r.put(subject, &redriveRow{offset: o, sequence: sequence, dead: true, released: true, alone: true, reason: "put back"})
	}
}

func (r *redriveMachine) dismiss() {
	o := r.offset()
	want := r.dead[o] && !r.inBacklog(o)
	n, err := r.k.l.Dismiss(r.k.ctx, r.fence.Key, o)
	r.decided("dismiss", n == 1, err, want)
	if want {
		delete(r.dead, o)
	}
}

// compare reads everything back.
func (r *redriveMachine) compare() {
	leases, err := r.k.l.Leases(r.k.ctx, r.m.name)
	if err != nil || len(leases) != 1 {
		r.m.t.Fatalf("leases are %v, %v", leases, err)
	}
	if got := leases[0].Counters; got != r.counters || got.Delivered() != int64(len(r.records)) {
		r.m.t.Fatalf("counters are %+v, want %+v of %d records", got, r.counters, len(r.records))
	}
	parked, err := r.k.l.Parked(r.k.ctx, r.fence)
	if err != nil {
		r.m.t.Fatal(err)
	}
	var waiting int64
	for _, subject := range []string{"a", "b"} {
		rows := r.rows[subject]
		waits, err := r.k.l.Backlog(r.k.ctx, r.fence, subject, 1000)
		if err != nil || len(waits) != len(rows) {
			r.m.t.Fatalf("backlog of %s is %+v (%v), want %d rows", subject, waits, err, len(rows))
		}
		for i, w := range waits {
			if row := rows[i]; w.Offset != row.offset || w.Dead != row.dead || w.Released != row.released || w.Reason != row.reason {
				r.m.t.Fatalf("row %d of %s is %+v, want %+v", i, subject, w, row)
			}
			if !w.Dead {
				waiting++
			}
		}
		reason, ok := parked[subject]
		if goes := strings.HasPrefix(reason, ledger.GoOnReason); ok != (len(rows) > 0) || ok && goes != r.goesOn(subject) {
			r.m.t.Fatalf("%s is parked with %q, want that it goes on: %v", subject, reason, r.goesOn(subject))
		}
	}
	if waiting != r.counters.Waiting {
		r.m.t.Fatalf("%d rows wait, and %d are counted", waiting, r.counters.Waiting)
	}
	r.compareDead()
	effects := r.k.effects()
	for id, n := range effects {
		if n != 1 || !r.applied[id] {
			r.m.t.Fatalf("effect of %s happened %d times, applied: %v", id, n, r.applied[id])
		}
	}
	if len(effects) != len(r.applied) {
		r.m.t.Fatalf("%d effects, want %d", len(effects), len(r.applied))
	}
}

func (r *redriveMachine) goesOn(subject string) bool {
	rows := r.rows[subject]
	if slices.ContainsFunc(rows, func(row *redriveRow) bool { return row.released }) {
		return true
	}
	return len(rows) > 0 && strings.HasPrefix(rows[0].reason, ledger.ParkedReason) && r.head(subject) == nil
}

func (r *redriveMachine) compareDead() {
	offsets := make([]int64, len(r.records))
	for o := range offsets {
		offsets[o] = int64(o)
	}
	dead, err := r.k.l.Dead(r.k.ctx, r.fence.Key, offsets)
	if err != nil {
		r.m.t.Fatal(err)
	}
	for o, got := range dead {
		if got != r.dead[int64(o)] {
			r.m.t.Fatalf("offset %d is dead: %v, want %v", o, got, r.dead[int64(o)])
		}
	}
}
