package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// slow is an agent whose steps of chosen events wait until they are let go, and that counts runs by event.
type slow struct {
	mu    sync.Mutex
	gates map[string]chan error // by event id: what the step ends with
	runs  map[string][]string   // workers, by event id
	last  map[int32]time.Time   // the last run, by partition
	gap   map[int32]time.Duration
}

// largestGap is the longest that no step of a partition began, since it was last asked.
func (s *slow) largestGap() (most time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.gap {
		most = max(most, d)
	}
	s.last, s.gap = map[int32]time.Time{}, map[int32]time.Duration{}
	return most
}

func newSlow(ids ...string) *slow {
	s := &slow{gates: map[string]chan error{}, runs: map[string][]string{}}
	for _, id := range ids {
		s.gates[id] = make(chan error, 1)
	}
	return s
}

func (s *slow) agent(name, worker, reads string, emits ...string) engine.Agent {
	return engine.Agent{Name: name, Reads: []string{reads}, Emits: emits, Handle: func(ctx context.Context, e event.Event, st *engine.Step) error {
		s.mu.Lock()
		gate := s.gates[e.ID]
		s.runs[e.ID] = append(s.runs[e.ID], worker)
		if p := st.Position().Partition; s.gap != nil {
			if at, ok := s.last[p]; ok {
				s.gap[p] = max(s.gap[p], time.Since(at))
			}
			s.last[p] = time.Now()
		}
		s.mu.Unlock()
		if gate != nil {
			select {
			case err := <-gate:
				if err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		record(name, e, st)
		if len(emits) > 0 {
			st.Emit(event.New("DoneEvent", e.Subject, e.ID))
		}
		return nil
	}}
}

// letGo ends a step that waits, and all later runs of it at once.
func (s *slow) letGo(id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gates[id] <- err
	delete(s.gates, id)
}

func (s *slow) ran(id string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.runs[id]...)
}

// onePerPartition are the numbers of subjects, one for each of four partitions.
func onePerPartition(subjects int) []int {
	found := map[int32]int{}
	for i := range subjects {
		p := route.Partition([]byte(fmt.Sprintf("subject-%d", i)), 4)
		if _, ok := found[p]; !ok {
			found[p] = i
		}
	}
	var all []int
	for p := range int32(4) {
		all = append(all, found[p])
	}
	return all
}

// handOver lets a worker begin with a step in each of four partitions that doesn't end, and another worker join it. It
// returns the ids of those steps, once two partitions have moved and the rest of all aggregates is done.
func handOver(t *testing.T, w *world, s *slow, held []string, one, two engine.Options, emits ...string) (first, second *engine.Engine) {
	t.Helper()
	const subjects, n = 20, 10
	first, _ = w.start(one, s.agent("r", "one", "a", emits...))
	w.publish("a", numbered(subjects, n/2)...)
	w.until("the held steps run", func() bool {
		for _, id := range held {
			if len(s.ran(id)) == 0 {
				return false
			}
		}
		return len(w.rows("r")) == (subjects-len(held))*n/2
	})
	second, _ = w.start(two, s.agent("r", "two", "a", emits...))
	w.until("partitions are shared", func() bool { return partitions(first) == 2 && partitions(second) == 2 })
	w.publish("a", numbered(subjects, n)[subjects*n/2:]...)
	w.until("all other aggregates are done", func() bool { return len(w.rows("r")) == (subjects-len(held))*n })
	return first, second
}

func heldIDs() (ids []string) {
	for _, n := range onePerPartition(20) {
		ids = append(ids, fmt.Sprintf("%d-%06d", n, 0))
	}
	return ids
}

// A partition whose steps are still running moves nevertheless: its other aggregates go on elsewhere, and what runs
// ends where it began, once. Later events of its aggregate come after it, and what it emits is published.
func TestHandOverCarriesRunningSteps(t *testing.T) { inBothModes(t, handOverCarriesRunningSteps) }

func handOverCarriesRunningSteps(t *testing.T, mode engine.Membership) {
	w := newWorld(t, "a", "b")
	w.mode = mode
	held := heldIDs()
	s := newSlow(held...)
	_, second := handOver(t, w, s, held, w.options("one"), w.options("two"), "b")
	for _, id := range held {
		s.letGo(id, nil)
	}
	w.settle(second)
	checkOnce(t, w.rows("r"), 20, 10)
	for _, id := range held {
		if got := s.ran(id); len(got) != 1 || got[0] != "one" {
			t.Errorf("%s ran on %v, and should have once, where it began", id, got)
		}
	}
	if c := w.counters("r"); c.Applied != 200 || c.Delivered() != 200 {
		t.Errorf("counters: %+v", c)
	}
	ranges, err := w.broker.Offsets(t.Context(), "b")
	must(t, err)
	sent := int64(0)
	for _, r := range ranges {
		sent += r.End - r.Start
	}
	if sent != 200 {
		t.Errorf("%d events were published of 200 steps", sent)
	}
}

// A carried step that fails is run again by the partition's new owner, before the later events of its aggregate.
func TestCarriedStepThatFailsRunsElsewhere(t *testing.T) {
	inBothModes(t, carriedStepThatFailsRunsElsewhere)
}

func carriedStepThatFailsRunsElsewhere(t *testing.T, mode engine.Membership) {
	w := newWorld(t, "a")
	w.mode = mode
	held := heldIDs()
	s := newSlow(held...)
	_, second := handOver(t, w, s, held, w.options("one"), w.options("two"))
	for _, id := range held {
		s.letGo(id, errors.New("it failed on the way"))
	}
	w.settle(second)
	checkOnce(t, w.rows("r"), 20, 10)
	moved := 0
	for _, id := range held {
		got := s.ran(id)
		if len(got) != 2 {
			t.Errorf("%s ran on %v, and should have twice", id, got)
		} else if got[1] == "two" {
			moved++
		}
	}
	if moved != 2 {
		t.Errorf("%d of the steps ran again on the new owner, expected 2", moved)
	}
}

// The steps that a quiet worker carries are its successor's once their time is over, and commit nothing there after that.
func TestCarriedStepsOfAQuietWorkerAreTakenOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	held := heldIDs()
	s := newSlow(held...)
	frozen := &freezer{Ledger: w.ledger}
	one := w.options("one")
	one.Ledger = frozen
	_, second := handOver(t, w, s, held, one, w.options("two"))
	frozen.freeze()
	w.until("they run elsewhere", func() bool {
		for _, id := range held {
			if got := s.ran(id); len(got) != 2 || got[1] != "two" {
				return false
			}
		}
		return true
	})
	s.mu.Lock()
	for _, id := range held { // both runs of each
		close(s.gates[id])
	}
	s.mu.Unlock()
	frozen.thaw()
	w.settle(second)
	checkOnce(t, w.rows("r"), 20, 10)
}

// A worker that stops hands over what it has, and ends once what it carries is done: nobody waits for that.
func TestStopHandsOver(t *testing.T) { inBothModes(t, stopHandsOver) }

func stopHandsOver(t *testing.T, mode engine.Membership) {
	w := newWorld(t, "a")
	w.mode = mode
	held := heldIDs()
	s := newSlow(held...)
	o := w.options("one")
	o.Drain = 30 * time.Second
	_, stop := w.start(o, s.agent("r", "one", "a"))
	w.publish("a", numbered(20, 5)...)
	w.until("the held steps run", func() bool { return len(w.rows("r")) == 16*5 })
	idle := newSlow()
	second, _ := w.start(w.options("two"), idle.agent("r", "two", "a"))
	w.until("they know of one another", func() bool { return partitions(second) > 0 })
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	w.publish("a", numbered(20, 10)[100:]...)
	w.until("the other worker does the rest", func() bool { return partitions(second) == 4 && len(w.rows("r")) == 16*10 })
	select {
	case <-stopped:
		t.Error("the worker ended before the steps that it carries")
	default:
	}
	for _, id := range held {
		s.letGo(id, nil)
	}
	<-stopped
	w.settle(second)
	checkOnce(t, w.rows("r"), 20, 10)
	for _, id := range held {
		if got := s.ran(id); len(got) != 1 {
			t.Errorf("%s ran on %v, and should have once", id, got)
		}
		if got := idle.ran(id); len(got) != 0 {
			t.Errorf("%s ran again on %v", id, got)
		}
	}
}

// Workers join and leave all the time, while steps take longer than a hand-over waits, fail, die and emit: each event
// has one effect, in order, and each effect's event is published.
func TestHandOverAtAnyMoment(t *testing.T) { inBothModes(t, handOverAtAnyMoment) }

func handOverAtAnyMoment(t *testing.T, mode engine.Membership) {
	w := newWorld(t, "a", "b")
	w.mode = mode
	const subjects, n = 25, 24
	agent := func(worker string) []engine.Agent {
		return []engine.Agent{{Name: "r", Reads: []string{"a"}, Emits: []string{"b"}, Limits: engine.Limits{Backoff: 20 * time.Millisecond, Attempts: 1000},
			Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
				select {
				case <-time.After(rand.N(60 * time.Millisecond)):
				case <-ctx.Done():
					return ctx.Err()
				}
				if rand.IntN(10) == 0 {
					return errors.New("now and then it fails")
				}
				record("r", e, s)
				s.Emit(event.New("NumberedEvent", e.Subject, e.ID))
				return nil
			}}, {Name: "next", Reads: []string{"b"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			s.Tx(func(ctx context.Context, tx ledger.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO done (agent, subject, id, epoch) VALUES ('next', $1, $2, 0)`, e.Subject, string(e.Data))
				return err
			})
			return nil
		}}}
	}
	w.publish("a", numbered(subjects, n)...)
	o := func(name string) engine.Options {
		o := w.options(name)
		o.Patience = 5 * time.Millisecond
		return o
	}
	stay, _ := w.start(o("stay"), agent("stay")...)
	for i := 0; len(w.rows("r")) < subjects*n; i++ {
		name := fmt.Sprint("guest-", i%2)
		guest, stop := w.start(o(name), agent(name)...)
		before := len(w.rows("r"))
		w.until("the guest has taken part", func() bool {
			rows := len(w.rows("r"))
			return rows == subjects*n || (partitions(guest) > 0 && rows > before+20)
		})
		stop()
	}
	w.settle(stay)
	checkOnce(t, w.rows("r"), subjects, n)
	checkOnce(t, w.rows("next"), subjects, n)
	if c := w.counters("r"); c.Applied != subjects*n || c.Delivered() != c.Applied {
		t.Errorf("counters: %+v", c)
	}
}
