package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/telemetry/recent"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

const (
	// lettersLimit bounds how many dead letters are held for people; the topics hold all.
	lettersLimit = 10_000
	// lettersTime bounds reading those of earlier runs.
	lettersTime = 20 * time.Second
)

// letterBook holds the dead letters of a run and of earlier ones: read from the dead-letter topics at the start, then as
// they happen. A copy that a crash made of one counts once.
type letterBook struct {
	mu    sync.Mutex
	known map[letterID]bool
	all   []status.DeadLetter // oldest first
	total int64
}

type letterID struct {
	agent, topic string
	partition    int32
	offset       int64
}

func newLetters() *letterBook { return &letterBook{known: map[letterID]bool{}} }

func (l *letterBook) add(d status.DeadLetter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := letterID{d.Agent, d.Topic, d.Partition, d.Offset}
	if l.known[id] {
		return
	}
	l.total++
	if len(l.all) >= lettersLimit {
		old := l.all[0]
		delete(l.known, letterID{old.Agent, old.Topic, old.Partition, old.Offset})
		l.all = l.all[1:]
	}
	l.known[id] = true
	l.all = append(l.all, d)
}

// newest are the last n, the newest first, and how many there have been.
func (l *letterBook) newest(n int) ([]status.DeadLetter, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := slices.Clone(l.all[max(0, len(l.all)-n):])
	slices.Reverse(last)
	return last, l.total
}

// Dead are the dead letters of this run and of earlier ones on the same data, oldest first, as people know what they
// are about.
func (a *App) Dead(ctx context.Context) (dead []status.DeadLetter, err error) {
	a.letters.mu.Lock()
	all := slices.Clone(a.letters.all)
	a.letters.mu.Unlock()
	err = a.ledger.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
		dead, err = a.named(ctx, tx, all)
		return err
	})
	return dead, err
}

func (a *App) named(ctx context.Context, tx ledger.Tx, dead []status.DeadLetter) ([]status.DeadLetter, error) {
	if a.config.Index.Dead == nil || len(dead) == 0 {
		return dead, nil
	}
	return a.config.Index.Dead(ctx, tx, dead)
}

// loadLetters reads the dead-letter topics, letter by letter: of each its headers' few words are kept. However many
// there are, the run begins within lettersTime. On a cluster there may be a month's: a worker there shows its own.
func (a *App) loadLetters(ctx context.Context) error {
	if a.server == nil {
		return nil
	}
	reading, cancel := context.WithTimeout(ctx, lettersTime)
	defer cancel()
	topics := map[string]bool{}
	for _, g := range a.config.Agents {
		for _, t := range g.Reads {
			topics[engine.DeadTopic(t)] = true
		}
	}
	for t := range topics {
		err := broker.ReadAll(reading, a.broker, t, func(r broker.Record) error {
			a.letters.add(letter(r))
			return nil
		})
		switch {
		case err == nil, errors.Is(err, broker.ErrNoTopic):
		case reading.Err() != nil && ctx.Err() == nil:
			a.log.WarnContext(ctx, "not all dead letters of earlier runs are shown: reading them took too long; the topic holds all",
				"topic", t, "limit", lettersTime)
			return nil
		default:
			return fmt.Errorf("read dead letters of %s: %w", t, err)
		}
	}
	return nil
}

// letter reads what a dead letter's headers say.
func letter(r broker.Record) status.DeadLetter {
	h := map[string]string{}
	for _, x := range r.Headers {
		h[x.Key] = string(x.Value)
	}
	d := status.DeadLetter{Agent: h[engine.HeaderDeadAgent], Topic: h[engine.HeaderDeadTopic], Subject: string(r.Key),
		Reason: engine.FirstLine(h[engine.HeaderDeadReason])}
	if n, err := strconv.ParseInt(h[engine.HeaderDeadPartition], 10, 32); err == nil {
		d.Partition = int32(n)
	}
	if n, err := strconv.ParseInt(h[engine.HeaderDeadOffset], 10, 64); err == nil {
		d.Offset = n
	}
	if at, err := time.Parse(time.RFC3339Nano, h[engine.HeaderDeadLast]); err == nil {
		d.Time = at
	}
	if e, err := event.Decode(r.Message, r.Position); err == nil {
		d.Subject = e.Subject
	}
	return d
}

// noticed keeps what happened for people.
func (a *App) noticed(n engine.Notice) {
	if n.Kind == engine.NoticeDead {
		a.letters.add(status.DeadLetter{Agent: n.Agent, Topic: n.Topic, Partition: n.Partition, Offset: n.Offset,
			Subject: n.Subject, Reason: n.Text, Time: n.Time})
	}
	level := recent.Info
	switch n.Kind {
	case engine.NoticeDead, engine.NoticeRetry, engine.NoticeWaiting:
		level = recent.Warn
	case engine.NoticeFailed, engine.NoticeStall, engine.NoticeLost:
		level = recent.Error
	}
	a.ring.Add(recent.Happening{Time: n.Time, Level: level, Kind: string(n.Kind), Agent: n.Agent, Subject: n.Subject,
		Text: n.Text, Topic: n.Topic, Partition: n.Partition, Offset: n.Offset})
}
