package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/sabotage"
	"github.com/swarmlog/swarmlog/ledger"
)

// Commit implements ledger.Ledger. While it lasts, nobody else writes.
func (db *DB) Commit(ctx context.Context, b *ledger.Batch) ([]ledger.Result, error) {
	w, err := db.takeWriter(ctx)
	if err != nil {
		return nil, fmt.Errorf("commit %d steps: %w", len(b.Steps), err)
	}
	defer func() { db.writer <- w }()
	failed := make([]error, len(b.Steps))
	for i, s := range b.Steps {
		failed[i] = invalid(s)
	}
	var early *earlyCommit
	if sabotage.Enabled {
		early = db.commitEarly(ctx, w, b)
	}
	for {
		a := newAttempt(ctx, db, w, b, failed)
		a.early = early
		err := a.supervise(db.opts.EffectTimeout)
		a.end()
		if err == nil {
			return a.results, nil
		}
		var f *stepFailure
		switch {
		case errors.As(err, &f):
			failed[f.step] = f.err
		case a.committing:
			return db.askAfter(a, err)
		default:
			return nil, environment(fmt.Sprintf("commit %d steps", len(b.Steps)), errors.Join(err, w.rollback()))
		}
		if err := w.rollback(); err != nil {
			return nil, environment("roll back", err)
		}
	}
}

// invalid is the error of a step that nobody should have made.
func invalid(s *ledger.Step) error {
	what := ""
	switch {
	case s.Outcome < ledger.Applied || s.Outcome > ledger.Misrouted:
		what = "it has no outcome"
	case s.From < 0 || s.Offset < s.From && !s.FromBacklog:
		what = "its range is empty"
	case s.Outcome == ledger.Waiting && s.Wait == nil && !s.FromBacklog:
		what = "it waits without a row for the backlog"
	case s.Outcome == ledger.Waiting && len(s.Effects)+len(s.Emits) > 0:
		what = "it waits and has effects"
	default:
		return nil
	}
	return fault.Fatalf("commit step of %s at offset %d of partition %d: %s", s.Fence.Group, s.Offset, s.Fence.Partition, what)
}

// askAfter settles an attempt whose COMMIT failed, by reading its progress back; only where that can't be done is the
// outcome unknown. The writer is held, so nobody has changed anything since.
func (db *DB) askAfter(a *attempt, why error) ([]ledger.Result, error) {
	what := fmt.Sprintf("commit %d steps", len(a.batch.Steps))
	err := a.c.rollback()
	if !errors.Is(why, ledger.ErrUnknown) && err == nil {
		var committed bool
		if committed, err = a.committed(a.c); err == nil {
			if committed {
				return a.results, nil
			}
			return nil, environment(what, why)
		}
	}
	db.mu.Lock()
	db.unknown[a.batch] = a
	db.mu.Unlock()
	return nil, fmt.Errorf("%s: %w: %w", what, ledger.ErrUnknown, errors.Join(why, err))
}

// Resolve implements ledger.Ledger.
func (db *DB) Resolve(ctx context.Context, b *ledger.Batch) (results []ledger.Result, committed bool, err error) {
	what := fmt.Sprintf("resolve %d steps", len(b.Steps))
	w, err := db.takeWriter(ctx) // which asks after all unknown outcomes
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", what, err)
	}
	db.writer <- w
	db.mu.Lock()
	defer db.mu.Unlock()
	a := db.unknown[b]
	if a == nil {
		return nil, false, fault.Fatalf("%s: no commit of this batch has an unknown outcome", what)
	}
	delete(db.unknown, b)
	if !*a.verdict {
		return nil, false, nil
	}
	return a.results, true, nil
}

// settle asks after the outcomes that are unknown. Whoever takes the writer does so first: before anything else is
// written, the leases tell for certain.
func (db *DB) settle(w *conn) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, a := range db.unknown {
		if a.verdict != nil {
			continue
		}
		committed, err := a.committed(w)
		if err != nil {
			return environment("ask after a commit of unknown outcome", err)
		}
		a.verdict = &committed
	}
	return nil
}

// committed reads back whether the attempt's COMMIT happened, given that nothing was written since. One lease that it
// changed tells for all. Where it changed none, it held nothing but repeats and deletions, and may be committed again.
func (a *attempt) committed(c *conn) (bool, error) {
	for _, l := range a.leases {
		if !l.dirty {
			continue
		}
		commits := l.before
		_, err := c.first(qCommits, func(r row) { commits = r.int(0) }, l.id.id)
		return commits > l.before, err
	}
	return false, nil
}
