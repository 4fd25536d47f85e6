package topics

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// A version runs beside an agent: it changes nothing and publishes nothing, and what it would have emitted is compared.
func TestShadowIsComparedAndTakesNoEffect(t *testing.T) {
	onBoth(t, func(p *pair) {
		in, out, other := p.topic("in", 4), p.topic("out", 4), p.topic("other", 4)
		next := func(e event.Event, n int) event.Event {
			return event.New("Next", e.Subject, map[string]any{"of": e.ID, "n": n})
		}
		agent := engine.Agent{Name: p.name + ".r", Reads: []string{in}, Emits: []string{out, other}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			p.note("r", e, s)
			s.Emit(next(e, 1))
			if e.Subject == "three" {
				s.Emit(next(e, 2))
				s.Emit(next(e, 3))
			}
			return nil
		}}
		version := agent
		version.Name = ""
		version.Limits = engine.Limits{Attempts: 2, Backoff: time.Millisecond}
		version.Handle = func(_ context.Context, e event.Event, s *engine.Step) error {
			p.note("version", e, s)
			switch e.Subject {
			case "three", "silent":
			case "refused":
				s.Refuse("not mine")
			case "other":
				s.Emit(next(e, 99))
			case "elsewhere":
				s.EmitTo(other, next(e, 1))
			case "more":
				s.Emit(next(e, 1))
				s.Emit(next(e, 2))
			case "broken":
				return fault.Permanentf("the version can't do it")
			case "flaky":
				return errors.New("not today")
			default:
				s.Emit(next(e, 1))
			}
			return nil
		}
		shadow, err := engine.Shadow(agent, version)
		check(p.t, err)
		e, _ := p.run(p.options("w"), append([]engine.Agent{agent}, shadow...)...)
		subjects := []string{"three", "silent", "refused", "other", "elsewhere", "more", "broken", "flaky"}
		for i := range 20 {
			subjects = append(subjects, fmt.Sprintf("same-%d", i))
		}
		for _, s := range subjects {
			p.produce(numbered(in, s, 1, 1)...)
		}
		p.settle(e)
		name := agent.Name + ".shadow"
		r, err := engine.ReportShadow(context.Background(), p.ledger, agent.Name, name, 2, time.Now().Add(time.Minute))
		check(p.t, err)
		want := map[engine.Verdict]int64{engine.VerdictEqual: 21, engine.VerdictDiffers: 2, engine.VerdictOnlyPrimary: 5,
			engine.VerdictOnlyShadow: 1, engine.VerdictFailed: 2}
		for v, n := range want {
			if r.Counts[v] != n {
				p.t.Errorf("%s: %d, want %d", v, r.Counts[v], n)
			}
		}
		if len(r.Counts) != len(want) || len(r.Examples) != 7 {
			p.t.Errorf("counts %v, %d examples", r.Counts, len(r.Examples))
		}
		if !slices.ContainsFunc(r.Examples, func(x engine.ShadowExample) bool {
			return x.Verdict == engine.VerdictFailed && x.Reason == "the version can't do it" && x.EventID == "broken-v001"
		}) {
			p.t.Errorf("examples: %+v", r.Examples)
		}
		soon, err := engine.ReportShadow(context.Background(), p.ledger, agent.Name, name, 2, time.Now())
		check(p.t, err)
		if soon.Counts[engine.VerdictWaiting] != 1 || soon.Counts[engine.VerdictOnlyShadow] != 0 {
			p.t.Errorf("what the primary may still emit counts as %v", soon.Counts)
		}
		if ids := p.done("version"); len(ids) != 0 || len(p.done("r")) != len(subjects) {
			p.t.Errorf("the shadow's effects: %v", ids)
		}
		for topic, n := range map[string]int{out: len(subjects) + 2, other: 0, engine.DeadTopic(in): 0} {
			got := 0
			check(p.t, broker.ReadAll(context.Background(), p.broker, topic, func(broker.Record) error { got++; return nil }))
			if got != n {
				p.t.Errorf("%d records in %s, want %d", got, topic, n)
			}
		}
		if c := p.counters(name); c != (ledger.Counters{Applied: int64(len(subjects))}) {
			p.t.Errorf("counters of the shadow: %+v", c)
		}
		check(p.t, p.ledger.Setup(context.Background(), engine.ForgetShadow(name)))
		r, err = engine.ReportShadow(context.Background(), p.ledger, agent.Name, name, 2, time.Now())
		if err != nil || len(r.Counts) != 0 {
			p.t.Errorf("after all was forgotten: %v %v", r.Counts, err)
		}
	})
}
