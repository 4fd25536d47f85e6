package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/ledger"
)

// unreadable acts on a partition that the reader has given up: it's silent until it's added again.
func (g *group) unreadable(ctx context.Context, p *partition, err error) {
	switch {
	case errors.Is(err, broker.ErrTopicGone):
		g.log.Warn("topic was deleted or created anew; its partition is given up", "topic", p.id.topic, "partition", p.id.partition)
		g.drop(p)
		g.eng.topics.nudge(err)
		return
	case errors.Is(err, broker.ErrOutOfRange):
		if err = g.skipLost(ctx, p); err == nil {
			return
		}
	}
	g.readLater(p, err)
}

// readLater adds a partition to the reader again after a wait.
func (g *group) readLater(p *partition, why error) {
	g.mu.Lock()
	p.troubles++
	n := p.troubles
	g.mu.Unlock()
	wait := backoff(n, 100*time.Millisecond, 10*time.Second, g.eng.opts.Rand)
	g.eng.topics.nudge(why)
	g.log.Warn("partition can't be read; trying again", "topic", p.id.topic, "partition", p.id.partition, "wait", wait, "error", why)
	if n == 1 {
		g.notice(NoticeStall, p, p.from, "", "can't be read: "+FirstLine(why.Error()))
	}
	time.AfterFunc(wait, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.parts[p.id] == p && p.ctx.Err() == nil && !p.leaving && !g.closed {
			g.readFrom(p)
		}
	})
}

// readFrom has a partition read from its place, whatever the reader did with it before. g.mu is held.
func (g *group) readFrom(p *partition) {
	g.reader.Remove(p.id.topic, p.id.partition)
	g.reader.Add(p.topic, p.id.partition, p.from)
	if p.held || p.full {
		g.reader.Pause(p.id.topic, p.id.partition)
	}
}

var errStillQueued = errors.New("records before the ones that were deleted are still being worked on")

// skipLost goes on at the log's start where retention overtook this reader, and says what was lost. What was delivered
// before that is worked on first: progress must not pass over it. An offset beyond the log's end means that the log
// went back: then the agent stops, since going on would skip what comes next.
func (g *group) skipLost(ctx context.Context, p *partition) error {
	r, err := g.logRange(ctx, p.topic, p.id.partition)
	if err != nil {
		return fmt.Errorf("ask the log's range: %w", err)
	}
	g.mu.Lock()
	from, pending := p.from, p.pending
	g.mu.Unlock()
	switch {
	case from > r.End && g.isAnother(ctx, p.topic):
		g.drop(p)
		g.eng.topics.nudge(broker.ErrTopicGone)
		return nil
	case from > r.End:
		g.fail(fmt.Errorf("topic %s, partition %d ends at %d, but progress stands at %d: the log went back; restore it, or create the topic anew",
			p.id.topic, p.id.partition, r.End, from))
		return nil
	case from >= r.Start:
		return errors.New("the offset is in the log after all")
	case pending > 0:
		return errStillQueued
	}
	lost, err := g.eng.opts.Ledger.Skip(ctx, p.fence, r.Start)
	if errors.Is(err, ledger.ErrFenced) {
		g.drop(p)
		return nil
	}
	if err != nil {
		return fmt.Errorf("move progress to the log's start: %w", err)
	}
	g.mu.Lock()
	p.next, p.finished = p.finished.Add(ledger.Span{From: p.next, To: r.Start - 1}).Advance(p.next)
	p.from = max(p.from, r.Start)
	if g.parts[p.id] == p {
		g.readFrom(p)
	}
	g.mu.Unlock()
	text := fmt.Sprintf("%d records lost: offsets %d to %d were deleted from the log before they were read; give the topic a longer retention", lost, from, r.Start-1)
	g.log.Error(text, "topic", p.id.topic, "partition", p.id.partition)
	g.notice(NoticeLost, p, from, "", text)
	return nil
}

// isAnother tells whether a topic's name belongs to another one by now.
func (g *group) isAnother(ctx context.Context, t broker.Topic) bool {
	found, err := g.eng.opts.Broker.Topics(ctx, t.Name)
	return errors.Is(err, broker.ErrNoTopic) || (err == nil && found[0].ID != t.ID)
}

// logRange is what the log holds of a partition.
func (g *group) logRange(ctx context.Context, topic broker.Topic, partition int32) (broker.Range, error) {
	ranges, err := g.eng.opts.Broker.Offsets(ctx, topic.Name)
	if err != nil {
		return broker.Range{}, err
	}
	if int(partition) >= len(ranges) {
		return broker.Range{}, broker.ErrNoTopic
	}
	return ranges[partition], nil
}

// onset tells of something that fails again and again: once aloud when it begins, and until it's over in a low voice. An
// outage of minutes is one line in the log then.
type onset struct {
	say, more func(msg string, args ...any)
	begun     bool
}

func (o *onset) tell(msg string, args ...any) {
	if o.begun {
		o.more(msg, args...)
		return
	}
	o.begun = true
	o.say(msg, args...)
}

func (o *onset) over() { o.begun = false }
