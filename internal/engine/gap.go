package engine

import (
	"context"
	"fmt"
	"strings"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/ledger"
)

// gapPage is how many backlog rows of an aggregate are let go at a time.
const gapPage = 256

func isGap(reason string) bool { return strings.HasPrefix(reason, ledger.GapReason) }

// released reads the backlog rows that may go on now that a step has closed the gap before them. While rows that were
// released before are still ahead in the lane nothing is read: the last of them looks for more.
func (g *group) released(t *task, s *ledger.Step, r ledger.Result) []*task {
	p, n := t.lane.p, s.Event.Sequence
	parks := s.Wait != nil && s.Wait.Dead
	if n == 0 || parks || r.Outcome == ledger.Duplicate || r.Outcome == ledger.Waiting {
		return nil
	}
	g.mu.Lock()
	l := t.lane
	skip := p.passed || p.handing || !isGap(p.parked[l.key]) || (len(l.queue) > 1 && l.queue[1].row != nil)
	g.mu.Unlock()
	if skip {
		return nil
	}
	rows, err := g.eng.opts.Ledger.Backlog(p.ctx, p.fence, l.key, gapPage)
	if err != nil {
		// Taking the partition again reads all that waits; to go on without it would leave these rows behind.
		g.log.Warn("backlog can't be read; the partition is taken again", "subject", l.key, "error", err)
		g.drop(p)
		return nil
	}
	if len(rows) == 0 {
		g.mu.Lock()
		delete(p.parked, l.key)
		g.mu.Unlock()
	}
	var tasks []*task
	for i := range rows {
		if rows[i].Dead || rows[i].Sequence > n+1 {
			break
		}
		n = max(n, rows[i].Sequence)
		tasks = append(tasks, g.waiting(p, &rows[i]))
	}
	return tasks
}

// waiting makes a task of a backlog row.
func (g *group) waiting(p *partition, row *ledger.Wait) *task {
	t := g.open(broker.Record{Message: row.Message, TopicID: p.fence.TopicID,
		Position: event.Position{Topic: p.id.topic, Partition: p.id.partition, Offset: row.Offset}})
	t.row = row
	return t
}

// gaps reads the first row of each aggregate that waits for an earlier event of its sequence: that event may have
// come, and its follower not, before the last owner ended. If it still waits, the ledger says so again.
func (g *group) gaps(ctx context.Context, p *partition) ([]*task, error) {
	var tasks []*task
	for subject, reason := range p.parked {
		if !isGap(reason) {
			continue
		}
		rows, err := g.eng.opts.Ledger.Backlog(ctx, p.fence, subject, 1)
		if err != nil {
			return nil, fmt.Errorf("read what waits of %s: %w", subject, err)
		}
		if len(rows) > 0 && !rows[0].Dead {
			tasks = append(tasks, g.waiting(p, &rows[0]))
		}
	}
	return tasks, nil
}
