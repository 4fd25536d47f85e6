package app

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
)

// A data folder is open to a command while no swarm runs on it; while one does, the command is told where to ask.
func TestDeskOpensWhatNobodyRunsOn(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	if _, err := Connect(t.Context(), Where{Data: data}); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a folder in which nothing has run: %v", err)
	}
	a, err := Start(t.Context(), Config{Name: "desk", Data: data, Listen: "127.0.0.1:0", Agents: []engine.Agent{{Name: "reader", Reads: []string{"in"},
		Handle: func(context.Context, event.Event, *engine.Step) error { return nil }}}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := Connect(t.Context(), Where{Data: data})
	if err != nil {
		t.Fatal(err)
	}
	if d.Running != a.HTTPAddr() || d.Broker != nil || d.Ledger != nil {
		t.Errorf("beside a running swarm at %s: %+v", a.HTTPAddr(), d)
	}
	if err := errors.Join(d.Close(), a.Publish(t.Context(), "in", event.New("E", "a", 1)), a.Settled(t.Context()), a.Stop(t.Context())); err != nil {
		t.Fatal(err)
	}
	if d, err = Connect(t.Context(), Where{Data: data}); err != nil {
		t.Fatal(err)
	}
	topics, err := d.Broker.Topics(t.Context(), "in", engine.DeadTopic("in"))
	if err != nil || topics[0].Partitions != topics[1].Partitions {
		t.Errorf("topics %+v, %v", topics, err)
	}
	leases, err := d.Ledger.Leases(t.Context(), "reader")
	if err != nil || len(leases) != defaultPartitions {
		t.Errorf("%d leases, %v", len(leases), err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}
