package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/sabotage"
	"github.com/swarmlog/swarmlog/ledger"
)

// What waits of an aggregate goes on as follows, whatever it waited for: a dead record that a person lets go, an
// earlier event of its sequence that has come, or the last owner, who hadn't finished.
//
//  1. From now on records of the aggregate that are read go to the backlog, behind what is there: they aren't queued in
//     its lane, so that however many there are, they hold up nobody (standAside).
//  2. A page of its rows is read, in their order, and those that may go on are queued in its lane. So no more than a
//     page of an aggregate is in memory, and of a few aggregates at a time (drivesAtOnce); the others wait for their turn.
//  3. When the last of them has settled, the next page is read. A row that stays (it died again, or an event before it is
//     still missing) ends the page, since what comes after it waits for it.
//  4. A page with nothing that may go on ends it, once it's certain that no record is on its way into the backlog:
//     what arrives is kept meanwhile. Where there was no row at all, the aggregate isn't parked any more, and what was
//     kept is the first in its lane.
//
// None of this is kept anywhere: rows leave the backlog in the commits of their steps, and whoever owns the partition
// next begins with what is left.

const (
	backlogPage  = 64      // rows of an aggregate that are in memory at a time, at most
	backlogBytes = 1 << 20 // of them, about
	drivesAtOnce = 16      // aggregates of an agent whose backlog goes on at the same time
)

// drive is an aggregate whose backlog goes on. group.mu guards it.
type drive struct {
	p       *partition
	key     string
	limit   int              // rows of the next page
	rows    int              // of the last page, in the lane and not settled
	begun   bool             // it's among the first drivesAtOnce
	early   bool             // the rows of the last page are further on than what was read of the log
	reading bool             // a page is being read
	grown   bool             // rows were added since the last page was asked for
	added   int64            // the lowest offset of those, or noOffset
	hot     bool             // records that were queued before it began are handled in its lane
	closing bool             // nothing was left that may go on
	kept    []*task          // what arrived since then
	last    map[string]int64 // the place in its history of the last event that is settled, by source
	barred  map[string]int64 // the lowest place that was found to be too early
}

// goesOn tells whether an aggregate that is parked for a reason may go on at once.
func goesOn(reason string) bool { return strings.HasPrefix(reason, ledger.GoOnReason) }

// waits tells whether records of an aggregate have to go to the backlog, and why. Behind a gap in the sequence they
// don't: there the ledger decides, since the missing event may be one of them.
func (p *partition) waits(key string) (reason string, waits bool) {
	if reason, waits = p.parked[key]; isGap(reason) {
		return "", false
	}
	return reason, waits
}

// driveOn lets the backlog of an aggregate go on, or has it looked at again where it does already. g.mu is held.
func (g *group) driveOn(p *partition, key string) *drive {
	if d := p.drives[key]; d != nil {
		d.grown = true
		g.readOn(d)
		return d
	}
	d := &drive{p: p, key: key, limit: 1, added: noOffset, last: map[string]int64{}, barred: map[string]int64{}}
	p.drives[key] = d
	if _, waits := p.waits(key); !waits {
		p.parked[key] = ledger.GoOnReason
	}
	g.due = append(g.due, d)
	g.driveDue()
	return d
}

// driveDue begins with as many aggregates as may go on at once. g.mu is held.
func (g *group) driveDue() {
	for g.driving < drivesAtOnce && len(g.due) > 0 {
		d := g.due[0]
		g.due = g.due[1:]
		if d.p.drives[d.key] != d {
			continue // its partition was lost
		}
		d.begun = true
		g.driving++
		g.readOn(d)
	}
}

// readOn reads the next page of an aggregate, once the last one is settled. g.mu is held.
func (g *group) readOn(d *drive) {
	p := d.p
	if !d.begun || d.reading || d.rows > 0 || g.closed || p.leaving || g.parts[p.id] != p {
		return
	}
	d.reading, d.grown, d.added, d.early = true, false, noOffset, false
	limit := d.limit
	g.eng.goDo(func() {
		rows, err := g.readBacklog(p, d.key, limit)
		tasks := make([]*task, len(rows))
		for i := range rows {
			rows[i].Subject = d.key
			tasks[i] = g.waiting(p, &rows[i])
		}
		if len(tasks) > 0 {
			g.askSeen(p.ctx, tasks)
		}
		g.arrived(d, tasks, err)
	})
}

// readBacklog reads rows, however long it takes, unless the partition is lost or the agent ends.
func (g *group) readBacklog(p *partition, key string, limit int) (rows []ledger.Wait, err error) {
	for attempt := 1; ; attempt++ {
		err = bounded(p.ctx, g.eng.opts.LeaseTime, func(ctx context.Context) error {
			rows, err = g.eng.opts.Ledger.Backlog(ctx, p.fence, key, limit)
			return err
		})
		g.mu.Lock()
		over := g.closed || p.leaving || p.ctx.Err() != nil
		g.mu.Unlock()
		if err == nil || over || errors.Is(err, ledger.ErrFenced) {
			return rows, err
		}
		g.log.Warn("backlog can't be read; trying again", "subject", key, "attempt", attempt, "error", err)
		if !sleep(p.ctx, backoff(attempt, 50*time.Millisecond, time.Second, g.eng.opts.Rand)) {
			return nil, err
		}
	}
}

// arrived queues what of a page may go on.
func (g *group) arrived(d *drive, rows []*task, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d.reading = false
	p := d.p
	switch {
	case p.drives[d.key] != d || p.leaving || g.closed:
		return
	case err != nil:
		if errors.Is(err, ledger.ErrFenced) {
			g.dropLocked(p)
		}
		return // the partition is lost, or about to be
	}
	turn := d.inTurn(rows)
	if d.early = len(turn) < len(rows); d.early && len(turn) == 0 {
		if d.added != noOffset { // it was added after the page was read
			g.readOn(d)
		}
		return
	}
	d.measure(rows)
	page := d.eligible(turn)
	if len(page) == 0 {
		g.exhausted(d, rows)
		return
	}
	d.rows, d.closing = len(page), false
	g.releaseKept(d)
	for _, t := range page {
		g.account(p, t)
		g.laneOf(p, t).push(g, t)
	}
	g.dispatch()
}

// measure makes the next page as large as is good for its memory, given what this one took.
func (d *drive) measure(rows []*task) {
	if len(rows) == 0 {
		return
	}
	size := int64(0)
	for _, t := range rows {
		size += t.bytes
	}
	fits := backlogBytes / (size/int64(len(rows)) + 1)
	d.limit = int(max(1, min(fits, int64(d.limit)*4, backlogPage)))
}

// eligible are the rows of a page that may go on: up to a dead record that nobody has released, and without those whose
// event comes too early in its sequence. Of a source whose place isn't known the first is tried: the ledger knows.
func (d *drive) eligible(rows []*task) []*task {
	next := map[string]int64{}
	tried := map[string]bool{}
	var page []*task
	for _, t := range rows {
		if t.row.Dead && !t.row.Released {
			break
		}
		source, n := t.event.Source, t.row.Sequence
		if n == 0 || t.row.Released {
			page = append(page, t)
			continue
		}
		if next[source] == 0 {
			next[source] = d.last[source]
		}
		switch known := next[source] > 0; {
		case known && n > next[source]+1, !known && (tried[source] || d.barred[source] > 0 && n >= d.barred[source]):
			continue
		case known:
			next[source] = max(next[source], n)
		default:
			tried[source] = true
		}
		page = append(page, t)
	}
	return page
}

// exhausted ends a drive whose next rows may not go on, or that has none. g.mu is held.
func (g *group) exhausted(d *drive, rows []*task) {
	p := d.p
	reason, stays := "", false
	if len(rows) > 0 {
		reason, stays = rows[0].row.Reason, rows[0].row.Dead
		if !stays && !isGap(reason) { // it waits for a place in its history all the same
			reason = ledger.GapReason
		}
	}
	if !stays { // else whatever comes waits too, and nothing can be missed
		if d.grown {
			g.readOn(d)
			return
		}
		if d.closing = true; len(p.flying[d.key]) > 0 || p.lanes[d.key] != nil {
			return // wentOn reads again
		}
	}
	if reason == "" {
		delete(p.parked, d.key)
	} else {
		p.parked[d.key] = reason
	}
	delete(p.drives, d.key)
	g.driving--
	g.log.Debug("backlog went on", "subject", d.key, "now", reason)
	g.releaseKept(d)
	g.driveDue()
	g.dispatch()
}

// releaseKept lets go on what arrived while a drive was about to end. g.mu is held.
func (g *group) releaseKept(d *drive) {
	kept := d.kept
	d.kept = nil
	for _, t := range kept {
		g.place(d.p, t)
	}
}

// place puts an admitted task where it belongs: into its lane, or into the backlog. Where others still carry a step of
// the aggregate its lane is closed, and what to do shows once it opens. g.mu is held.
func (g *group) place(p *partition, t *task) {
	key := LaneKey(t.event.Subject, t.record.Offset)
	if reason, waits := p.waits(key); waits && p.blocked[key] == 0 {
		g.standAside(p, key, t, reason)
		return
	}
	g.laneOf(p, t).push(g, t)
}

// standAside has a record wait in the backlog, without going through its lane: it runs no handler, and the order in
// which rows are added doesn't matter. g.mu is held.
func (g *group) standAside(p *partition, key string, t *task, reason string) {
	if d := p.drives[key]; d != nil && d.closing {
		d.kept = append(d.kept, t)
		return
	}
	t.lane = &lane{p: p, key: key, queue: []*task{t}, busy: true}
	t.aside = true
	p.flying.add(key, t.record.Offset)
	step := g.step(t, ledger.Waiting)
	step.Wait = g.row(t, reason)
	if t.seen != nil && t.broken == nil && t.event.Digest() == *t.seen {
		step = g.step(t, ledger.Duplicate)
	}
	g.eng.commits.add(finish{step: step, group: g, task: t})
	if sabotage.Is(sabotage.LaneFreedEarly) {
		g.advance(t.lane)
	}
}

// waiting makes a task of a backlog row.
func (g *group) waiting(p *partition, row *ledger.Wait) *task {
	t := g.open(broker.Record{Message: row.Message, TopicID: p.fence.TopicID,
		Position: event.Position{Topic: p.id.topic, Partition: p.id.partition, Offset: row.Offset}})
	t.row = row
	return t
}

// alone tells whether a task is of a dead record that was put back by itself: what came after it has gone on long ago,
// and doesn't wait for it should it die again.
func (t *task) alone() bool {
	return t.row != nil && t.row.Dead && !strings.HasPrefix(t.row.Reason, ledger.ParkedReason)
}

// wentOn acts on a settled step for the backlog of its aggregate. The step's lane has been advanced. g.mu is held.
func (g *group) wentOn(t *task, s *ledger.Step, r ledger.Result) {
	p, key := t.lane.p, t.lane.key
	if t.aside {
		p.flying.remove(key, t.record.Offset)
	}
	stays := r.Outcome == ledger.Waiting || r.Outcome == ledger.Dead && s.Wait != nil && s.Wait.Dead
	n := s.Event.Sequence
	settles := n > 0 && !stays && r.Outcome != ledger.Duplicate
	d := p.drives[key]
	if d == nil {
		if settles && t.row == nil && isGap(p.parked[key]) && g.parts[p.id] == p && !p.leaving {
			d = g.driveOn(p, key)
			d.last[s.Event.Source] = n
		}
		return
	}
	switch {
	case settles:
		d.last[s.Event.Source] = n
		delete(d.barred, s.Event.Source)
	case n > 0 && t.row != nil && r.Outcome == ledger.Duplicate: // its history is there at least
		d.last[s.Event.Source] = max(d.last[s.Event.Source], n)
	case stays && t.row == nil:
		d.grow(t.record.Offset)
	case stays && n > 0 && r.Outcome == ledger.Waiting:
		delete(d.last, s.Event.Source)
		if was := d.barred[s.Event.Source]; was == 0 || n < was {
			d.barred[s.Event.Source] = n
		}
	}
	if t.row != nil {
		d.rows--
		if stays {
			g.forgetRows(d)
		}
	}
	g.readOn(d)
}

// forgetRows takes the rows that are left of a page out of their lane: one before them stays where it is. g.mu is held.
func (g *group) forgetRows(d *drive) {
	l := d.p.lanes[d.key]
	if l == nil || d.rows == 0 {
		return
	}
	keep := l.queue[:0]
	for i, t := range l.queue {
		if t.row == nil || i == 0 && l.busy {
			keep = append(keep, t)
			continue
		}
		g.forget(d.p, t)
		d.rows--
	}
	clear(l.queue[len(keep):])
	l.queue = keep
	if len(keep) == 0 {
		g.unready(l)
		delete(d.p.lanes, d.key)
	}
	g.relieve(d.p)
}

// unready takes a lane off the queue of those that may go on. g.mu is held.
func (g *group) unready(l *lane) {
	same := func(x *lane) bool { return x == l }
	g.ready.Remove(same)
	g.heavy.Remove(same)
}

// forgetDrives ends what goes on of a partition's backlog, for whoever owns it next. g.mu is held.
func (g *group) forgetDrives(p *partition) {
	for key, d := range p.drives {
		for _, t := range d.kept {
			g.forget(p, t)
		}
		if d.begun {
			g.driving--
		}
		delete(p.drives, key)
	}
	g.due = slices.DeleteFunc(g.due, func(d *drive) bool { return d.p == p })
	g.driveDue()
}

// resume lets go on what of a partition's backlog may, when it was just taken. g.mu is held.
func (g *group) resume(p *partition) {
	for key, reason := range p.parked {
		if isGap(reason) || goesOn(reason) {
			g.driveOn(p, key)
		}
	}
}

// lookAtAsks asks for what people have decided about what waits, and acts on it. A decision is taken off the list before rows
// are read: one that comes meanwhile is told anew.
func (e *Engine) lookAtAsks(ctx context.Context) error {
	if !e.anyDead() {
		return nil // there's nothing to decide about
	}
	asks, err := e.opts.Ledger.Asks(ctx, e.opts.Worker)
	if err != nil {
		return fmt.Errorf("ask what people have decided: %w", err)
	}
	subjects := map[ledger.Fence][]string{}
	for _, a := range asks {
		subjects[a.Fence] = append(subjects[a.Fence], a.Subject)
	}
	for f, of := range subjects {
		g := e.groupOf(f)
		if g == nil {
			continue // it isn't worked on here, or not any more: the next owner sees what is released
		}
		if err := e.opts.Ledger.Answer(ctx, f, of...); err != nil {
			if errors.Is(err, ledger.ErrFenced) {
				continue
			}
			return fmt.Errorf("take up what people have decided about %d aggregates: %w", len(of), err)
		}
		g.reconsider(f, of)
	}
	return nil
}

// reconsider has the backlogs of aggregates looked at.
func (g *group) reconsider(f ledger.Fence, subjects []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.parts {
		if p.fence != f || p.leaving {
			continue
		}
		for _, subject := range subjects {
			g.driveOn(p, subject)
		}
	}
}

// groupOf is the agent that works on a lease, if it does.
func (e *Engine) groupOf(f ledger.Fence) *group {
	for _, g := range e.groups {
		g.mu.Lock()
		for _, p := range g.parts {
			if p.fence == f && !p.leaving {
				g.mu.Unlock()
				return g
			}
		}
		g.mu.Unlock()
	}
	return nil
}

// anyDead tells whether a record has ever died of the partitions that this worker has.
func (e *Engine) anyDead() bool {
	for _, g := range e.groups {
		g.mu.Lock()
		for _, p := range g.parts {
			if p.dead {
				g.mu.Unlock()
				return true
			}
		}
		g.mu.Unlock()
	}
	return false
}
