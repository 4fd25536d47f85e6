package app

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/engine"
)

// A worker on servers journals unless it's told not to, an embedded one only where it's asked.
func TestWhereIsJournalled(t *testing.T) {
	t.Parallel()
	const file = "name: s\ntopics: {a: }\nagents: {x: {kind: indexer, reads: a}}\nkafka:\n  brokers: h:1\npostgres: {dsn: \"postgres://h/d\"}\n"
	for _, c := range []struct{ line, servers, embedded string }{
		{"", "s.journal", ""},
		{"journal: off\n", "", ""},
		{"journal: mine\nworker: {stuck_after: 3m}\n", "mine", "mine"},
	} {
		s, err := config.Parse("swarm.yaml", []byte(file+c.line), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		on, err := OnServers(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		in, err := FromSwarm(s, t.TempDir(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if on.Journal != c.servers || in.Journal != c.embedded || on.JournalAsked != (c.line != "" && c.servers != "") {
			t.Errorf("%q: %q on servers (asked %v), %q embedded", c.line, on.Journal, on.JournalAsked, in.Journal)
		}
		if want := s.Worker.StuckAfter; on.StuckAfter != want || in.StuckAfter != want {
			t.Errorf("%q: stuck after %s and %s", c.line, on.StuckAfter, in.StuckAfter)
		}
	}
}

// A journal that can't be made stops nobody, unless it was asked for.
func TestJournalThatCannotBeMade(t *testing.T) {
	t.Parallel()
	name := "unmade" + strings.ToLower(rand.Text()[:8])
	for _, asked := range []bool{true, false} {
		a, err := Start(t.Context(), Config{Name: name, InMemory: true, Kafka: &KafkaOptions{Seeds: given.Kafka(t)}, Journal: "no/topic", JournalAsked: asked,
			Agents: []engine.Agent{{Name: "a", Reads: []string{name}, Handle: func(context.Context, event.Event, *engine.Step) error { return nil }}}})
		if asked {
			if err == nil || !strings.Contains(err.Error(), "journal: off") {
				t.Errorf("asked for: %v", err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// A worker whose handler never returns ends with an error that names it, and its journal says so.
func TestStuckHandlerEndsItsWorker(t *testing.T) {
	t.Parallel()
	name := "stuck" + strings.ToLower(rand.Text()[:8])
	release := make(chan struct{})
	defer close(release)
	a, err := Start(t.Context(), Config{Name: name, InMemory: true, LeaseTime: time.Second, Drain: 100 * time.Millisecond, StuckAfter: 300 * time.Millisecond,
		Journal: name + ".journal", JournalAsked: true, Kafka: &KafkaOptions{Seeds: given.Kafka(t)},
		Postgres: &PostgresOptions{DSN: given.Postgres(t), Schema: name},
		Agents: []engine.Agent{{Name: "deaf", Reads: []string{name}, Limits: engine.Limits{Timeout: 200 * time.Millisecond},
			Handle: func(context.Context, event.Event, *engine.Step) error { <-release; return nil }}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Publish(t.Context(), name, event.New("E", "s", nil)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-a.Done():
	case <-time.After(time.Minute):
		t.Fatal("the worker goes on")
	}
	messages, err := a.Messages(t.Context(), name+".journal")
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]int{}
	for _, m := range messages {
		e, err := event.Decode(m, event.Position{})
		if err != nil {
			t.Fatal(err)
		}
		types[e.Type]++
	}
	if types[engine.TypeAgentStuck] != 1 || types[engine.TypeStepTimedOut] > 1 || types[engine.TypeLeaseMoved] < defaultPartitions {
		t.Errorf("journalled: %v", types)
	}
	found, err := a.broker.Topics(t.Context(), name+".journal")
	if err != nil || found[0].Partitions != 1 || found[0].Compact {
		t.Errorf("the journal's topic: %+v, %v", found, err)
	}
	if err := a.Stop(context.Background()); err == nil || !strings.Contains(err.Error(), "agent deaf") || !strings.Contains(err.Error(), "ignores its cancellation") {
		t.Errorf("it ended with %v", err)
	}
}
