package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// Giving a partition up, in order:
//
//  1. Nothing more of it is read or started, and what hasn't been started is forgotten: the next owner reads it again.
//  2. Running steps and their commits have a short while (Options.Patience), unless all that is left has been running
//     for so long that it won't be done in that time.
//  3. The lease is passed, with what still runs as carried rows. While that is under way, whatever comes of those
//     steps waits in partition.after, since nobody can say which fence they are under.
//  4. From then on they are fenced by their carried rows. They commit with Step.Carried; one that fails is put down,
//     and the next owner runs it again. The partition isn't among group.parts any more but in group.carrying, until
//     its last step is settled.
//
// A step that was handed to the committer before 3 and is refused after it wasn't committed: it's handed in again, as
// carried. One that was committed before 3, and whose row was written nevertheless, has its row put down.
//
// A step of a backlog row isn't carried, since its row's going couldn't be told from its progress: it's cancelled, and
// the next owner reads the row again.

// longRunning is how long a step must have been running for nobody to wait that it ends within Options.Patience.
const longRunning = time.Second

// leave hands a partition to another worker, or to whoever comes first where to is "".
func (g *group) leave(ctx context.Context, p *partition, to string) {
	g.mu.Lock()
	if g.reader != nil {
		g.reader.Remove(p.id.topic, p.id.partition)
	}
	g.forgetQueued(p)
	g.forgetResting(p)
	g.mu.Unlock()
	now := time.Now()
	_ = bounded(ctx, g.eng.opts.Patience, func(ctx context.Context) error {
		g.await(ctx, func() bool { return g.parts[p.id] != p || p.settledBut(now.Add(-longRunning)) })
		return nil
	})
	carried, ok := g.handOut(p)
	if !ok {
		return // lost meanwhile
	}
	passed, err := g.pass(ctx, p, to, carried)
	if err != nil {
		g.log.Warn("lease can't be passed on; it will expire", "topic", p.id.topic, "partition", p.id.partition, "error", err)
	}
	g.handed(p, passed, to, len(carried))
}

// settledBut tells whether all that was started of a partition is settled, but steps that have been running since a
// time. group.mu is held.
func (p *partition) settledBut(since time.Time) bool {
	if len(p.flying) > 0 {
		return false
	}
	for _, l := range p.lanes {
		if l.busy && len(l.queue) > 0 {
			if at := l.queue[0].started; at.IsZero() || at.After(since) {
				return false
			}
		}
	}
	return true
}

// handOut lists the steps to be carried, and has what comes of them wait until the lease is passed.
func (g *group) handOut(p *partition) (carried []ledger.Carried, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.parts[p.id] != p || p.handing || p.ctx.Err() != nil {
		return nil, false
	}
	g.forgetQueued(p)
	g.forgetResting(p)
	p.handing = true
	for _, l := range p.lanes {
		if !l.busy || len(l.queue) == 0 {
			continue
		}
		t := l.queue[0]
		if t.row != nil {
			if t.cancel != nil {
				t.cancel()
			}
			continue
		}
		carried = append(carried, ledger.Carried{Offset: t.record.Offset, Subject: t.event.Subject, Worker: g.eng.opts.Worker, Epoch: p.fence.Epoch})
	}
	return carried, true
}

// pass gives the lease away. An answer that was lost makes the next try a refusal: then it was passed, or somebody has
// taken it, and the carried rows tell which.
func (g *group) pass(ctx context.Context, p *partition, to string, carried []ledger.Carried) (passed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.eng.opts.LeaseTime)
	defer cancel()
	for attempt := 1; ; attempt++ {
		if to == "" && len(carried) == 0 {
			err = g.eng.opts.Ledger.Release(ctx, p.fence)
		} else {
			err = g.eng.opts.Ledger.Pass(ctx, p.fence, to, carried, g.eng.opts.LeaseTime)
		}
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, ledger.ErrFenced):
			return attempt > 1, nil
		}
		if !sleep(ctx, backoff(attempt, 20*time.Millisecond, time.Second, g.eng.opts.Rand)) {
			return false, err
		}
	}
}

// handed ends the hand-over: steps go on as carried ones, or are cancelled where the lease is lost.
func (g *group) handed(p *partition, passed bool, to string, carried int) {
	g.mu.Lock()
	p.handing = false
	if passed {
		p.passed = true
		if p.pending > 0 {
			g.carrying[p] = struct{}{}
		}
		g.forgetPart(p)
		text := "left"
		if to != "" {
			text = "passed to " + to
		}
		g.log.Info("partition passed on", "topic", p.id.topic, "partition", p.id.partition, "epoch", p.fence.Epoch, "to", to, "carried", carried)
		g.notice(NoticeLease, p, p.next, "", text)
		what := "left"
		if to != "" || carried > 0 {
			what = "passed"
		}
		g.moved(p, what, to, carried)
	} else {
		g.dropLocked(p)
	}
	after := p.after
	p.after = nil
	g.mu.Unlock()
	for _, f := range after {
		f()
	}
}

// later has f run, under no lock, once the lease of a partition that is just being passed is passed; false where that
// isn't so. g.mu is held.
func (p *partition) later(f func()) bool {
	if p.handing {
		p.after = append(p.after, f)
	}
	return p.handing
}

// putDown says that a carried step has ended without a commit of its own. g.mu is held.
func (g *group) putDown(p *partition, offset int64) {
	if p.later(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.putDown(p, offset)
	}) {
		return
	}
	if p.passed {
		g.eng.ended.add(p.fence, offset)
	}
}

// over tells whether nothing can come of a task any more: its partition is lost, or was passed on without it. g.mu is
// held.
func (t *task) over() bool {
	p := t.lane.p
	return p.ctx.Err() != nil || ((p.passed || p.handing) && t.row != nil)
}

// resubmit hands a step in again that was refused under the fence of a lease which has been passed on, if it's
// carried. g.mu is held.
func (g *group) resubmit(t *task, s *ledger.Step) bool {
	p := t.lane.p
	if p.later(func() { g.settle([]settlement{{task: t, step: s, result: ledger.Result{Err: ledger.ErrFenced}}}) }) {
		return true
	}
	if !p.passed || s.Carried || t.row != nil {
		return false
	}
	s.Carried = true
	g.eng.commits.add(finish{step: s, group: g, task: t})
	return true
}

// forgetResting drops tasks of a partition that wait for their next attempt: the next owner runs them. g.mu is held.
func (g *group) forgetResting(p *partition) {
	for _, l := range p.lanes {
		if l.busy && len(l.queue) > 0 && l.queue[0].resting {
			g.abandon(l.queue[0])
		}
	}
}

// carriedDone forgets a partition that was passed on once the last of its steps is settled. g.mu is held.
func (g *group) carriedDone(p *partition) {
	if p.passed && p.pending == 0 {
		delete(g.carrying, p)
		p.lose()
	}
}

// stopAdmitting ends reading and forgets what hasn't been started. It returns the partitions that are to be given up.
func (g *group) stopAdmitting() (parts []*partition) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, b := range g.breakers {
		if b.timer != nil {
			b.timer.Stop()
		}
	}
	for _, p := range g.parts {
		if !p.leaving {
			parts = append(parts, p)
		}
		p.leaving = true
		g.forgetQueued(p)
	}
	return parts
}

// handOverAll gives partitions up at once, for other workers to go on with them while this one ends.
func (g *group) handOverAll(ctx context.Context, parts []*partition) {
	var all sync.WaitGroup
	for _, p := range parts {
		all.Go(func() { g.leave(ctx, p, g.eng.plannedFor(p.fence.Key)) })
	}
	all.Wait()
}

// awaitRunning waits for running handlers until ctx ends, and cancels those that are left.
func (g *group) awaitRunning(ctx context.Context) {
	g.await(ctx, func() bool { return g.running == 0 })
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running > 0 {
		g.log.Warn("steps still run after the drain time; they are cancelled and will run again", "steps", g.running)
		for _, p := range g.parts {
			p.lose()
		}
		for p := range g.carrying {
			p.lose()
		}
	}
}

// ended are carried steps whose rows are to be put down.
type ended struct {
	mu    sync.Mutex
	steps map[ledger.Fence][]int64
	wake  chan struct{}
}

func (e *ended) add(f ledger.Fence, offset int64) {
	e.mu.Lock()
	e.steps[f] = append(e.steps[f], offset)
	e.mu.Unlock()
	signal(e.wake)
}

// run puts rows down until ctx ends. It tries until it succeeds: the heartbeat would keep a row that nobody works on,
// and its aggregate would stand still.
func (e *ended) run(ctx context.Context, eng *Engine) {
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		e.mu.Lock()
		steps := e.steps
		e.steps = map[ledger.Fence][]int64{}
		e.mu.Unlock()
		failed := false
		for f, offsets := range steps {
			if err := eng.opts.Ledger.PutDown(ctx, f, offsets...); err != nil {
				if failed = true; ctx.Err() == nil {
					eng.log.Warn("carried steps can't be put down; trying again", "group", f.Group, "partition", f.Partition, "error", err)
				}
				for _, offset := range offsets {
					e.add(f, offset)
				}
			}
		}
		if !failed {
			failures = 0
			continue
		}
		failures++
		if !sleep(ctx, backoff(failures, 100*time.Millisecond, 5*time.Second, eng.opts.Rand)) {
			return
		}
	}
}

// dropCarried cancels what is carried: its rows have expired.
func (g *group) dropCarried() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for p := range g.carrying {
		p.lose()
	}
}
