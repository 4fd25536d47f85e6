package engine

import (
	"fmt"
	"time"
)

// wasQuiet says that no heartbeat came through for longer than leases last: the process was held up, or the database
// out of reach. What others have taken meanwhile is dropped by then; its steps commit nothing, and the leases that this
// worker works under from here on are new ones.
func (e *Engine) wasQuiet(quiet time.Duration, lost int, since time.Time) {
	text := fmt.Sprintf("worker %s was quiet for %s, longer than its leases last: it has lost %d partitions, and what was begun in those isn't committed",
		e.opts.Worker, quiet.Round(time.Millisecond), lost)
	e.log.Warn(text)
	e.opts.Notify(Notice{Time: time.Now(), Kind: NoticeQuiet, Text: text})
	e.journal.add(TypeWorkerQuiet, e.opts.Worker, QuietData{e.opts.Worker, quiet.Milliseconds(), lost}, since.UnixNano())
}

// watch tells of handlers that run on after their time is up, and ends the engine for one that goes on for too long:
// then the process can end, and other workers take over.
func (e *Engine) watch() {
	for _, g := range e.groups {
		t, started := g.longest()
		if t == nil {
			continue
		}
		over := time.Since(started) - g.spec.Limits.Timeout
		switch {
		case over > e.opts.StuckAfter:
			e.giveInTo(g, t, started)
		case over > min(30*time.Second, e.opts.StuckAfter/2):
			g.log.Error("a handler ignores its cancellation; its aggregate stands still until it returns", "subject", t.event.Subject,
				"at", t.record.Position, "over", over.Round(time.Second), "limit", e.opts.StuckAfter)
		}
	}
}

// longest is the handler that has been running the longest.
func (g *group) longest() (oldest *task, started time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for t := range g.atWork {
		if oldest == nil || t.started.Before(started) {
			oldest, started = t, t.started
		}
	}
	return oldest, started
}

// giveInTo ends the engine, once.
func (e *Engine) giveInTo(g *group, t *task, started time.Time) {
	ran := time.Since(started)
	err := fmt.Errorf("agent %s: the handler of %q at %s ignores its cancellation: it has been running for %s, with a limit of %s; "+
		"this worker ends so that others can go on: have the handler return when its context ends",
		g.spec.Name, t.event.Subject, t.record.Position, ran.Round(time.Millisecond), g.spec.Limits.Timeout)
	select {
	case e.stuck <- err:
		g.stepEvent(TypeAgentStuck, t, ran, nil)
		g.notice(NoticeStuck, t.lane.p, t.record.Offset, t.event.Subject, err.Error())
	default:
	}
}

// haunt keeps lanes of a partition that was taken again closed while handlers still run in them that were begun when
// this worker had it before, are neither carried nor look at their context: no handler is run a second time beside itself.
// g.mu is held.
func (g *group) haunt(p *partition) {
	for t := range g.atWork {
		if o := t.lane.p; o != p && o.fence.Key == p.fence.Key && t.over() {
			if p.blocked == nil {
				p.carried, p.blocked = map[int64]string{}, map[string]int{}
			}
			p.blocked[t.lane.key]++
			t.haunts = append(t.haunts, p)
		}
	}
}

// gone opens the lanes that a handler kept closed. g.mu is held.
func (g *group) gone(t *task) {
	for _, p := range t.haunts {
		g.openLane(p, t.lane.key)
	}
	t.haunts = nil
}
