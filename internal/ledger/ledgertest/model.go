package ledgertest

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// The model says in a few lines what a ledger does; random batches are committed to both and compared. In the end
// each delivered record is counted once, and each applied event's effect is there once.
var modelTests = []test{{"RandomBatchesAgreeWithIt", func(k *kit) {
	rapid.Check(k.T, func(t *rapid.T) {
		m := newMachine(k, t)
		for range rapid.IntRange(1, 8).Draw(t, "batches") {
			m.batch()
			m.compare()
		}
	})
}}}

var errBroken = fault.As(fault.Permanent, errors.New("broken"))

// modelLease is a lease as the model has it; by offset.
type modelLease struct {
	finished map[int64]bool
	counters ledger.Counters
	seq      int64
	backlog  map[int64]ledger.Outcome // what its rows are counted as
}

// modelState is what a batch changes.
type modelState struct {
	leases  []*modelLease
	seen    map[string][16]byte
	cursor  map[string]int64
	effects map[string]int
}

func (s *modelState) clone() *modelState {
	c := &modelState{seen: maps.Clone(s.seen), cursor: maps.Clone(s.cursor), effects: maps.Clone(s.effects)}
	for _, l := range s.leases {
		c.leases = append(c.leases, &modelLease{maps.Clone(l.finished), l.counters, l.seq, maps.Clone(l.backlog)})
	}
	return c
}

// modelStep is a step with what the model must know of it.
type modelStep struct {
	*ledger.Step
	lease int
	fails bool
	stale bool
}

// commit is the whole of Commit: it goes through the steps, and again without the one that failed.
func (s *modelState) commit(steps []*modelStep) (*modelState, []ledger.Result) {
	failed := make(map[int]bool)
	for {
		c, results, bad := s.try(steps, failed)
		if bad < 0 {
			return c, results
		}
		failed[bad] = true
	}
}

func (s *modelState) try(steps []*modelStep, failed map[int]bool) (*modelState, []ledger.Result, int) {
	c := s.clone()
	results := make([]ledger.Result, len(steps))
	for i, st := range steps {
		r, l := &results[i], c.leases[st.lease]
		before := l.backlog[st.Offset]
		switch {
		case failed[i]:
			r.Err = errBroken
			continue
		case st.stale:
			r.Err = ledger.ErrFenced
			continue
		case st.FromBacklog && before == 0, !st.FromBacklog && l.finished[st.Offset]:
			r.Outcome = ledger.Duplicate
			continue
		}
		if r.Outcome, r.Err = c.decide(st); r.Err != nil {
			continue
		}
		if r.Outcome == st.Outcome {
			if st.fails && len(st.Effects) > 0 {
				return nil, nil, i
			}
			if len(st.Effects) > 0 {
				c.effects[st.Event.ID]++
			}
			if len(st.Emits) > 0 {
				r.FirstSeq = l.seq + 1
				l.seq += int64(len(st.Emits))
			}
		}
		if before != 0 {
			*l.counters.Of(before)--
		}
		*l.counters.Of(r.Outcome)++
		delete(l.backlog, st.Offset)
		if r.Outcome == ledger.Waiting || r.Outcome == ledger.Dead && st.Wait != nil && st.Wait.Dead {
			l.backlog[st.Offset] = r.Outcome
		}
		for o := st.From; o <= st.Offset && !st.FromBacklog; o++ {
			l.finished[o] = true
		}
	}
	return c, results, -1
}

func (s *modelState) decide(st *modelStep) (ledger.Outcome, error) {
	e := st.Event
	switch {
	case st.Outcome == ledger.Waiting || st.Outcome == ledger.Duplicate || st.Outcome == ledger.Misrouted:
	case e.Sequence > 0:
		last := s.cursor[e.Subject]
		switch {
		case e.Sequence <= last:
			return ledger.Duplicate, nil
		case e.Sequence > last+1:
			return ledger.Waiting, nil
		case !(st.Outcome == ledger.Dead && st.Wait.Dead):
			s.cursor[e.Subject] = e.Sequence
		}
	case st.Outcome == ledger.Applied && !e.Positional:
		d, ok := s.seen[e.ID]
		if ok && d != e.Digest {
			return 0, ledger.ErrConflict
		}
		if ok {
			return ledger.Duplicate, nil
		}
		s.seen[e.ID] = e.Digest
	}
	return st.Outcome, nil
}

// machine drives a ledger and the model side by side.
type machine struct {
	k      *kit
	t      *rapid.T
	name   string
	fences []ledger.Fence
	stale  []ledger.Fence
	state  *modelState
	next   []int64 // offset that the log of each partition goes on at

	unknown int // one in so many commits has no known outcome, 5 at least
}

func newMachine(k *kit, t *rapid.T) *machine {
	k.setup("DELETE FROM effect")
	m := &machine{k: k, t: t, name: fmt.Sprintf("model-%d", k.ids.Add(1)), next: []int64{0, 0},
		state: &modelState{seen: map[string][16]byte{}, cursor: map[string]int64{}, effects: map[string]int{}}}
	for p := range int32(2) {
		key := ledger.Key{Group: m.name, TopicID: [16]byte{1}, Partition: p}
		for range 2 {
			l, err := k.l.Acquire(k.ctx, key, topic, worker, 0, ttl)
			if err != nil {
				t.Fatal(err)
			}
			if l.Epoch == 1 {
				m.stale = append(m.stale, l.Fence)
				continue
			}
			m.fences = append(m.fences, l.Fence)
		}
		m.state.leases = append(m.state.leases, &modelLease{finished: map[int64]bool{}, backlog: map[int64]ledger.Outcome{}})
	}
	return m
}

func (m *machine) step() *modelStep {
	p := rapid.IntRange(0, 1).Draw(m.t, "partition")
	l := m.state.leases[p]
	st := &modelStep{Step: &ledger.Step{Fence: m.fences[p], LogTime: logTime(0)}, lease: p}
	if m.chance("stale", 8) {
		st.Fence, st.stale = m.stale[p], true
	}
	offsets := slices.Sorted(maps.Keys(l.backlog))
	switch {
	case len(offsets) > 0 && m.chance("redrive", 3):
		st.FromBacklog, st.Offset = true, rapid.SampledFrom(offsets).Draw(m.t, "row")
	case m.chance("again", 6):
		st.Offset = rapid.Int64Range(0, m.next[p]).Draw(m.t, "offset")
	default:
		st.Offset = m.next[p] + rapid.Int64Range(0, 2).Draw(m.t, "ahead") // what lies between comes later
		m.next[p] = st.Offset + 1
	}
	st.From = st.Offset
	st.Outcome = rapid.SampledFrom([]ledger.Outcome{ledger.Applied, ledger.Applied, ledger.Applied, ledger.Refused, ledger.Skipped,
		ledger.Ignored, ledger.Duplicate, ledger.Dead, ledger.Waiting, ledger.Misrouted}).Draw(m.t, "outcome")
	m.identify(st)
	m.fill(st)
	return st
}

// identify makes the step's event one of a few, so that copies, conflicts, inversions and gaps come up.
func (m *machine) identify(st *modelStep) {
	n := rapid.IntRange(1, 6).Draw(m.t, "event")
	st.Event = ledger.Identity{Source: "test", ID: fmt.Sprintf("%s-%d", m.name, n), Digest: digest("same")}
	switch rapid.IntRange(0, 3).Draw(m.t, "kind") {
	case 0:
		st.Event.Sequence = int64(n)
		st.Event.Subject = rapid.SampledFrom([]string{"a", "b"}).Draw(m.t, "subject")
		st.Event.ID = fmt.Sprintf("%s-%s-%d", m.name, st.Event.Subject, n)
	case 1:
		st.Event.Positional = true
		st.Event.ID = fmt.Sprintf("%s-at-%d-%d", m.name, st.lease, st.Offset)
	case 2:
		if m.chance("other content", 4) {
			st.Event.Digest = digest("other")
		}
	}
}

func (m *machine) fill(st *modelStep) {
	if st.Event.Sequence > 0 || st.Outcome == ledger.Waiting || st.Outcome == ledger.Dead && m.chance("park", 2) {
		st.Wait = &ledger.Wait{Subject: "s", Reason: "because", Message: message("x"), Sequence: st.Event.Sequence,
			Dead: st.Outcome == ledger.Dead && m.chance("park", 2)}
	}
	if st.Outcome == ledger.Applied {
		st.Effects = []effect{insert(st.Event.ID)}
		if st.fails = m.chance("fails", 4); st.fails {
			st.Effects = append(st.Effects, fails(errBroken))
		}
	}
	if st.Outcome == ledger.Applied || st.Outcome == ledger.Dead {
		for range rapid.IntRange(0, 2).Draw(m.t, "emits") {
			st.Emits = append(st.Emits, ledger.Outgoing{Topic: "out", Message: message("x")})
		}
	}
}

func (m *machine) chance(what string, oneIn int) bool {
	return rapid.IntRange(1, oneIn).Draw(m.t, what) == 1
}

// sometimes reads back what a machine of many small steps has come to: each look is several round trips.
func (m *machine) sometimes(compare func()) {
	if m.chance("looks", 4) {
		compare()
	}
}

// batch commits a batch to both, at times with an unknown outcome.
func (m *machine) batch() {
	var steps []*modelStep
	b := &ledger.Batch{}
	for range rapid.IntRange(1, 6).Draw(m.t, "steps") {
		st := m.step()
		steps, b.Steps = append(steps, st), append(b.Steps, st.Step)
	}
	after, want := m.state.commit(steps)
	results := m.commit(b)
	for i, w := range want {
		r := results[i]
		if w.Err != nil && !errors.Is(r.Err, w.Err) && r.Err != nil {
			m.t.Fatalf("step %d of %+v: error %v, want %v", i, steps[i].Step, r.Err, w.Err)
		}
		if (w.Err == nil) != (r.Err == nil) || w.Outcome != r.Outcome || w.FirstSeq != r.FirstSeq {
			m.t.Fatalf("step %d of %+v: %+v, want %+v", i, steps[i].Step, r, w)
		}
	}
	m.state = after
}

func (m *machine) commit(b *ledger.Batch) []ledger.Result {
	if !m.chance("unknown", max(m.unknown, 5)) {
		results, err := m.k.l.Commit(m.k.ctx, b)
		if err != nil {
			m.t.Fatal(err)
		}
		return results
	}
	m.k.f.FailCommit(m.k.l, m.chance("happened", 2))
	if _, err := m.k.l.Commit(m.k.ctx, b); !errors.Is(err, ledger.ErrUnknown) {
		m.t.Fatalf("commit: %v, want ErrUnknown", err)
	}
	results, committed, err := m.k.l.Resolve(m.k.ctx, b)
	if err == nil && !committed {
		results, err = m.k.l.Commit(m.k.ctx, b)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return results
}

// compare reads everything back.
func (m *machine) compare() {
	leases, err := m.k.l.Leases(m.k.ctx, m.name)
	if err != nil {
		m.t.Fatal(err)
	}
	for p, l := range leases {
		w := m.state.leases[p]
		if l.Counters != w.counters {
			m.t.Fatalf("partition %d: counters are %+v, want %+v", p, l.Counters, w.counters)
		}
		if l.Seq != w.seq {
			m.t.Fatalf("partition %d: outbox number is %d, want %d", p, l.Seq, w.seq)
		}
		for o := range m.next[p] + 2 {
			if got := o < l.Next || l.Finished.Contains(o); got != w.finished[o] {
				m.t.Fatalf("partition %d: offset %d finished is %v, want %v (%d, %v)", p, o, got, w.finished[o], l.Next, l.Finished)
			}
		}
		if n := int64(len(w.finished)); l.Counters.Delivered() != n {
			m.t.Fatalf("partition %d: counters account for %d records, want %d", p, l.Counters.Delivered(), n)
		}
		rows, err := m.k.l.Outbox(m.k.ctx, m.fences[p], 0, 1000)
		if err != nil || int64(len(rows)) != w.seq {
			m.t.Fatalf("partition %d: outbox has %d rows (%v), want %d", p, len(rows), err, w.seq)
		}
		waits, err := m.k.l.Backlog(m.k.ctx, m.fences[p], "s", 1000)
		if err != nil || len(waits) != len(w.backlog) {
			m.t.Fatalf("partition %d: backlog has %d rows (%v), want %d", p, len(waits), err, len(w.backlog))
		}
		for _, wait := range waits {
			if o := w.backlog[wait.Offset]; o == 0 || wait.Dead != (o == ledger.Dead) {
				m.t.Fatalf("partition %d: backlog has %+v, and the model %v", p, wait, o)
			}
		}
	}
	counts := m.k.effects()
	for id, n := range m.state.effects {
		if counts[id] != n {
			m.t.Fatalf("effect of %s happened %d times, want %d", id, counts[id], n)
		}
	}
}
