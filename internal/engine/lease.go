package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/ledger"
)

// keepLeases renews what this worker owns and takes what is free, until ctx ends.
//
// A worker that can't renew goes on only as long as its leases last by its own clock; what makes that safe isn't
// the clock but the epoch, which every commit compares.
func (e *Engine) keepLeases(ctx context.Context) {
	every := e.opts.LeaseTime / 3
	renewed := time.Now()
	reported := time.Now()
	for round := 0; ; round++ {
		began := time.Now()
		if err := bounded(ctx, e.opts.LeaseTime, e.renew); err == nil {
			renewed = began
			// Whatever else there is to do has until the next heartbeat is due.
			_ = bounded(ctx, every, func(ctx context.Context) error {
				e.share(ctx)
				e.shared.Store(true)
				if time.Since(reported) >= min(every, 5*time.Second) {
					reported = time.Now()
					e.report(ctx)
				}
				if round%64 == 63 {
					e.prune(ctx)
				}
				return nil
			})
		} else if ctx.Err() == nil {
			e.log.Warn("leases can't be renewed", "error", err, "since", time.Since(renewed).Round(time.Second))
			if time.Since(renewed) > e.opts.LeaseTime {
				e.loseAll()
			}
		}
		e.watch()
		if !sleep(ctx, every) {
			return
		}
	}
}

// bounded runs f with a bound on its time.
func bounded(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return f(ctx)
}

// renew writes the heartbeat and drops what someone else owns by now.
func (e *Engine) renew(ctx context.Context) error {
	w := ledger.Worker{ID: e.opts.Worker, Pool: e.opts.Pool, Started: e.started}
	for _, g := range e.groups {
		running, oldest := g.load()
		w.InFlight += running
		if !oldest.IsZero() && (w.Oldest.IsZero() || oldest.Before(w.Oldest)) {
			w.Oldest = oldest
		}
	}
	held, err := e.opts.Ledger.Beat(ctx, w, e.opts.LeaseTime)
	if err != nil {
		return err
	}
	mine := make(map[ledger.Key]int64, len(held))
	for _, f := range held {
		mine[f.Key] = f.Epoch
	}
	for _, g := range e.groups {
		g.keepOnly(mine)
	}
	for _, s := range e.sources {
		s.keepOnly(mine)
	}
	return nil
}

// share takes free partitions up to this worker's share of each group, and gives back what is above it.
func (e *Engine) share(ctx context.Context) {
	leases, err := e.opts.Ledger.Leases(ctx, "")
	if err == nil {
		var workers []ledger.Worker
		if workers, err = e.opts.Ledger.Workers(ctx, e.opts.LeaseTime); err == nil {
			for _, g := range e.groups {
				g.take(ctx, leases, workers)
			}
			for _, s := range e.sources {
				s.take(ctx)
			}
			e.disown(ctx, leases)
			return
		}
	}
	if ctx.Err() == nil {
		e.log.Warn("leases can't be listed", "error", err)
	}
}

// disown gives back leases in this worker's name that it doesn't work on. Its heartbeat renews all of them, also
// those that a life before it had and that are above its share by now: without this nobody would ever have them.
func (e *Engine) disown(ctx context.Context, leases []ledger.Lease) {
	mine := map[ledger.Key]bool{}
	for _, g := range e.groups {
		for _, f := range g.fences() {
			mine[f.Key] = true
		}
	}
	for _, s := range e.sources {
		for _, f := range s.fences() {
			mine[f.Key] = true
		}
	}
	var others []ledger.Fence
	for _, l := range leases {
		if l.Owner == e.opts.Worker && !mine[l.Key] {
			others = append(others, l.Fence)
		}
	}
	if len(others) == 0 {
		return
	}
	if err := e.opts.Ledger.Release(ctx, others...); err != nil && ctx.Err() == nil {
		e.log.Warn("leases that this worker doesn't work on can't be released", "leases", len(others), "error", err)
	}
}

func (e *Engine) loseAll() {
	for _, g := range e.groups {
		g.keepOnly(nil)
	}
	for _, s := range e.sources {
		s.keepOnly(nil)
	}
}

func (e *Engine) prune(ctx context.Context) {
	rows, err := e.opts.Ledger.Prune(ctx, e.opts.Horizon, e.opts.Keep)
	if err != nil && ctx.Err() == nil {
		e.log.Warn("old rows can't be removed", "error", err)
	}
	if rows > 0 {
		e.log.Info("old rows removed", "rows", rows)
	}
}

// report writes progress where Kafka's tools look for it. It's for people: nothing reads it back.
func (e *Engine) report(ctx context.Context) {
	for _, g := range e.groups {
		next := g.progress()
		if len(next) == 0 {
			continue
		}
		if err := e.opts.Broker.Report(ctx, e.opts.Swarm+"."+g.spec.Name, next); err != nil && ctx.Err() == nil {
			g.log.Debug("progress can't be reported to the broker", "error", err)
			continue
		}
		g.reported(next)
	}
}

// watch tells of handlers that run on after their time is up.
func (e *Engine) watch() {
	for _, g := range e.groups {
		_, oldest := g.load()
		if over := time.Since(oldest) - g.spec.Limits.Timeout; !oldest.IsZero() && over > 30*time.Second {
			g.log.Error("a handler ignores its cancellation; its aggregate stands still until it returns", "over", over.Round(time.Second))
		}
	}
}

// take acquires partitions that nobody owns, up to a share, or gives back what is above it: above the largest share
// at once, and above the smallest one by one while another worker has less than that.
func (g *group) take(ctx context.Context, leases []ledger.Lease, workers []ledger.Worker) {
	if g.failure() != nil {
		g.giveUp(ctx)
		return
	}
	free := g.free(leases)
	g.mu.Lock()
	own := len(g.parts)
	total := 0
	for _, t := range g.topics {
		total += int(t.Partitions)
	}
	var surplus []*partition
	share, keep := g.shares(total, leases, workers)
	if own > keep {
		keep = max(keep, min(own-1, share))
	}
	for _, p := range g.parts {
		if own-len(surplus) > keep && !p.leaving {
			p.leaving = true
			surplus = append(surplus, p)
		}
	}
	g.mu.Unlock()
	for _, p := range surplus {
		g.eng.goDo(func() { g.leave(context.WithoutCancel(ctx), p) })
	}
	var taken []*partition
	for _, id := range free {
		if own >= share || ctx.Err() != nil {
			break
		}
		if p := g.acquire(ctx, id); p != nil {
			own++
			taken = append(taken, p)
		}
	}
	g.read(taken)
}

// shares are the most partitions that a worker should have, and how many this one may keep: fewer, by one at most,
// while another has less than the smallest share.
func (g *group) shares(total int, leases []ledger.Lease, workers []ledger.Worker) (most, keep int) {
	alive := max(1, len(workers))
	most = (total + alive - 1) / alive
	counts := map[string]int{}
	for _, l := range leases {
		if l.Group == g.spec.Name && l.Held {
			counts[l.Owner]++
		}
	}
	for _, w := range workers {
		if w.ID != g.eng.opts.Worker && counts[w.ID] < total/alive {
			return most, total / alive
		}
	}
	return most, most
}

// read has partitions read that were just taken: all at once, since a reader asks for those that it knows, and for
// others only once that has been answered.
func (g *group) read(taken []*partition) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range taken {
		if g.reader != nil && g.parts[p.id] == p {
			g.reader.Add(p.topic, p.id.partition, p.from)
		}
	}
}

// giveUp releases what a failed agent still holds, so that another worker may try. What the agent had committed before
// is published first: later rounds come back to this.
func (g *group) giveUp(ctx context.Context) {
	fences := g.fences()
	if len(fences) == 0 {
		return
	}
	for _, f := range fences {
		if rows, err := g.eng.opts.Ledger.Outbox(ctx, f, 0, 1); err != nil || len(rows) > 0 {
			return
		}
	}
	g.keepOnly(nil)
	if err := g.eng.opts.Ledger.Release(ctx, fences...); err != nil && ctx.Err() == nil {
		g.log.Warn("leases of a stopped agent can't be released", "error", err)
	}
}

// free lists the partitions that this worker doesn't own and that may be had: first those in its own name from before
// it was restarted, then those without a lease or with an expired one.
func (g *group) free(leases []ledger.Lease) []partID {
	taken, own := map[ledger.Key]bool{}, map[partID]bool{}
	for _, l := range leases {
		switch {
		case l.Group != g.spec.Name:
		case l.Owner == g.eng.opts.Worker:
			own[partID{l.Topic, l.Partition}] = true
		default:
			taken[l.Key] = l.Owner != "" && l.Held
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var free []partID
	for _, t := range g.topics {
		for n := range t.Partitions {
			id := partID{t.Name, n}
			if g.parts[id] == nil && !taken[ledger.Key{Group: g.spec.Name, TopicID: t.ID, Partition: n}] {
				free = append(free, id)
			}
		}
	}
	slices.SortFunc(free, func(a, b partID) int {
		if own[a] != own[b] {
			if own[a] {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
	})
	return free
}

// acquire takes one lease and makes its partition, which is to be read then.
func (g *group) acquire(ctx context.Context, id partID) *partition {
	g.mu.Lock()
	topic := g.topics[id.topic]
	g.mu.Unlock()
	held, err := g.logRange(ctx, topic, id.partition)
	if err != nil {
		if ctx.Err() == nil {
			g.log.Warn("the log's range can't be asked", "topic", id.topic, "partition", id.partition, "error", err)
		}
		return nil
	}
	key := ledger.Key{Group: g.spec.Name, TopicID: topic.ID, Partition: id.partition}
	lease, err := g.eng.opts.Ledger.Acquire(ctx, key, topic.Name, g.eng.opts.Worker, held.Start, g.eng.opts.LeaseTime)
	if err != nil {
		if !errors.Is(err, ledger.ErrHeld) && ctx.Err() == nil {
			g.log.Warn("lease can't be taken", "topic", id.topic, "partition", id.partition, "error", err)
		}
		return nil
	}
	p, err := g.begin(ctx, topic, id, lease, held.End)
	if err != nil {
		g.log.Warn("what waits in the backlog can't be read; the lease is given back", "topic", id.topic, "partition", id.partition, "error", err)
		_ = g.eng.opts.Ledger.Release(ctx, lease.Fence) // it would be taken again in any case
		return nil
	}
	return p
}

// begin makes a partition whose lease was taken, with what of its backlog may go on.
func (g *group) begin(ctx context.Context, topic broker.Topic, id partID, lease ledger.Lease, end int64) (*partition, error) {
	p := &partition{id: id, topic: topic, fence: lease.Fence, from: lease.Next, next: lease.Next, end: end,
		finished: lease.Finished.Clone(), lanes: map[string]*lane{}, ids: map[ident]int{}}
	var err error
	if p.parked, err = g.eng.opts.Ledger.Parked(ctx, lease.Fence); err != nil {
		return nil, err
	}
	if p.parked == nil {
		p.parked = map[string]string{}
	}
	waiting, err := g.gaps(ctx, p)
	if err != nil {
		return nil, err
	}
	p.ctx, p.lose = context.WithCancel(context.Background())
	g.eng.relay.adopt(lease.Fence, lease.Seq)
	g.mu.Lock()
	g.births++
	p.born = g.births
	g.parts[id] = p
	for _, t := range waiting {
		g.account(p, t)
		g.laneOf(p, t).push(g, t)
	}
	g.dispatch()
	g.mu.Unlock()
	g.eng.opts.Meter.LeaseTaken(g.spec.Name)
	g.log.Debug("partition taken", "topic", id.topic, "partition", id.partition, "epoch", lease.Epoch, "next", lease.Next)
	g.notice(NoticeLease, p, lease.Next, "", "taken")
	return p, nil
}

// keepOnly drops partitions whose lease isn't among those held.
func (g *group) keepOnly(held map[ledger.Key]int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.parts {
		if epoch, ok := held[p.fence.Key]; !ok || epoch != p.fence.Epoch {
			g.dropLocked(p)
		}
	}
}

func (g *group) drop(p *partition) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropLocked(p)
}

// dropLocked forgets a partition: its running steps are cancelled, and what they did can't commit under the old
// epoch. g.mu is held.
func (g *group) dropLocked(p *partition) {
	if g.parts[p.id] != p {
		return
	}
	delete(g.parts, p.id)
	p.lose()
	if g.reader != nil {
		g.reader.Remove(p.id.topic, p.id.partition)
	}
	g.eng.relay.leave(p.fence)
	g.forgetQueued(p)
	g.announce()
	g.eng.opts.Meter.LeaseLost(g.spec.Name)
	g.log.Info("partition left", "topic", p.id.topic, "partition", p.id.partition, "epoch", p.fence.Epoch)
	g.notice(NoticeLease, p, p.next, "", "left")
}

// leave gives a partition back in order: nothing more is admitted, running steps get the drain time, then the
// lease is released for another worker.
func (g *group) leave(ctx context.Context, p *partition) {
	ctx, cancel := context.WithTimeout(ctx, g.eng.opts.Drain)
	defer cancel()
	g.mu.Lock()
	if g.reader != nil {
		g.reader.Remove(p.id.topic, p.id.partition)
	}
	g.forgetQueued(p)
	g.mu.Unlock()
	g.await(ctx, func() bool { return p.pending == 0 || g.parts[p.id] != p })
	g.drop(p)
	err := bounded(context.WithoutCancel(ctx), g.eng.opts.Drain, func(ctx context.Context) error {
		return g.eng.opts.Ledger.Release(ctx, p.fence)
	})
	if err != nil {
		g.log.Warn("lease can't be released; it will expire", "topic", p.id.topic, "partition", p.id.partition, "error", err)
	}
}

// forgetQueued drops tasks of a partition that haven't been started: they will be read again. g.mu is held.
func (g *group) forgetQueued(p *partition) {
	others := func(lanes []*lane) []*lane {
		return slices.DeleteFunc(lanes, func(l *lane) bool { return l.p == p })
	}
	g.ready, g.heavy = others(g.ready), others(g.heavy)
	for key, l := range p.lanes {
		keep := 0
		if l.busy {
			keep = 1
		}
		for _, t := range l.queue[keep:] {
			g.forget(p, t)
		}
		l.queue = l.queue[:keep]
		if keep == 0 {
			delete(p.lanes, key)
		}
	}
	signal(g.room)
}

// await waits until a condition on what g.mu guards holds, or ctx ends.
func (g *group) await(ctx context.Context, done func() bool) {
	for {
		g.mu.Lock()
		ok, changed := done(), g.changed
		g.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// stopAdmitting ends reading and forgets what hasn't been started.
func (g *group) stopAdmitting() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, p := range g.parts {
		p.leaving = true
		g.forgetQueued(p)
	}
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
	}
}

func (g *group) fences() []ledger.Fence {
	g.mu.Lock()
	defer g.mu.Unlock()
	var fences []ledger.Fence
	for _, p := range g.parts {
		fences = append(fences, p.fence)
	}
	return fences
}

// progress is the next offset of each owned partition, by topic.
func (g *group) progress() map[string]map[int32]int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := map[string]map[int32]int64{}
	for _, p := range g.parts {
		if p.next == p.reported {
			continue
		}
		if next[p.id.topic] == nil {
			next[p.id.topic] = map[int32]int64{}
		}
		next[p.id.topic][p.id.partition] = p.next
	}
	return next
}

// reported notes what the broker has been told.
func (g *group) reported(next map[string]map[int32]int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.parts {
		if n, ok := next[p.id.topic][p.id.partition]; ok {
			p.reported = n
		}
	}
}

// load is how many handlers run and when the oldest of them was started.
func (g *group) load() (running int, oldest time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.parts {
		if at := p.oldest(); !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
			oldest = at
		}
	}
	return g.running, oldest
}

func (p *partition) oldest() (oldest time.Time) {
	for _, l := range p.lanes {
		if l.busy && len(l.queue) > 0 {
			if at := l.queue[0].started; !at.IsZero() && (oldest.IsZero() || at.Before(oldest)) {
				oldest = at
			}
		}
	}
	return oldest
}
