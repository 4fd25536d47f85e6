package engine

import (
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/fair"
	"github.com/swarmlog/swarmlog/ledger"
)

// task is a record on its way through its lane.
type task struct {
	record    broker.Record
	event     event.Event
	broken    error // why the record can't be decoded
	misrouted bool  // its key leads elsewhere: it's passed over here
	passed    bool  // it stands for records that the forwarding agent has nothing to do with
	from      int64 // first offset that the task finishes
	bytes     int64 // size of the record
	weight    int64 // what a step of it holds
	seen      *[16]byte
	again     bool   // ask seen before working: a copy may have been ahead in the lane
	parked    string // why its aggregate is parked, as of the running attempt's start

	lane        *lane
	attempt     int // runs
	failures    int // of them, those that count against the limit
	firstFailed time.Time
	started     time.Time    // of the running attempt; zero: not running
	charged     bool         // its weight is on the group's budget
	resting     bool         // waits for its next attempt
	haunts      []*partition // whose lane of this name waits for this handler to return
	cancel      func()       // ends the running attempt of a backlog row
	uses        []string     // what the last run of the handler said that it depends on
	ran         bool         // the last attempt was a run of the handler
	aside       bool         // on its way into the backlog, without having been in its aggregate's lane
	row         *ledger.Wait
}

// ident tells an event from another, within a group.
type ident struct{ source, id string }

func (t *task) ident() ident { return ident{t.event.Source, t.event.ID} }

// lane is the queue of one aggregate: its tasks are worked on one after the other, each once its predecessor has committed.
type lane struct {
	p     *partition
	key   string
	queue []*task
	busy  bool // the first task runs, waits for its commit or for its next attempt
}

// laneOf finds or makes the lane of a task. A record without an aggregate has no order to keep and gets a lane of
// its own. g.mu is held.
func (g *group) laneOf(p *partition, t *task) *lane {
	key := LaneKey(t.event.Subject, t.record.Offset)
	if t.row != nil { // a record that can't be decoded may name no aggregate, and waits in its row's all the same
		key = t.row.Subject
	}
	l := p.lanes[key]
	if l == nil {
		l = &lane{p: p, key: key}
		p.lanes[key] = l
	}
	return l
}

// push appends a task and makes the lane ready if it rests. g.mu is held.
func (l *lane) push(g *group, t *task) {
	t.lane = l
	l.queue = append(l.queue, t)
	if !l.busy && len(l.queue) == 1 {
		g.makeReady(l)
	}
}

// Extension attributes of an event that say who its work is for. Within a worker's limits tenants take turns, and work
// of class "interactive" has three turns for each of "batch", which is all other. Events that a step emits are of the
// same class and tenant as the one that it handles, unless they say otherwise.
const (
	ExtensionClass  = "class"
	ExtensionTenant = "tenant"
)

// makeReady queues a lane to be worked on, unless it's blocked by what others still carry. g.mu is held.
func (g *group) makeReady(l *lane) {
	if l.p.blocked[l.key] > 0 {
		return
	}
	t := l.queue[0]
	of := &g.ready
	if t.weight > g.spec.Limits.Bytes/4 {
		of = &g.heavy
	}
	of.Push(fair.ClassOf(t.event.Extension(ExtensionClass)), t.event.Extension(ExtensionTenant), l)
}

// dispatch starts what the limits allow. g.mu is held.
func (g *group) dispatch() {
	for t := g.next(); t != nil; t = g.next() {
		go g.work(t)
	}
}

// next takes the task that may run next, or nil. g.mu is held.
func (g *group) next() *task {
	if g.closed || g.running >= g.spec.Limits.Steps {
		return nil
	}
	if g.interrupted() {
		return g.probe()
	}
	l := g.pick()
	if l == nil {
		return nil
	}
	return g.begun(l)
}

// pick takes the lane that may go on next off its queue, or nil: light steps share a quarter of the weight limit, heavy
// ones the rest, so that neither can hold up the other. g.mu is held.
func (g *group) pick() *lane {
	limit := g.spec.Limits.Bytes
	if l, ok := g.heavy.Peek(); ok && g.heavyNow+l.queue[0].weight <= limit*3/4 {
		l, _ = g.heavy.Pop()
		return l
	}
	if l, ok := g.ready.Peek(); ok && (g.light == 0 || g.light+l.queue[0].weight <= limit/4) {
		l, _ = g.ready.Pop()
		return l
	}
	return nil
}

// begun notes that the first task of a lane is started, and puts its weight on the budget. g.mu is held.
func (g *group) begun(l *lane) *task {
	t := l.queue[0]
	l.busy = true
	g.running++
	g.atWork[t] = struct{}{}
	t.attempt++
	t.started, t.parked, t.charged = time.Now(), t.parkedBehind(), true
	if t.weight > g.spec.Limits.Bytes/4 {
		g.heavyNow += t.weight
	} else {
		g.light += t.weight
	}
	return t
}

// rested notes that a task's handler has returned. Its weight stays on the budget until it has settled or waits for
// another attempt: what a handler has collected is in memory until it is committed. g.mu is held.
func (g *group) rested(t *task) {
	t.started = time.Time{}
	delete(g.atWork, t)
	g.gone(t)
	g.running--
	if g.running == 0 {
		g.announce()
	}
}

// discharge takes a task's weight off the budget. g.mu is held.
func (g *group) discharge(t *task) {
	if !t.charged {
		return
	}
	t.charged = false
	if t.weight > g.spec.Limits.Bytes/4 {
		g.heavyNow -= t.weight
	} else {
		g.light -= t.weight
	}
}

// announce wakes those who wait for work to end. g.mu is held.
func (g *group) announce() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// forget takes a task out of the accounts. g.mu is held.
func (g *group) forget(p *partition, t *task) {
	g.discharge(t)
	p.pending--
	p.bytes -= t.bytes
	g.queued -= t.bytes
	if n := p.ids[t.ident()] - 1; n > 0 {
		p.ids[t.ident()] = n
	} else {
		delete(p.ids, t.ident())
	}
}

// account takes a task into the accounts. g.mu is held.
func (g *group) account(p *partition, t *task) {
	p.pending++
	p.bytes += t.bytes
	g.queued += t.bytes
	t.again = p.ids[t.ident()] > 0
	p.ids[t.ident()]++
}

// advance takes the settled first task off a lane and makes its successor ready. g.mu is held.
func (g *group) advance(l *lane) {
	t := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	l.busy = false
	p := l.p
	g.forget(p, t)
	g.relieve(p)
	if len(l.queue) > 0 {
		g.makeReady(l)
	} else if p.lanes[l.key] == l {
		delete(p.lanes, l.key)
	}
}

// relieve tells of a task that was taken off the accounts, and has a partition read again that was held back.
// g.mu is held.
func (g *group) relieve(p *partition) {
	signal(g.room)
	if p.pending == 0 || p.leaving {
		g.announce()
	}
	g.carriedDone(p)
	if p.held && p.pending <= partitionLow && p.bytes <= g.spec.Limits.Bytes/8 && !p.leaving && g.parts[p.id] == p {
		p.held = false
		p.clog.Stop()
		if !p.full {
			g.reader.Resume(p.id.topic, p.id.partition)
		}
	}
}
