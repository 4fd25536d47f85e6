package engine

import (
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// A hot aggregate has more records than its lane can work off: they fill what a partition may have queued, and then
// nothing else of the partition is read. Once that has been so for unclogAfter, all but the first of its records go to
// the backlog, and what comes of it goes there too, until it has caught up. So others wait for it for a moment at most,
// and it pays, in commits, for what it delays.

const (
	unclogAfter = time.Second
	hotQueue    = 256 // records that a hot lane keeps
)

// watchClog looks, a while after a partition was held back, whether one aggregate alone is why. g.mu is held.
func (g *group) watchClog(p *partition) {
	p.clog = time.AfterFunc(unclogAfter, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if !p.held || p.leaving || g.closed || g.parts[p.id] != p {
			return
		}
		g.unclog(p)
		if p.held {
			g.watchClog(p)
		}
	})
}

// unclog sends most of the longest lane's records to the backlog, if they are the larger part of what is queued.
// g.mu is held.
func (g *group) unclog(p *partition) {
	var hot *lane
	for _, l := range p.lanes {
		if hot == nil || len(l.queue) > len(hot.queue) {
			hot = l
		}
	}
	if hot == nil || len(hot.queue) < 2*hotQueue || len(hot.queue) < p.pending/2 || p.blocked[hot.key] > 0 {
		return
	}
	if _, waits := p.waits(hot.key); waits || p.drives[hot.key] != nil || isGap(p.parked[hot.key]) {
		return // it's in the backlog already
	}
	g.log.Info("hot aggregate: what comes of it waits in the backlog until it has caught up", "topic", p.id.topic, "partition", p.id.partition,
		"subject", hot.key, "queued", len(hot.queue))
	tail := append([]*task(nil), hot.queue[hotQueue:]...)
	clear(hot.queue[hotQueue:])
	hot.queue = hot.queue[:hotQueue:hotQueue]
	p.parked[hot.key] = ledger.GoOnReason + ": it has more records than it can work off"
	for _, t := range tail {
		g.standAside(p, hot.key, t, p.parked[hot.key])
	}
	g.driveOn(p, hot.key).hot = true
}
