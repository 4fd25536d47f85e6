package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// count keeps the number of a partition's rows in the backlog, and stops reading the partition while that is at the
// agent's bound: what is in the backlog costs the ledger, and somebody has to look. g.mu is held.
func (g *group) count(t *task, s *ledger.Step, r ledger.Result) {
	p := t.lane.p
	switch waits := r.Outcome == ledger.Waiting; {
	case waits && !s.FromBacklog:
		p.waiting++
	case !waits && s.FromBacklog && !t.row.Dead:
		p.waiting--
	default:
		return
	}
	g.limitBacklog(p)
}

// limitBacklog stops reading a partition, or goes on. What an owner before has finished or put into the backlog is read
// up to in any case: rows there go on only after what it left unfinished before them. g.mu is held.
func (g *group) limitBacklog(p *partition) {
	limit := g.spec.Limits.Waiting
	switch {
	case !p.full && p.waiting >= limit && p.delivered >= p.known:
		p.full = true
		if !p.held && g.reader != nil && g.parts[p.id] == p {
			g.reader.Pause(p.id.topic, p.id.partition)
		}
		text := fmt.Sprintf("%d records wait in the backlog, as many as are allowed: nothing more of the partition is read until some have gone on; "+
			"look at what is parked (swarmlog dlq list), or allow more (limits: waiting)", p.waiting)
		g.log.Error(text, "topic", p.id.topic, "partition", p.id.partition)
		g.notice(NoticeBacklog, p, p.next, "", text)
	case p.full && p.waiting < limit-limit/10:
		p.full = false
		if !p.held && !p.leaving && g.reader != nil && g.parts[p.id] == p {
			g.reader.Resume(p.id.topic, p.id.partition)
		}
		g.log.Info("partition is read again: its backlog has become smaller", "topic", p.id.topic, "partition", p.id.partition, "waiting", p.waiting)
		g.notice(NoticeBacklog, p, p.next, "", fmt.Sprintf("read again: %d records wait in the backlog", p.waiting))
	}
}

// missing is what is known of an aggregate that waits for an event before those that have come.
type missing struct {
	since time.Time
	asked bool // the ledger was asked since when
	told  bool
	what  string
}

// gapsAtOnce is how many aggregates a look asks the ledger about.
const gapsAtOnce = 32

// watchGaps tells of aggregates that have waited for an event longer than they may. They wait on: only the event, or a
// person, can let them go on without breaking their order.
func (g *group) watchGaps(ctx context.Context) {
	type late struct {
		p   *partition
		key string
	}
	var all []late
	now := time.Now()
	g.mu.Lock()
	for _, p := range g.parts {
		for key := range p.gaps {
			if !isGap(p.parked[key]) && p.drives[key] == nil {
				delete(p.gaps, key)
			}
		}
		for key, reason := range p.parked {
			if !isGap(reason) {
				continue
			}
			m := p.gaps[key]
			if m == nil {
				m = &missing{since: now}
				p.gaps[key] = m
			}
			if !m.told && (!m.asked || now.Sub(m.since) > g.spec.Limits.GapWait) && len(all) < gapsAtOnce {
				all = append(all, late{p, key})
			}
		}
	}
	g.mu.Unlock()
	for _, l := range all {
		rows, err := g.eng.opts.Ledger.Waits(ctx, ledger.WaitQuery{Group: g.spec.Name, Topic: l.p.id.topic, Subject: l.key, Limit: 1})
		if err != nil {
			if ctx.Err() == nil {
				g.log.Warn("since when an aggregate waits can't be asked; trying again", "subject", l.key, "error", err)
			}
			return
		}
		g.mu.Lock()
		if m := l.p.gaps[l.key]; m != nil {
			m.asked = true
			if len(rows) > 0 {
				m.what = rows[0].Reason
				if at := rows[0].Arrived; !at.IsZero() && at.Before(m.since) {
					m.since = at
				}
			}
			g.tellGap(l.p, l.key, m)
		}
		g.mu.Unlock()
	}
}

// tellGap tells once of an aggregate that has waited too long. g.mu is held.
func (g *group) tellGap(p *partition, key string, m *missing) {
	if m.told || time.Since(m.since) <= g.spec.Limits.GapWait {
		return
	}
	m.told = true
	text := fmt.Sprintf("waits since %s for an event that hasn't come (%s): publish it with its sequence and the aggregate goes on, or rewind the agent to before it",
		m.since.UTC().Format(time.RFC3339), m.what)
	g.log.Error("aggregate waits for a missing event", "topic", p.id.topic, "partition", p.id.partition, "subject", key, "since", m.since, "reason", m.what)
	g.notice(NoticeGap, p, p.next, key, text)
}

// GapStatus is an aggregate that has waited for a missing event longer than it may.
type GapStatus struct {
	Subject   string
	Topic     string
	Partition int32
	Since     time.Time
	Reason    string // which event is missing
}

// late lists aggregates of a partition that have waited too long. g.mu is held.
func (p *partition) late() (all []GapStatus) {
	for key, m := range p.gaps {
		if m.told {
			all = append(all, GapStatus{key, p.id.topic, p.id.partition, m.since, m.what})
		}
	}
	return all
}
