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
	case s.Outcome < ledger.Applied || s.Outcome > ledger.Waiting:
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
		if committed, err = a.committed(); err == nil {
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
	w, err := db.takeWriter(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", what, err)
	}
	defer func() { db.writer <- w }()
	db.mu.Lock()
	a := db.unknown[b]
	db.mu.Unlock()
	if a == nil {
		return nil, false, fault.Fatalf("%s: no commit of this batch has an unknown outcome", what)
	}
	if err := w.begin(qBeginWrite); err != nil {
		return nil, false, environment(what, err)
	}
	committed, err = a.committed()
	if err = errors.Join(err, w.rollback()); err != nil {
		return nil, false, environment(what, err)
	}
	db.mu.Lock()
	delete(db.unknown, b)
	db.mu.Unlock()
	if !committed {
		return nil, false, nil
	}
	return a.results, true, nil
}

// committed reads back whether the attempt's COMMIT happened. Under an epoch only its owner commits, so a single
// offset that the attempt was the first to finish tells for all. A lease that has moved on tells nothing: whoever has
// it now goes by what's in the ledger, and its steps here are fenced. No witness at all: nothing but repeats and
// deletions, which may be committed again.
func (a *attempt) committed() (bool, error) {
	var ours *ledger.Step
	moved := false
	leases := make(map[ledger.Fence]error)
	for i, s := range a.batch.Steps {
		fenced, asked := leases[s.Fence]
		if !asked {
			_, _, err := a.db.fenced(a.c, s.Fence)
			if err != nil && !errors.Is(err, ledger.ErrFenced) {
				return false, err
			}
			fenced, leases[s.Fence] = err, err
		}
		switch {
		case fenced != nil && a.results[i].Err == nil:
			a.results[i] = ledger.Result{Err: fenced}
			moved = moved || a.witness[i]
		case fenced == nil && a.witness[i] && ours == nil:
			ours = s
		}
	}
	if ours == nil {
		return moved, nil
	}
	l, id, err := a.db.fenced(a.c, ours.Fence)
	if err != nil {
		return false, err
	}
	if !ours.FromBacklog {
		return ours.Offset < l.Next || l.Finished.Contains(ours.Offset), nil
	}
	found, err := a.c.first(qBacklogRow, func(row) {}, id.id, ours.Offset)
	return !found, err
}
