package engine

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/circuit"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/sabotage"
	"github.com/swarmlog/swarmlog/ledger"
)

// work runs one attempt of a task, and then of whatever may run next, until nothing may: a goroutine for each task
// would have to grow its stack each time.
func (g *group) work(t *task) {
	for t != nil {
		t = g.workOn(t)
	}
}

// workOn runs one attempt of a task, hands what came of it to the committer and takes the next task, if there's one.
func (g *group) workOn(t *task) (next *task) {
	p := t.lane.p
	step, err := g.attempt(t)
	if err == nil && p.ctx.Err() == nil {
		g.submit(t, step) // before the handler counts as ended: whoever waits for that then waits for the commit too
		g.mu.Lock()
		defer g.mu.Unlock()
		g.rested(t)
		g.answered(t)
		next = g.next()
		g.dispatch()
		return next
	}
	g.mu.Lock()
	g.rested(t)
	g.discharge(t)
	if t.over() {
		g.dropProbe(t)
		g.giveIn(t)
		err = nil
	}
	next = g.next()
	g.dispatch()
	g.mu.Unlock()
	if err != nil {
		g.failedAttempt(t, err)
	}
	return next
}

// submit queues a step for the next commit.
func (g *group) submit(t *task, step *ledger.Step) {
	g.mu.Lock()
	p := t.lane.p
	switch {
	case p.later(func() { g.submit(t, step) }):
		g.mu.Unlock()
		return
	case t.over():
		g.giveIn(t)
		g.mu.Unlock()
		return
	}
	step.Carried = p.passed
	g.mu.Unlock()
	g.eng.commits.add(finish{step: step, group: g, task: t})
	if sabotage.Is(sabotage.LaneFreedEarly) {
		g.mu.Lock()
		g.advance(t.lane)
		g.dispatch()
		g.mu.Unlock()
	}
}

// attempt decides what is to become of a task's record, running the handler where it is for the handler to say.
func (g *group) attempt(t *task) (*ledger.Step, error) {
	p := t.lane.p
	t.uses, t.ran = nil, false
	if t.misrouted || t.passed {
		return g.unhandled(t)
	}
	if t.broken != nil && t.parked == "" { // behind a dead record it waits like any other: an aggregate has one at its head
		return nil, fault.As(fault.Permanent, t.broken)
	}
	if t.again && t.seen == nil {
		g.askSeen(p.ctx, []*task{t})
	}
	if t.seen != nil {
		if digest := t.event.Digest(); digest != *t.seen {
			return g.conflicting(t, conflict(digest, *t.seen)), nil
		}
		return g.step(t, ledger.Duplicate), nil
	}
	if t.parked != "" {
		s := g.step(t, ledger.Waiting)
		s.Wait = g.row(t, t.parked)
		return s, nil
	}
	if !g.handles(t.event) {
		return g.step(t, ledger.Ignored), nil
	}
	if hops := t.event.Hops(); hops > g.spec.Limits.Hops {
		return nil, fault.Permanentf("event came %d hops from its origin, over the limit of %d: agents feed each other in a circle", hops, g.spec.Limits.Hops)
	}
	if at, ok := t.event.RecordedTime(); ok && t.appended().Sub(at) > g.eng.opts.Horizon {
		return nil, fault.Permanentf("too old to tell whether it was handled before: recorded at %s, appended at %s, and ids are kept for %s",
			at.Format(time.RFC3339), t.appended().Format(time.RFC3339), g.eng.opts.Horizon)
	}
	return g.handle(t)
}

// handles tells whether the agent handles an event's type. Tombstones (records without a value) are for those who
// ask for them.
func (g *group) handles(e event.Event) bool {
	if len(g.spec.Types) == 0 {
		return !e.Tombstone()
	}
	return slices.Contains(g.spec.Types, e.Type)
}

// handle runs the handler once and turns what it collected into a step.
func (g *group) handle(t *task) (*ledger.Step, error) {
	p := t.lane.p
	ctx, cancel := context.WithTimeout(p.ctx, g.spec.Limits.Timeout)
	defer cancel()
	if t.row != nil {
		g.mu.Lock()
		t.cancel = cancel
		if t.over() { // the partition was given up before there was anything to cancel
			cancel()
		}
		g.mu.Unlock()
	}
	s := &Step{
		agent: g.spec.Name, targets: g.spec.Emits, infer: g.eng.opts.Inferrer, position: t.record.Position, attempt: t.attempt, failures: t.failures,
		call: Call{Fence: p.fence, Offset: t.record.Offset, Source: t.event.Source, EventID: t.event.ID, Agent: g.spec.Name},
	}
	began := time.Now()
	err := safely(func() error { return g.spec.Handle(ctx, t.event, s) })
	g.eng.opts.Meter.Stepped(g.spec.Name, time.Since(began))
	t.uses, t.ran = s.used(), true
	if err == nil {
		err = s.err
	}
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil && p.ctx.Err() == nil {
			g.stepEvent(TypeStepTimedOut, t, time.Since(began), nil)
			err = fmt.Errorf("handler ran over its limit of %s: %w", g.spec.Limits.Timeout, err)
		}
		return nil, err
	}
	if s.outcome != 0 {
		return g.step(t, s.outcome), nil
	}
	step := g.step(t, ledger.Applied)
	step.Effects = s.effects
	step.Emits, err = g.eng.outgoing(g.spec.Name, t.event, s.emits)
	return step, err
}

// safely turns a panic into an error.
func safely(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return f()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// step is the frame of a task's step.
func (g *group) step(t *task, outcome ledger.Outcome) *ledger.Step {
	s := &ledger.Step{
		Fence: t.lane.p.fence, From: t.from, Offset: t.record.Offset, LogTime: t.record.Time,
		CRC: crc32.Checksum(t.record.Value, castagnoli), FromBacklog: t.row != nil, Outcome: outcome,
		Event: ledger.Identity{Source: t.event.Source, ID: t.event.ID, Subject: t.event.Subject, Positional: t.event.Positional},
	}
	if outcome == ledger.Applied {
		s.Event.Digest = t.event.Digest()
	}
	if n, ok := t.event.Sequence(); ok && outcome != ledger.Duplicate {
		s.Event.Sequence = n // the history goes on past an event, whatever became of it
		s.Wait = g.row(t, "")
	}
	return s
}

// row is a task's record as a backlog row.
func (g *group) row(t *task, reason string) *ledger.Wait {
	w := &ledger.Wait{Subject: t.lane.key, Reason: reason, Offset: t.record.Offset, Message: t.record.Message}
	if n, ok := t.event.Sequence(); ok {
		w.Sequence = n
	}
	return w
}

// parkedBehind is why the task's aggregate is parked behind a dead record, or "". Behind a gap in the sequence it
// isn't parked: there the ledger decides, since the missing event may be this one. g.mu is held.
func (t *task) parkedBehind() string {
	if t.row != nil {
		return ""
	}
	if d := t.lane.p.drives[t.lane.key]; d != nil && d.hot && !t.aside { // one that failed to go aside tries that again
		return ""
	}
	reason, _ := t.lane.p.waits(t.lane.key)
	return reason
}

// failedAttempt decides, by the error's class, between another attempt, the dead letters and the agent's end. Where
// what it depends on is down, the task waits for that.
func (g *group) failedAttempt(t *task, err error) {
	class := fault.ClassOf(err)
	if g.letGo(t, class, err) {
		return
	}
	if t.firstFailed.IsZero() {
		t.firstFailed = time.Now()
	}
	last := class == fault.Transient && t.failures+1 >= g.spec.Limits.Attempts
	if class != fault.Fatal && g.interrupts(t, err, class == fault.Permanent || last) {
		return
	}
	switch {
	case class == fault.Fatal:
		g.fail(fmt.Errorf("event %s at %s: %w", t.event.ID, t.record.Position, err))
	case class == fault.Permanent:
		g.submit(t, g.dead(t, err))
	case last:
		g.submit(t, g.dead(t, fmt.Errorf("%d attempts failed: %w", t.failures+1, err)))
	default:
		if class == fault.Transient {
			t.failures++
		}
		wait := max(backoff(t.attempt, g.spec.Limits.Backoff, g.spec.Limits.MaxWait, g.eng.opts.Rand), min(fault.AfterOf(err), circuit.MaxAsked))
		g.eng.opts.Meter.Retried(g.spec.Name)
		g.log.Log(context.Background(), g.loudness(class), "step failed; it will run again", "at", t.record.Position, "subject", t.event.Subject, "attempt", t.attempt, "wait", wait, "error", err)
		g.notice(NoticeRetry, t.lane.p, t.record.Offset, t.event.Subject, FirstLine(err.Error()))
		g.mu.Lock()
		defer g.mu.Unlock()
		if t.lane.p.leaving { // since letGo looked
			g.giveIn(t)
			return
		}
		t.resting = true
		time.AfterFunc(wait, func() { g.retry(t) })
	}
}

// letGo takes failed attempts away whose retry is for the next owner of the partition: where the lease is being given
// up only what is certain is still committed, and where it has been passed on nothing.
func (g *group) letGo(t *task, class fault.Class, err error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := t.lane.p
	switch {
	case p.later(func() { g.failedAttempt(t, err) }):
		return true
	case p.passed:
		g.log.Info("carried step failed; the partition's owner runs it again", "at", t.record.Position, "subject", t.event.Subject, "error", err)
	case p.leaving && (class == fault.Transient || class == fault.Unavailable):
	default:
		return false
	}
	g.dropProbe(t)
	g.giveIn(t)
	return true
}

// giveIn ends a task here, for whoever owns its partition next. g.mu is held.
func (g *group) giveIn(t *task) {
	g.abandon(t)
	if t.row == nil {
		g.putDown(t.lane.p, t.record.Offset)
	}
}

// tellUnavailable is how often it is told, of an agent, that something it needs is down: each of its steps finds out.
const tellUnavailable = 30 * time.Second

// loudness is the level at which a failed attempt is logged.
func (g *group) loudness(class fault.Class) slog.Level {
	if class != fault.Unavailable {
		return slog.LevelWarn
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.toldUnavailable) < tellUnavailable {
		return slog.LevelDebug
	}
	g.toldUnavailable = time.Now()
	return slog.LevelWarn
}

// retry makes a task's lane ready again.
func (g *group) retry(t *task) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rerun(t)
	g.dispatch()
}

// rerun makes a task's lane ready again, if its partition is still there. g.mu is held.
func (g *group) rerun(t *task) {
	if !t.resting || t.lane.p.ctx.Err() != nil {
		g.abandon(t)
		return
	}
	t.resting = false
	if sabotage.Is(sabotage.LaneFreedEarly) { // its lane has gone on without it
		t.lane = &lane{p: t.lane.p, key: t.lane.key, queue: []*task{t}}
	}
	g.discharge(t) // it may have failed in its commit
	t.lane.busy = false
	g.makeReady(t.lane)
}

// abandon forgets a task whose partition was lost. g.mu is held.
func (g *group) abandon(t *task) {
	l := t.lane
	if len(l.queue) == 0 || l.queue[0] != t {
		return
	}
	t.resting = false
	for _, q := range l.queue[1:] {
		g.forget(l.p, q)
	}
	l.queue = l.queue[:1]
	g.advance(l)
}
