package engine_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
)

func TestShadowsAgents(t *testing.T) {
	t.Parallel()
	h := func(context.Context, event.Event, *engine.Step) error { return nil }
	of := engine.Agent{Name: "r", Reads: []string{"a", "b"}, Emits: []string{"x"}, Handle: h}
	for _, c := range []struct {
		of, version engine.Agent
		names       []string
		err         string
	}{
		{of, engine.Agent{Handle: h}, []string{"r.shadow", "r.shadow.compare"}, ""},
		{of, engine.Agent{Name: "r", Handle: h}, []string{"r.shadow", "r.shadow.compare"}, ""},
		{of, engine.Agent{Name: "r2", Reads: []string{"b", "a"}, Emits: []string{"y"}, Handle: h}, []string{"r2", "r2.compare"}, ""},
		{engine.Agent{Name: "r", Reads: []string{"a"}, Handle: h}, engine.Agent{Handle: h}, []string{"r.shadow"}, ""},
		{of, engine.Agent{Reads: []string{"a"}, Handle: h}, nil, "let them read the same"},
		{of, engine.Agent{}, nil, "needs a name, and its version a handler"},
		{engine.Agent{}, engine.Agent{Handle: h}, nil, "needs a name"},
	} {
		agents, err := engine.Shadow(c.of, c.version)
		if (err != nil) != (c.err != "") || (err != nil && !strings.Contains(err.Error(), c.err)) {
			t.Errorf("error %v, want %q", err, c.err)
		}
		var names []string
		for _, a := range agents {
			names = append(names, a.Name)
		}
		if !slices.Equal(names, c.names) {
			t.Errorf("agents %v, want %v", names, c.names)
		}
		if len(agents) == 2 && c.version.Emits != nil && !slices.Equal(agents[1].Reads, []string{"x", "y"}) {
			t.Errorf("the comparer reads %v", agents[1].Reads)
		}
	}
}

// What a shadow can't decode makes no letter, and parks nothing.
func TestShadowMakesNoLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	agent := recorder("r", "a")
	version := engine.Agent{Handle: func(context.Context, event.Event, *engine.Step) error { return nil }}
	shadow, err := engine.Shadow(agent, version)
	must(t, err)
	e, _ := w.start(w.options("w"), append([]engine.Agent{agent}, shadow...)...)
	w.publishRaw("a", event.Message{Key: []byte("s"), Value: []byte("neither")})
	w.publish("a", numbered(1, 3)...)
	w.settle(e)
	if c := w.counters("r.shadow"); c.Dead != 1 || c.Applied != 3 {
		t.Errorf("counters of the shadow: %+v", c)
	}
	if letters := w.dead("a"); len(letters) != 1 {
		t.Errorf("%d letters of one record", len(letters))
	}
}

// Comparing with an agent that has noted nothing, since it never ran or is no shadow, finds nothing.
func TestShadowThatNotedNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	r, err := engine.ReportShadow(t.Context(), w.ledger, "r", "r.shadow", 1, time.Now())
	if err != nil || len(r.Counts) != 0 {
		t.Errorf("report %+v, error %v", r, err)
	}
}
