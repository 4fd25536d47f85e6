package engine_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
)

// A tenant with few records isn't kept waiting by one with many, and interactive work goes ahead of most that is batch.
func TestTenantsAndClassesTakeTurns(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a", "b")
	var mu sync.Mutex
	var order []string
	begin := make(chan struct{})
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Emits: []string{"b"}, Limits: engine.Limits{Steps: 1},
		Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
			select {
			case <-begin:
			case <-ctx.Done():
				return ctx.Err()
			}
			mu.Lock()
			order = append(order, e.Extension("class")+e.Extension("tenant"))
			mu.Unlock()
			s.Emit(event.New("T", e.Subject, nil))
			return nil
		}}
	emitted := make(chan event.Event, 1000)
	e, _ := w.start(w.options("w"), agent, engine.Agent{Name: "next", Reads: []string{"b"}, Handle: func(_ context.Context, e event.Event, _ *engine.Step) error {
		emitted <- e
		return nil
	}})
	var events []event.Event
	add := func(n int, class, tenant string) {
		for i := range n {
			e := event.New("T", fmt.Sprintf("%s%s-%d", class, tenant, i), nil)
			e.Source, e.ID = "//test", fmt.Sprint(class, tenant, i)
			if class != "" {
				e.SetExtension(engine.ExtensionClass, class)
			}
			if tenant != "" {
				e.SetExtension(engine.ExtensionTenant, tenant)
			}
			events = append(events, e)
		}
	}
	add(300, "", "greedy")
	add(20, "", "small")
	add(30, "interactive", "")
	w.publish("a", events...)
	w.until("all is queued", func() bool { return e.Status()[0].Queued == len(events) })
	close(begin)
	w.settle(e)
	last := map[string]int{}
	for i, who := range order {
		last[who] = i
	}
	// Of each round of four one turn is batch, and every other of these is for each of the two.
	if last["interactive"] > 45 || last["small"] > 80 {
		t.Errorf("last turns of %d: %v", len(order), last)
	}
	close(emitted)
	tenants := map[string]int{}
	for e := range emitted {
		tenants[e.Extension("class")+e.Extension("tenant")]++
	}
	if tenants["greedy"] != 300 || tenants["small"] != 20 || tenants["interactive"] != 30 {
		t.Errorf("emitted events are of %v", tenants)
	}
}

// K6: one key has 9,000 records of 50 ms each to come; 100 records of 100 other keys behind them on the same partitions
// don't wait for it, records without a key run side by side, and memory stays within its bounds.
func TestK6HotKeyHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	slow := make(chan struct{}) // closed: not any more
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
		if e.Subject == "hot" {
			select {
			case <-time.After(50 * time.Millisecond):
			case <-slow:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		record("r", e, s)
		return nil
	}}
	e, _ := w.start(w.options("w"), agent)
	var events []event.Event
	for i := range 9000 {
		e := event.New("T", "hot", nil)
		e.Source, e.ID = "//test", fmt.Sprintf("hot-%06d", i)
		events = append(events, e)
	}
	cold := numbered(100, 1)
	for i := range 300 {
		e := event.New("T", "", nil)
		e.Source, e.ID = "//test", fmt.Sprint("keyless-", i)
		cold = append(cold, e)
	}
	w.publish("a", events...)
	w.until("the hot key's partition is held back", func() bool {
		for _, p := range e.Status()[0].Partitions {
			if p.Held {
				return true
			}
		}
		return false
	})
	began := time.Now()
	w.publish("a", cold...)
	w.until("all others are handled", func() bool { return w.counters("r").Applied >= int64(len(cold)) && others(w.rows("r")) == len(cold) })
	if took := time.Since(began); took > 30*time.Second { // a lane alone takes 450 s
		t.Errorf("others took %s", took)
	}
	if s := e.Status()[0]; s.Queued > 512 {
		t.Errorf("%d records are in memory", s.Queued)
	}
	close(slow)
	w.until("much of the hot key has gone on", func() bool { return w.counters("r").Applied > int64(1500+len(cold)) })
	n := 0
	for _, r := range w.rows("r") {
		if r.subject != "hot" {
			continue
		}
		if want := fmt.Sprintf("hot-%06d", n); r.id != want {
			t.Fatalf("%s came, expected %s", r.id, want)
		}
		n++
	}
	if c := w.counters("r"); c.Applied+c.Waiting != c.Delivered() {
		t.Errorf("counters: %+v", c)
	}
}

func others(rows []row) (n int) {
	for _, r := range rows {
		if r.subject != "hot" {
			n++
		}
	}
	return n
}
