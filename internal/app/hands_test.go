package app

import (
	"context"
	"crypto/rand"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/control"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/letters"
)

// What people decide is done on real Kafka and PostgreSQL too.
func TestHandsOnServers(t *testing.T) {
	t.Parallel()
	name := "hands" + strings.ToLower(rand.Text()[:8])
	var mended atomic.Bool
	var handled atomic.Int64
	a, err := Start(t.Context(), Config{Name: name, InMemory: true, LeaseTime: 2 * time.Second, Kafka: &KafkaOptions{Seeds: given.Kafka(t)},
		Postgres: &PostgresOptions{DSN: given.Postgres(t), Schema: name},
		Agents: []engine.Agent{{Name: "reader", Reads: []string{name}, Handle: func(_ context.Context, e event.Event, _ *engine.Step) error {
			if e.Type == "BadEvent" && !mended.Load() {
				return fault.Permanentf("no good")
			}
			handled.Add(1)
			return nil
		}}}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("waited in vain until %s", what)
			}
		}
	}
	ctx := t.Context()
	check(a.Publish(ctx, name, event.New("BadEvent", "a", 1), event.New("GoodEvent", "a", 2), event.New("BadEvent", "b", 1)))
	h := a.hands()
	count := func() (n int) {
		check(h.Letters(ctx, letters.Filter{}, letters.Options{}, func(*letters.Letter) error { n++; return nil }))
		return n
	}
	until("two letters wait", func() bool { return count() == 2 })
	until("one record waits behind", func() bool {
		dry, err := h.Act(ctx, letters.Redrive, letters.Filter{}, true, letters.Options{}, nil)
		check(err)
		return dry.Done == 2 && dry.Behind == 1
	})
	mended.Store(true)
	account, err := h.Act(ctx, letters.Redrive, letters.Filter{}, false, letters.Options{}, nil)
	if err != nil || account.Done != 2 || account.Left != 0 {
		t.Fatalf("%+v, %v", account, err)
	}
	until("all are handled", func() bool { return handled.Load() == 3 })
	until("nothing waits", func() bool { return count() == 0 })

	check(h.Pause(ctx, "reader", ""))
	waiting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := h.Rewind(waiting, control.Rewinding{Agent: "reader", To: time.Now().Add(-time.Hour), Repeat: true}, false)
	if err != nil || !r.Done || r.Back != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	check(h.Resume(ctx, "reader"))
	until("all are handled again", func() bool { return handled.Load() == 6 })
	if back, err := h.Recover(ctx, nil, false); err != nil || len(back.Partitions) > 0 {
		t.Errorf("%+v, %v", back, err)
	}
}
