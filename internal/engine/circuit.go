package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/internal/circuit"
	"github.com/swarmlog/swarmlog/internal/fault"
)

// dependencies bounds how many are told apart in an agent; those beyond share one circuit.
const (
	dependencies = 64
	otherwise    = "other dependencies"
)

// breaker is the circuit of something that an agent's steps depend on. While it's open the agent starts nothing but its
// probe: records that come in fill their lanes, and then reading pauses. What failed by it stays at the head of its
// lane, neither dead nor counted as failed, and is what it's probed with.
type breaker struct {
	name    string
	circuit circuit.Circuit
	told    bool    // steps say when they use it, so others prove nothing
	held    []*task // failed by it
	probe   *task   // the one that is under way
	timer   *time.Timer
}

// CircuitStatus is what an agent knows of something that its steps depend on.
type CircuitStatus struct {
	Dependency string
	State      circuit.State
	Reason     circuit.Reason // why it's open
	Cause      string         // the error that opened it, or of the last probe
	Since      time.Time
	Probe      time.Time // when it's tried next, while it's open
	Held       int       // steps that wait for it
}

func (g *group) circuits() []CircuitStatus {
	var all []CircuitStatus
	for _, b := range g.breakers {
		s := CircuitStatus{Dependency: b.name, Held: len(b.held)}
		s.State, s.Reason, s.Cause, s.Since = b.circuit.State()
		if s.State == circuit.Open {
			s.Probe = b.circuit.Next()
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(x, y CircuitStatus) int { return cmp.Compare(x.Dependency, y.Dependency) })
	return all
}

// breaker finds or makes the circuit of a dependency; nil for "". g.mu is held.
func (g *group) breaker(name string) *breaker {
	if name == "" {
		return nil
	}
	if b := g.breakers[name]; b != nil {
		return b
	}
	if len(g.breakers) >= dependencies {
		name = otherwise
		if b := g.breakers[name]; b != nil {
			return b
		}
	}
	if g.breakers == nil {
		g.breakers = map[string]*breaker{}
	}
	b := &breaker{name: name, circuit: circuit.Circuit{MaxWait: g.spec.Limits.MaxWait, Rand: g.eng.opts.Rand}}
	g.breakers[name] = b
	return b
}

// interrupted tells whether a circuit is open, so that nothing but probes may start. g.mu is held.
func (g *group) interrupted() bool { return g.openCircuits > 0 }

// probe takes a task that is to try, for an open circuit, whether what it depends on is back; nil where none is due.
// Where something is down, it's a task that failed by it. Where it refuses everything it's another one if there is any,
// since what it refused may have been wrong. g.mu is held.
func (g *group) probe() *task {
	now := time.Now()
	for _, b := range g.breakers {
		if b.circuit.Closed() || b.probe != nil || now.Before(b.circuit.Next()) {
			continue
		}
		t := g.candidate(b)
		if t == nil {
			continue // the next one that is ready is it
		}
		b.circuit.Probe(now)
		b.probe = t
		return t
	}
	return nil
}

func (g *group) candidate(b *breaker) *task {
	_, why, _, _ := b.circuit.State()
	fresh := why == circuit.Refusing && len(b.held) < g.spec.Limits.Steps
	if fresh || len(b.held) == 0 {
		if l := g.pick(); l != nil {
			return g.begun(l)
		}
	}
	for len(b.held) > 0 {
		t := b.held[0]
		b.held = slices.Delete(b.held, 0, 1)
		if t.resting { // else its partition has gone on without it
			t.resting = false
			return g.begun(t.lane)
		}
	}
	return nil
}

// answered notes what the end of a task's attempt without an error says of what it depends on. g.mu is held.
func (g *group) answered(t *task) {
	now := time.Now()
	for _, b := range g.breakers {
		uses := slices.Contains(t.uses, b.name)
		b.told = b.told || uses
		proves := t.ran && (uses || !b.told)
		switch {
		case b.probe == t && proves:
			g.closeCircuit(b, now)
		case b.probe == t:
			b.probe = nil
			b.circuit.Dropped(now)
		case proves:
			b.circuit.Succeeded(now)
		}
	}
}

// dropProbe says that a task came to nothing, as where its partition was lost. g.mu is held.
func (g *group) dropProbe(t *task) {
	for _, b := range g.breakers {
		if b.probe == t {
			b.probe = nil
			b.circuit.Dropped(time.Now())
		}
	}
}

// interrupts notes what a failed attempt says of what it depends on, and tells whether the task waits for that. last
// says that the task would be dead-lettered.
func (g *group) interrupts(t *task, err error, last bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.breaker(fault.DependencyOf(err))
	for _, other := range g.breakers {
		if other != b && other.probe == t {
			g.endProbe(other, err)
		}
	}
	if b == nil {
		return false
	}
	if t.lane.p.leaving || t.over() {
		g.dropProbe(t)
		if b.circuit.Closed() {
			return false
		}
		g.giveIn(t)
		return true
	}
	b.told = b.told || slices.Contains(t.uses, b.name)
	waits := false
	switch {
	case fault.ClassOf(err) == fault.Unavailable:
		waits = g.down(b, t, err)
	case last:
		waits = g.refused(b, t, err)
	case b.probe == t:
		g.endProbe(b, err)
	}
	if waits {
		g.discharge(t) // it may have failed in its commit
		b.held, t.resting = append(b.held, t), true
		g.eng.opts.Meter.Retried(g.spec.Name)
		g.log.Debug("step waits for what it depends on", "dependency", b.name, "at", t.record.Position, "subject", t.event.Subject, "error", err)
	}
	g.dispatch()
	return waits
}

// down notes that a dependency was down for a task. g.mu is held.
func (g *group) down(b *breaker, t *task, err error) (waits bool) {
	now, cause, after := time.Now(), FirstLine(err.Error()), fault.AfterOf(err)
	switch {
	case b.probe == t:
		b.probe = nil
		b.circuit.Missed(now, cause, after)
	case b.circuit.Failed(now, cause, after):
		g.opened(b)
	case b.circuit.Closed():
		return false
	}
	g.arm(b)
	return true
}

// refused notes that a dependency answered a task with an error that no other attempt can mend. While it answers
// nothing else, nothing dies of it. g.mu is held.
func (g *group) refused(b *breaker, t *task, err error) (waits bool) {
	now, cause := time.Now(), FirstLine(err.Error())
	_, why, _, _ := b.circuit.State()
	switch {
	case b.probe == t && why == circuit.Refusing:
		b.probe = nil
		b.circuit.Missed(now, cause, fault.AfterOf(err))
	case b.probe == t: // it was down, and answers again
		g.closeCircuit(b, now)
		b.circuit.Refused(now, cause)
		return false
	case b.circuit.Refused(now, cause):
		g.opened(b)
	case b.circuit.Closed():
		return false
	}
	g.arm(b)
	return true
}

// endProbe ends a probe that failed for another reason. What says nothing of the dependency lets another one start at
// once; what may come from it doesn't. g.mu is held.
func (g *group) endProbe(b *breaker, err error) {
	b.probe = nil
	if fault.ClassOf(err) == fault.Permanent {
		b.circuit.Dropped(time.Now())
	} else {
		b.circuit.Missed(time.Now(), FirstLine(err.Error()), 0)
	}
	g.arm(b)
}

// opened tells that a circuit opened. g.mu is held.
func (g *group) opened(b *breaker) {
	g.openCircuits++
	_, why, cause, _ := b.circuit.State()
	text := fmt.Sprintf("%s is down: nothing is started until it's back, and it's tried from time to time (%s)", b.name, cause)
	if why == circuit.Refusing {
		text = fmt.Sprintf("%s answers nothing but errors, %d in a row: nothing more is dead-lettered or started until it answers otherwise; "+
			"look at it, and at what is asked of it (%s)", b.name, circuit.Refusals, cause)
	}
	g.log.Error("circuit opened: the agent pauses", "dependency", b.name, "reason", why, "cause", cause)
	g.notice(NoticeCircuit, nil, 0, "", text)
}

// closeCircuit lets go on what waited for a dependency. g.mu is held.
func (g *group) closeCircuit(b *breaker, now time.Time) {
	_, _, _, since := b.circuit.State()
	b.circuit.Passed(now)
	b.probe = nil
	g.openCircuits--
	held := b.held
	b.held = nil
	for _, t := range held {
		g.rerun(t)
	}
	g.log.Info("circuit closed: the agent goes on", "dependency", b.name, "held", len(held), "after", now.Sub(since).Round(time.Millisecond))
	g.notice(NoticeCircuit, nil, 0, "", b.name+" is back")
}

// arm sees to it that a probe starts when it's due. g.mu is held.
func (g *group) arm(b *breaker) {
	if b.timer != nil {
		b.timer.Stop()
	}
	b.timer = time.AfterFunc(max(time.Until(b.circuit.Next()), 0)+time.Millisecond, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.dispatch()
	})
}

// forgetHeld drops a partition's tasks that wait for a dependency: whoever has it next reads them again. g.mu is held.
func (g *group) forgetHeld(p *partition) {
	for _, b := range g.breakers {
		for i := 0; i < len(b.held); {
			t := b.held[i]
			if t.lane.p != p {
				i++
				continue
			}
			b.held = slices.Delete(b.held, i, i+1)
			g.abandon(t)
		}
	}
}
