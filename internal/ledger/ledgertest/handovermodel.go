package ledgertest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/ledger"
)

// randomHandOvers lets three workers take two partitions from each other in all ways, while steps of all of them run,
// fail to be passed on, expire and commit late. Events have positional ids, so that nothing but fences keeps a record
// from being applied twice. Whatever happens, a commit ends as the model says; and in the end each record is counted
// once, with its effect there once.
func randomHandOvers(k *kit) {
	rapid.Check(k.T, func(t *rapid.T) {
		h := newHandoverMachine(k, t)
		t.Repeat(map[string]func(*rapid.T){
			"begin":    func(t *rapid.T) { h.m.t = t; h.begin(h.any()) },
			"begins":   func(t *rapid.T) { h.m.t = t; h.begin(h.any()); h.begin(h.any()) },
			"commit":   func(t *rapid.T) { h.m.t = t; h.commit() },
			"pass":     func(t *rapid.T) { h.m.t = t; h.pass(h.any()) },
			"acquire":  func(t *rapid.T) { h.m.t = t; h.acquire(h.any(), h.worker()) },
			"release":  func(t *rapid.T) { h.m.t = t; h.release(h.any()) },
			"put down": func(t *rapid.T) { h.m.t = t; h.putDown(h.any()) },
			"retire":   func(t *rapid.T) { h.m.t = t; h.retire(h.worker()) },
			"expire":   func(t *rapid.T) { h.m.t = t; h.expire(h.worker()) },
			"":         func(t *rapid.T) { h.m.t = t; h.m.sometimes(h.compare) },
		})
		h.m.t = t
		h.finish()
	})
}

// handedLease is a lease as the model has it.
type handedLease struct {
	fence    ledger.Fence // owner "" where nobody has it
	passedTo string
	log      int64 // records that the partition has
	done     map[int64]bool
	carried  map[int64]ledger.Fence
	running  []*ledger.Step
	seq      int64
	counters ledger.Counters
}

type handoverMachine struct {
	m      *machine // for its ways to commit
	k      *kit
	leases []*handedLease
}

func newHandoverMachine(k *kit, t *rapid.T) *handoverMachine {
	k.setup("DELETE FROM effect")
	h := &handoverMachine{k: k, m: &machine{k: k, t: t, unknown: 20, name: fmt.Sprintf("handover-%d", k.ids.Add(1))}}
	for p := range int32(2) {
		h.leases = append(h.leases, &handedLease{
			fence: ledger.Fence{Key: ledger.Key{Group: h.m.name, TopicID: [16]byte{1}, Partition: p}},
			log:   rapid.Int64Range(3, 9).Draw(t, "records"), done: map[int64]bool{}, carried: map[int64]ledger.Fence{},
		})
	}
	return h
}

func (h *handoverMachine) any() *handedLease {
	return h.leases[rapid.IntRange(0, len(h.leases)-1).Draw(h.m.t, "partition")]
}

func (h *handoverMachine) worker() string {
	return rapid.SampledFrom([]string{h.m.name + "-a", h.m.name + "-b", h.m.name + "-c"}).Draw(h.m.t, "worker")
}

// begin starts a step of the lease's owner, where there's a record that nobody carries.
func (h *handoverMachine) begin(l *handedLease) bool {
	if l.fence.Owner == "" {
		return false
	}
	for o := range l.log {
		_, carried := l.carried[o]
		busy := slices.ContainsFunc(l.running, func(s *ledger.Step) bool { return s.Offset == o && s.Fence == l.fence })
		if l.done[o] || carried || busy {
			continue
		}
		id := fmt.Sprintf("%s-%d-%d", h.m.name, l.fence.Partition, o)
		s := &ledger.Step{Fence: l.fence, From: o, Offset: o, LogTime: logTime(o), Outcome: ledger.Applied,
			Event: ledger.Identity{Source: "test", ID: id, Positional: true}, Effects: []effect{insert(id)},
			Emits: []ledger.Outgoing{{Topic: "out", Message: message(id)}}}
		l.running = append(l.running, s)
		return true
	}
	return false
}

// commit commits a few of the running steps, whoever runs them, in one batch; at times as what they are not.
func (h *handoverMachine) commit() {
	var steps []*ledger.Step
	lies := make(map[*ledger.Step]bool)
	for _, l := range h.leases {
		for _, s := range l.running {
			if !h.m.chance("commits", 2) {
				continue
			}
			s.Carried = l.carried[s.Offset] == s.Fence
			if lies[s] = h.m.chance("lies", 6); lies[s] {
				s.Carried = !s.Carried
			}
			steps = append(steps, s)
		}
	}
	h.commits(steps, lies)
}

func (h *handoverMachine) commits(steps []*ledger.Step, lies map[*ledger.Step]bool) {
	if len(steps) == 0 { // which may have no COMMIT to fail
		return
	}
	results := h.m.commit(&ledger.Batch{Steps: steps})
	for i, s := range steps {
		l, r := h.leases[s.Fence.Partition], results[i]
		may := l.fence == s.Fence
		if s.Carried {
			may = l.carried[s.Offset] == s.Fence
		}
		switch {
		case !may && !errors.Is(r.Err, ledger.ErrFenced):
			h.m.t.Fatalf("step at %d of %+v, carried %v: %+v, want it fenced", s.Offset, s.Fence, s.Carried, r)
		case may && (r.Err != nil || r.Outcome != ledger.Applied || r.FirstSeq != l.seq+1):
			h.m.t.Fatalf("step at %d of %+v, carried %v: %+v, want it applied with outbox number %d", s.Offset, s.Fence, s.Carried, r, l.seq+1)
		case may:
			l.seq++
			l.counters.Applied++
			l.done[s.Offset] = true
			delete(l.carried, s.Offset)
		}
		if may || !lies[s] {
			l.running = slices.DeleteFunc(l.running, func(other *ledger.Step) bool { return other == s })
		}
	}
}

// pass passes a lease on, with some of what runs.
func (h *handoverMachine) pass(l *handedLease) {
	if l.fence.Owner == "" {
		return
	}
	to := ""
	if h.m.chance("to one", 2) {
		to = h.worker()
	}
	var carried []ledger.Carried
	for _, s := range l.running {
		if s.Fence == l.fence && !h.m.chance("left behind", 4) {
			carried = append(carried, ledger.Carried{Offset: s.Offset, Subject: "s"})
			l.carried[s.Offset] = s.Fence
		}
	}
	if err := h.k.l.Pass(h.k.ctx, l.fence, to, carried, ttl); err != nil {
		h.m.t.Fatal(err)
	}
	l.fence.Owner, l.passedTo = "", to
}

func (h *handoverMachine) acquire(l *handedLease, worker string) {
	got, err := h.k.l.Acquire(h.k.ctx, l.fence.Key, topic, worker, 0, ttl)
	if l.fence.Owner != "" && l.fence.Owner != worker || l.passedTo != "" && l.passedTo != worker {
		if !errors.Is(err, ledger.ErrHeld) {
			h.m.t.Fatalf("acquire by %s of %+v, passed to %q: %v, want ErrHeld", worker, l.fence, l.passedTo, err)
		}
		return
	}
	if err != nil {
		h.m.t.Fatal(err)
	}
	if got.Epoch <= l.fence.Epoch {
		h.m.t.Fatalf("epoch is %d after %d", got.Epoch, l.fence.Epoch)
	}
	l.fence, l.passedTo = got.Fence, ""
	h.wantCarried(l, got)
}

// own makes sure that somebody has the lease.
func (h *handoverMachine) own(l *handedLease) {
	if l.fence.Owner == "" {
		worker := l.passedTo
		if worker == "" {
			worker = h.worker()
		}
		h.acquire(l, worker)
	}
}

func (h *handoverMachine) release(l *handedLease) {
	if l.fence.Owner == "" {
		return
	}
	if err := h.k.l.Release(h.k.ctx, l.fence); err != nil {
		h.m.t.Fatal(err)
	}
	l.fence.Owner = ""
}

func (h *handoverMachine) putDown(l *handedLease) {
	for _, o := range slices.Sorted(maps.Keys(l.carried)) {
		if h.m.chance("gives up", 2) {
			if err := h.k.l.PutDown(h.k.ctx, l.carried[o], o); err != nil {
				h.m.t.Fatal(err)
			}
			delete(l.carried, o)
		}
	}
}

func (h *handoverMachine) retire(worker string) {
	if err := h.k.l.Retire(h.k.ctx, worker); err != nil {
		h.m.t.Fatal(err)
	}
	h.dropped(worker)
}

func (h *handoverMachine) dropped(worker string) {
	for _, l := range h.leases {
		maps.DeleteFunc(l.carried, func(_ int64, f ledger.Fence) bool { return f.Owner == worker })
	}
}

// expire lets the time of a worker's carried steps pass, and the owners take them over.
func (h *handoverMachine) expire(worker string) {
	for _, l := range h.leases {
		h.own(l)
	}
	if _, err := h.k.l.Beat(h.k.ctx, ledger.Worker{ID: worker}, time.Millisecond); err != nil {
		h.m.t.Fatal(err)
	}
	h.k.until("what a worker carries to expire", func() bool {
		for _, l := range h.leases {
			if slices.ContainsFunc(h.progress(l).Carried, func(c ledger.Carried) bool { return c.Worker == worker }) {
				return false
			}
		}
		return true
	})
	h.dropped(worker)
	if _, err := h.k.l.Beat(h.k.ctx, ledger.Worker{ID: worker}, ttl); err != nil { // its leases go on
		h.m.t.Fatal(err)
	}
}

func (h *handoverMachine) progress(l *handedLease) ledger.Lease {
	got, err := h.k.l.Progress(h.k.ctx, l.fence)
	if err != nil {
		h.m.t.Fatal(err)
	}
	return got
}

func (h *handoverMachine) wantCarried(l *handedLease, got ledger.Lease) {
	have := make(map[int64]ledger.Fence)
	for _, c := range got.Carried {
		have[c.Offset] = ledger.Fence{Key: l.fence.Key, Owner: c.Worker, Epoch: c.Epoch}
	}
	if !maps.Equal(have, l.carried) {
		h.m.t.Fatalf("carried are %v, want %v", have, l.carried)
	}
}

// compare reads back how far the leases that somebody has got.
func (h *handoverMachine) compare() {
	for _, l := range h.leases {
		if l.fence.Owner == "" {
			continue
		}
		got := h.progress(l)
		h.wantCarried(l, got)
		if got.Seq != l.seq || got.Counters != l.counters {
			h.m.t.Fatalf("lease has outbox number %d and counters %+v, want %d and %+v", got.Seq, got.Counters, l.seq, l.counters)
		}
		for o := range l.log {
			if done := o < got.Next || got.Finished.Contains(o); done != l.done[o] {
				h.m.t.Fatalf("offset %d of partition %d finished is %v, want %v", o, l.fence.Partition, done, l.done[o])
			}
		}
	}
}

// finish ends all that is carried, by a commit or without one, and lets owners do the rest.
func (h *handoverMachine) finish() {
	h.commit()
	for _, l := range h.leases {
		h.own(l)
		h.putDown(l)
		for _, s := range slices.Clone(l.running) {
			if s.Carried = l.carried[s.Offset] == s.Fence; s.Carried {
				h.commits([]*ledger.Step{s}, nil)
			}
		}
		for h.begin(l) {
			continue
		}
		for _, s := range slices.Clone(l.running) {
			s.Carried = false
			h.commits([]*ledger.Step{s}, nil)
		}
	}
	h.compare()
	effects := h.k.effects()
	for _, l := range h.leases {
		if got := h.progress(l); got.Next != l.log || got.Counters.Delivered() != l.log || got.Seq != l.log || len(got.Carried) > 0 {
			h.m.t.Fatalf("in the end the lease is %+v, want all of %d records applied", got, l.log)
		}
		rows, err := h.k.l.Outbox(h.k.ctx, l.fence, 0, 100)
		if err != nil || int64(len(rows)) != l.log {
			h.m.t.Fatalf("in the end the outbox has %d rows (%v), want %d", len(rows), err, l.log)
		}
		for o := range l.log {
			if id := fmt.Sprintf("%s-%d-%d", h.m.name, l.fence.Partition, o); effects[id] != 1 {
				h.m.t.Fatalf("effect of %s happened %d times, want once", id, effects[id])
			}
		}
	}
}
