//go:build sabotage

package sqlite

import (
	"context"
	"time"

	"github.com/swarmlog/swarmlog/internal/sabotage"
	"github.com/swarmlog/swarmlog/ledger"
)

// earlyCommit is what a transaction of its own has committed before its time, so that a crash or a failing step
// between the two shows whether the checks see it.
type earlyCommit struct {
	progress map[*ledger.Step]bool
	seen     map[*ledger.Step]bool
}

func (e *earlyCommit) finished(s *ledger.Step) bool { return e != nil && e.progress[s] }
func (e *earlyCommit) inserted(s *ledger.Step) bool { return e != nil && e.seen[s] }

// sabotageGap is the time between the two transactions, in which a kill does its harm.
const sabotageGap = 5 * time.Millisecond

func (db *DB) commitEarly(ctx context.Context, w *conn, b *ledger.Batch) *earlyCommit {
	progress, seen := sabotage.Is(sabotage.ProgressBeforeEffect), sabotage.Is(sabotage.SeenKept)
	if !progress && !seen {
		return nil
	}
	e := &earlyCommit{progress: make(map[*ledger.Step]bool), seen: make(map[*ledger.Step]bool)}
	a := newAttempt(ctx, db, w, b, nil)
	defer a.end()
	err := w.begin(qBeginWrite)
	for _, s := range b.Steps {
		if err != nil {
			break
		}
		var l *heldLease
		if l, err = a.lease(s.Fence.Key); err != nil || l.fencing(s.Fence) != nil {
			continue
		}
		if progress && !s.FromBacklog && s.Offset >= l.Next && !l.Finished.Contains(s.Offset) {
			l.Next, l.Finished = l.Finished.Add(ledger.Span{From: s.From, To: s.Offset}).Advance(l.Next)
			l.dirty, e.progress[s] = true, true
		}
		if seen && s.Outcome == ledger.Applied && s.Event.Sequence == 0 && !s.Event.Positional {
			var n int64
			n, err = w.exec(qInsertSeen, l.id.group, a.eventKey(s.Event.Source, s.Event.ID), s.Event.Digest[:], l.id.id, stamp(s.LogTime))
			e.seen[s] = n > 0
		}
	}
	for _, l := range a.leases {
		if err == nil {
			err = a.save(l)
		}
	}
	if err == nil {
		err = w.commit()
	}
	if err != nil {
		_ = w.rollback()
		return nil
	}
	time.Sleep(sabotageGap)
	return e
}
