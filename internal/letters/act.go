package letters

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// Verb is what a person decides.
type Verb string

const (
	Redrive Verb = "redrive" // have it handled again, and what waits behind it after it
	Skip    Verb = "skip"    // pass over it, and let go on what waits behind it
)

// Account says what a run did. Before = Matched + those that the filter passed over; Matched = Done + Raced + Refused;
// Left = Before − Done − Raced.
type Account struct {
	Verb     Verb      `json:"verb" enum:"redrive,skip"`
	DryRun   bool      `json:"dry_run" doc:"Whether nothing was done, and done is what would have been"`
	Before   int64     `json:"before" doc:"Dead letters that waited for a person, of the agents and topics that were looked at"`
	Matched  int64     `json:"matched" doc:"Of those, the ones that were chosen"`
	Done     int64     `json:"done" doc:"Of those, the ones that this run redrove or skipped"`
	Behind   int64     `json:"behind" doc:"Records that waited behind those that were done, and go on now"`
	Raced    int64     `json:"raced" doc:"Of the chosen ones, those about which somebody else decided meanwhile"`
	Refused  int64     `json:"refused" doc:"Of the chosen ones, those that can't be done; refusals say why"`
	Left     int64     `json:"left" doc:"Dead letters that still wait for a person"`
	UnderWay int64     `json:"under_way" doc:"Others that were redriven before and haven't been handled yet"`
	Refusals []Refusal `json:"refusals" doc:"At most 100"`
}

// Refusal is a letter that can't be done.
type Refusal struct {
	Agent     string `json:"agent"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Why       string `json:"why"`
}

const maxRefusals = 100

// errGone says that the record's topic doesn't hold it any more.
var errGone = errors.New("its value was too large for the letter, and the topic no longer holds the record")

// refusal is an error that stops one letter and not the run.
type refusal struct{ error }

// Act redrives or skips every letter that a filter chooses and that waits for a person; visit is called with each
// before that, and may be nil. With dry, nothing is done. It may be interrupted at any time, and run again.
func (t Tray) Act(ctx context.Context, verb Verb, f Filter, dry bool, o Options, visit func(*Letter) error) (Account, error) {
	a := Account{Verb: verb, DryRun: dry, Refusals: []Refusal{}}
	m, err := f.matcher()
	if err != nil {
		return a, err
	}
	if verb != Redrive && verb != Skip {
		return a, fmt.Errorf("%w: there's no %q", ErrFilter, verb)
	}
	w := &walk{tray: t, options: o, filter: m}
	err = w.run(ctx, func(l *Letter) error {
		if l.State == Redriving {
			a.UnderWay++
		}
		if !l.State.Waits() {
			return nil
		}
		a.Before++
		if !m.match(l) {
			return nil
		}
		a.Matched++
		w.progress.Matched++
		if visit != nil {
			if err := visit(l); err != nil {
				return err
			}
		}
		return t.decide(ctx, &a, l)
	})
	a.Left = a.Before - a.Done - a.Raced
	if dry {
		a.Left = a.Before
	}
	return a, err
}

// decide does one letter and accounts for it.
func (t Tray) decide(ctx context.Context, a *Account, l *Letter) error {
	var done bool
	var err error
	if a.Verb == Redrive {
		done, err = t.redrive(ctx, l, a.DryRun)
	} else {
		done, err = t.skip(ctx, l, a.DryRun)
	}
	var no refusal
	switch {
	case errors.As(err, &no):
		a.Refused++
		if len(a.Refusals) < maxRefusals {
			a.Refusals = append(a.Refusals, Refusal{l.Agent, l.Topic, l.Partition, l.Offset, no.Error()})
		}
	case err != nil:
		return fmt.Errorf("%s %s of agent %s: %w", a.Verb, l.position(), l.Agent, err)
	case done:
		a.Done++
		a.Behind += l.Behind
	default:
		a.Raced++
	}
	return nil
}

func (t Tray) skip(ctx context.Context, l *Letter, dry bool) (bool, error) {
	if dry {
		return true, nil
	}
	if l.State == Parked {
		return t.Ledger.Discard(ctx, l.Key(), l.lane(), l.Offset)
	}
	n, err := t.Ledger.Dismiss(ctx, l.Key(), l.Offset)
	return n > 0, err
}

func (t Tray) redrive(ctx context.Context, l *Letter, dry bool) (bool, error) {
	if l.State == Parked {
		if dry {
			return true, nil
		}
		return t.Ledger.Redrive(ctx, l.Key(), l.lane(), l.Offset)
	}
	if l.Omitted {
		whole, err := t.reread(ctx, l)
		if errors.Is(err, errGone) {
			return false, refusal{err}
		}
		if err != nil {
			return false, err
		}
		l.take(whole)
	}
	if dry {
		return true, nil
	}
	e, _ := event.Decode(l.message, l.position()) // one that can't be decoded may be handled by a newer agent
	sequence, _ := e.Sequence()
	return t.Ledger.Requeue(ctx, l.Key(), ledger.Wait{Subject: l.lane(), Reason: "redriven: " + engine.FirstLine(l.Reason), Offset: l.Offset,
		Message: l.message, Dead: true, Released: true, Sequence: sequence})
}

// rereadTime bounds reading one record.
const rereadTime = 30 * time.Second

// reread reads a letter's record from its own topic; errGone where that doesn't hold it.
func (t Tray) reread(ctx context.Context, l *Letter) (event.Message, error) {
	failed := func(err error) (event.Message, error) {
		return event.Message{}, fmt.Errorf("read the record at %s: %w", l.position(), err)
	}
	topics, err := t.Broker.Topics(ctx, l.Topic)
	if errors.Is(err, broker.ErrNoTopic) || (err == nil && (topics[0].ID != l.topicID || l.Partition >= topics[0].Partitions)) {
		return event.Message{}, errGone
	}
	if err != nil {
		return failed(err)
	}
	ranges, err := t.Broker.Offsets(ctx, l.Topic)
	if err != nil {
		return failed(err)
	}
	if r := ranges[l.Partition]; l.Offset < r.Start || l.Offset >= r.End {
		return event.Message{}, errGone
	}
	only := make([]broker.Range, l.Partition+1)
	only[l.Partition] = broker.Range{Start: l.Offset, End: l.Offset + 1}
	reading, cancel := context.WithTimeout(ctx, rereadTime)
	defer cancel()
	var whole *event.Message
	err = broker.ReadRanges(reading, t.Broker, topics[0], only, func(r broker.Record) error { whole = &r.Message; return nil })
	switch {
	case errors.Is(err, broker.ErrOutOfRange), err == nil && whole == nil: // retention or compaction was quicker
		return event.Message{}, errGone
	case err != nil:
		return failed(err)
	}
	return *whole, nil
}
