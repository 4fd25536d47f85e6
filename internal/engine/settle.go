package engine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/sabotage"
	"github.com/swarmlog/swarmlog/ledger"
)

// settlement is what a commit made of a step.
type settlement struct {
	task   *task
	step   *ledger.Step
	result ledger.Result
}

// settle acts on what a commit made of the group's steps. The committer calls it, in the order of commits.
func (g *group) settle(all []settlement) {
	committed := all[:0]
	for _, s := range all {
		switch err := s.result.Err; {
		case err == nil:
			committed = append(committed, s)
		case errors.Is(err, ledger.ErrFenced):
			g.fenced(s.task, s.step)
		case errors.Is(err, ledger.ErrConflict):
			g.submit(s.task, g.conflicting(s.task, fault.As(fault.Permanent, err)))
		default:
			g.failedAttempt(s.task, err)
		}
	}
	if len(committed) > 0 {
		g.settled(committed)
	}
}

// fenced drops a step whose partition has another owner, and what is left of the partition; a carried one alone.
func (g *group) fenced(t *task, s *ledger.Step) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.resubmit(t, s) {
		return
	}
	g.eng.opts.Meter.Fenced(g.spec.Name)
	level := slog.LevelDebug // once for a partition is enough for people
	if p := t.lane.p; !p.fenced {
		p.fenced, level = true, slog.LevelWarn
	}
	g.log.Log(context.Background(), level, "fenced: the partition has another owner, and what was begun here is dropped", "at", t.record.Position)
	g.stepEvent(TypeStepFenced, t, 0, s)
	g.dropLocked(t.lane.p)
	g.abandon(t)
}

// settled counts committed steps, lets their events out and their lanes go on.
func (g *group) settled(all []settlement) {
	g.letOut(all)
	for i := range all {
		g.eng.opts.Meter.Settled(g.spec.Name, all[i].result.Outcome)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range all {
		g.goOn(&all[i])
	}
	g.dispatch()
}

// letOut hands the events that steps emitted to the relay. A lease's are numbered without gaps within a commit.
func (g *group) letOut(all []settlement) {
	var rows map[*partition][]ledger.Outgoing
	for _, s := range all {
		if s.result.Outcome != s.step.Outcome || len(s.step.Emits) == 0 { // a duplicate or a gap emits nothing
			continue
		}
		for i := range s.step.Emits {
			s.step.Emits[i].Seq = s.result.FirstSeq + int64(i)
		}
		if rows == nil {
			rows = map[*partition][]ledger.Outgoing{}
		}
		rows[s.task.lane.p] = append(rows[s.task.lane.p], s.step.Emits...)
	}
	for p, out := range rows {
		g.eng.relay.add(p.fence, out)
	}
}

// goOn moves progress past a committed step and its lane to the next task. g.mu is held.
func (g *group) goOn(s *settlement) {
	t, p := s.task, s.task.lane.p
	if !s.step.Carried && !s.step.FromBacklog {
		g.putDown(p, s.step.Offset) // of a lease that is being passed on: its row is written, or about to be
	}
	if !s.step.FromBacklog {
		p.next, p.finished = p.finished.Add(ledger.Span{From: s.step.From, To: s.step.Offset}).Advance(p.next)
	}
	g.park(t, s.step, s.result)
	g.count(t, s.step, s.result)
	if sabotage.Is(sabotage.LaneFreedEarly) {
		return
	}
	if p.ctx.Err() != nil {
		g.abandon(t)
		return
	}
	g.advance(t.lane)
	g.wentOn(t, s.step, s.result)
}

// park notes which aggregates wait, and tells. g.mu is held.
func (g *group) park(t *task, s *ledger.Step, r ledger.Result) {
	p := t.lane.p
	switch r.Outcome {
	case ledger.Dead:
		level := slog.LevelWarn
		if g.eng.opts.ShowsDead {
			level = slog.LevelInfo
		}
		reason := deadReason(s)
		p.dead = true
		if s.Wait != nil && s.Wait.Dead {
			p.parked[t.lane.key] = s.Wait.Reason
			if d := p.drives[t.lane.key]; d != nil {
				d.hot = false // what is queued waits behind it
			}
		}
		g.log.Log(context.Background(), level, "record dead-lettered", "at", t.record.Position, "subject", t.event.Subject, "reason", reason, "attempts", t.attempt)
		g.notice(NoticeDead, p, t.record.Offset, t.event.Subject, reason)
	case ledger.Waiting:
		if _, ok := p.parked[t.lane.key]; !ok {
			reason := ledger.GapReason
			if s.Outcome == ledger.Waiting {
				reason = s.Wait.Reason
			}
			p.parked[t.lane.key] = reason
			g.notice(NoticeWaiting, p, t.record.Offset, t.event.Subject, reason)
		}
	}
}

func conflict(got, had [16]byte) error {
	return fault.As(fault.Permanent, fmt.Errorf("%w: digest now %s, then %s",
		ledger.ErrConflict, hex.EncodeToString(got[:]), hex.EncodeToString(had[:])))
}

// handedOn are the extension attributes that an emitted event has of the one it was emitted for.
var handedOn = []string{"traceparent", ExtensionClass, ExtensionTenant}

// outgoing fills in and encodes what a step emits.
func (e *Engine) outgoing(agent string, in event.Event, emits []emission) ([]ledger.Outgoing, error) {
	if len(emits) == 0 {
		return nil, nil
	}
	now := time.Now().UTC()
	rows := make([]ledger.Outgoing, len(emits))
	for i, em := range emits {
		out := em.event
		if out.ID == "" {
			out.ID = event.DeriveID(agent, in.Source, in.ID, i)
		}
		if out.Source == "" {
			out.Source = "swarmlog://" + e.opts.Swarm + "/" + agent
		}
		if out.Subject == "" {
			out.Subject = in.Subject
		}
		if out.Time.IsZero() {
			out.Time = now
		}
		for _, name := range handedOn {
			if value := in.Extension(name); value != "" && out.Extension(name) == "" {
				out.SetExtension(name, value)
			}
		}
		out.SetHops(in.Hops() + 1)
		if _, ok := out.RecordedTime(); !ok {
			out.SetRecordedTime(now)
		}
		m, err := out.Encode()
		if err != nil {
			return nil, fault.As(fault.Permanent, fmt.Errorf("emit %s: %w", em, err))
		}
		_, ordered := out.Sequence()
		m.Key = e.opts.Salts.Key(em.topic, m.Key, e.topics.of(em.topic).slots, ordered)
		if size, limit := size(m), e.relay.limit(em.topic); size > limit {
			return nil, fault.Permanentf("emit %s: the record would have %d bytes and the topic takes %d: put the large part elsewhere and emit a reference to it", em, size, limit)
		}
		if len(m.Key) == 0 && e.relay.topics.of(em.topic).Compact {
			return nil, fault.Permanentf("emit %s: the topic is compacted, and brokers refuse records without a key there: give the event a subject", em)
		}
		rows[i] = ledger.Outgoing{Topic: em.topic, Partition: -1, Message: m}
	}
	return rows, nil
}

// size is an upper bound of what a record takes in a batch of its own.
func size(m event.Message) int {
	n := len(m.Key) + len(m.Value) + 128
	for _, h := range m.Headers {
		n += len(h.Key) + len(h.Value) + 10
	}
	return n
}

// FirstLine is what a person needs of a reason; what follows it, such as a stack, is for the log.
func FirstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
