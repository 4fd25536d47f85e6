package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// Commit implements ledger.Ledger. While it lasts, nobody else commits under its leases.
func (db *DB) Commit(ctx context.Context, b *ledger.Batch) ([]ledger.Result, error) {
	what := fmt.Sprintf("commit %d steps", len(b.Steps))
	if len(b.Steps) == 0 && len(b.Published) == 0 {
		return []ledger.Result{}, nil
	}
	keys := leaseKeys(b)
	if err := db.turns.enter(ctx, keys); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer db.turns.leave(keys)
	if err := db.memory.gone(); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if err := db.settleKeys(ctx, keys); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	l, err := db.take(ctx, db.writes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	defer l.close()
	failed := make([]error, len(b.Steps))
	for i, s := range b.Steps {
		failed[i] = invalid(s)
	}
	results, err := db.insist(ctx, l, b, failed)
	if err != nil && !errors.Is(err, ledger.ErrUnknown) {
		l.rollback()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return results, nil
}

// insist runs the batch until it commits, without the steps that fail.
func (db *DB) insist(ctx context.Context, l *link, b *ledger.Batch, failed []error) ([]ledger.Result, error) {
	strict := false
	for conflicts := 0; ; {
		a := newAttempt(ctx, db, l, b, failed, strict)
		err := a.supervise(db.opts.EffectTimeout)
		a.end()
		var f *stepFailure
		switch {
		case err == nil:
			a.remember()
			return a.results, nil
		case errors.As(err, &f):
			failed[f.step] = f.err
		case a.committing && (code(err) == "" || severed(err)):
			db.lose(a, l)
			return nil, fmt.Errorf("%w: %w", ledger.ErrUnknown, err)
		case conflict(err) && conflicts < attempts:
			conflicts++
		case errors.Is(err, errOwn):
			return nil, err
		case !strict && code(err) != "" && !outage(code(err)) && (a.committing || dataError(err)):
			strict = true // somebody's step is to blame: find it
		default:
			return nil, environment("PostgreSQL", err)
		}
		l.rollback()
		if err := l.renew(context.WithoutCancel(ctx)); err != nil {
			return nil, err
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
	}
	for _, o := range s.Emits {
		if n := size(o.Message); n > largestMessage {
			return fault.Permanentf("%s: it emits an event of %d bytes, and the ledger takes %d at most", whose(s), n, largestMessage)
		}
		if !utf8.ValidString(o.Topic) || strings.IndexByte(o.Topic, 0) >= 0 {
			what = fmt.Sprintf("it emits to a topic that no broker can have: %q", o.Topic)
		}
	}
	if s.Wait != nil {
		if n := size(s.Wait.Message); n > largestMessage {
			return fault.Permanentf("%s: its record has %d bytes, and the backlog takes %d at most", whose(s), n, largestMessage)
		}
	}
	if what == "" {
		return nil
	}
	return fault.Fatalf("%s: %s", whose(s), what)
}

func whose(s *ledger.Step) string {
	return fmt.Sprintf("commit step of %s at offset %d of partition %d", s.Fence.Group, s.Offset, s.Fence.Partition)
}

func size(m event.Message) int {
	n := len(m.Key) + len(m.Value)
	for _, h := range m.Headers {
		n += len(h.Key) + len(h.Value)
	}
	return n
}

// verdict is what became of an unknown COMMIT.
type verdict struct {
	committed bool
	results   []ledger.Result
}

// remember keeps what the COMMIT was acknowledged to have left.
func (a *attempt) remember() {
	for _, l := range a.leases {
		if l.dirty {
			a.db.memory.keep(l.key, l.Epoch, l.commits+1)
		}
	}
}

// lose notes an attempt whose COMMIT has an unknown outcome, and closes its connection.
func (db *DB) lose(a *attempt, l *link) {
	l.discard()
	db.mu.Lock()
	defer db.mu.Unlock()
	db.unknown[a.batch] = a
}

// Resolve implements ledger.Ledger.
func (db *DB) Resolve(ctx context.Context, b *ledger.Batch) (results []ledger.Result, committed bool, err error) {
	what := fmt.Sprintf("resolve %d steps", len(b.Steps))
	keys := leaseKeys(b)
	if err := db.turns.enter(ctx, keys); err != nil {
		return nil, false, fmt.Errorf("%s: %w", what, err)
	}
	defer db.turns.leave(keys)
	db.mu.Lock()
	a := db.unknown[b]
	db.mu.Unlock()
	if a == nil {
		return nil, false, fault.Fatalf("%s: no commit of this batch has an unknown outcome", what)
	}
	if err := db.settle(ctx, a); err != nil {
		return nil, false, fmt.Errorf("%s: %w", what, err)
	}
	db.mu.Lock()
	delete(db.unknown, b)
	db.mu.Unlock()
	return a.verdict.results, a.verdict.committed, nil
}

// settleKeys asks after the unknown outcomes of commits under these leases, which the caller has the turn of: before
// anything else is committed under them, their counts tell for certain.
func (db *DB) settleKeys(ctx context.Context, keys []ledger.Key) error {
	db.mu.Lock()
	var lost []*attempt
	for _, a := range db.unknown {
		if a.verdict == nil && a.touches(keys) {
			lost = append(lost, a)
		}
	}
	db.mu.Unlock()
	for _, a := range lost {
		if err := db.settle(ctx, a); err != nil {
			return fmt.Errorf("ask after a commit of unknown outcome: %w", err)
		}
	}
	return nil
}

func (a *attempt) touches(keys []ledger.Key) bool {
	for _, l := range a.leases {
		for _, k := range keys {
			if l.key == k {
				return true
			}
		}
	}
	return false
}

// settle reads back whether an attempt's COMMIT happened, under the locks of its leases: so a transaction that is
// still open somewhere has ended first, by its COMMIT or by its time-out.
func (db *DB) settle(ctx context.Context, a *attempt) error {
	if a.verdict != nil {
		return nil
	}
	now := make(map[ledger.Key]foundLease)
	status := ""
	err := db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		clear(now)
		keys := leaseKeys(a.batch)
		names, topics, parts := make([]string, len(keys)), make([][16]byte, len(keys)), make([]int32, len(keys))
		for i, k := range keys {
			names[i], topics[i], parts[i] = k.Group, k.TopicID, k.Partition
		}
		standby := false
		b := &pgx.Batch{}
		db.open(b, inOwn)
		b.Queue(db.sql[qLockLeases], names, topics, parts).Query(func(rows pgx.Rows) error {
			return collect(rows, scanLease, func(l foundLease) { now[l.Key] = l })
		})
		b.Queue(db.sql[qOutcome], a.timeline, a.xid).QueryRow(func(r pgx.Row) error { return r.Scan(&standby, &status) })
		b.Queue("ROLLBACK")
		if err := send(ctx, c, b); err != nil {
			return err
		}
		if standby {
			return errors.New("this is a stand-by, which may not have it yet: the primary has to answer")
		}
		return nil
	})
	if err != nil {
		return err
	}
	if a.verdict, err = a.judge(now, status); err == nil && a.verdict.committed {
		a.remember()
	}
	return err
}

// qOutcome asks what became of a transaction by its number, which means something on its own timeline alone: "" where
// that can't be told.
var qOutcome = define("SELECT pg_is_in_recovery(), coalesce(CASE WHEN " + timeline + " = $1 AND $2::text::xid8 < pg_snapshot_xmax(pg_current_snapshot()) " +
	"THEN pg_xact_status($2::text::xid8) END, '')")

// judge compares the leases with what the attempt found and would have left. Each lease counts the commits that changed
// it; where it counts more by now, those may be others', of steps that they carry or under a later epoch.
func (a *attempt) judge(now map[ledger.Key]foundLease, status string) (*verdict, error) {
	dirty := false
	for _, l := range a.leases {
		n := now[l.key]
		switch {
		case !l.dirty:
			continue
		case n.commits < l.commits:
			return nil, a.db.memory.lose(errBack("lease of %s on %s/%d has %d commits and had %d", l.Group, l.Topic, l.Partition, n.commits, l.commits))
		case n.commits == l.commits:
			return &verdict{}, nil // one lease tells for all
		}
		dirty = true
	}
	switch {
	case !dirty || status == "aborted": // or it held nothing but repeats and deletions, and may be committed again
		return &verdict{}, nil
	case status == "in progress": // it has let go of its leases, and so has ended, or never had them
		return nil, environment("ask after a commit", errors.New("its transaction is still open"))
	case status == "committed":
		return &verdict{committed: true, results: a.results}, nil
	}
	return a.judgeByProgress(now), nil
}

// judgeByProgress is for a server that can't tell any more, as after a fail-over. A step under a fence that stands has
// finished its offset, or nobody has: this process alone could, and it settles one commit before the next. Of the rest
// nobody knows: its owners began with what it has left, if anything, and so it counts as fenced.
func (a *attempt) judgeByProgress(now map[ledger.Key]foundLease) *verdict {
	v := &verdict{committed: true, results: a.results}
	stands := func(s *ledger.Step) bool { return !s.Carried && holds(now[s.Fence.Key], s.Fence) }
	for i, s := range a.batch.Steps {
		if r := a.results[i]; r.Err == nil && r.Outcome != ledger.Duplicate && !s.FromBacklog && stands(s) {
			n := now[s.Fence.Key]
			v.committed = s.Offset < n.Next || n.Finished.Contains(s.Offset)
			return v
		}
	}
	for i, s := range a.batch.Steps {
		if v.results[i].Err == nil {
			v.results[i] = ledger.Result{Err: fmt.Errorf("%w: what became of offset %d of %s on partition %d can't be told after a fail-over: take the lease again",
				ledger.ErrFenced, s.Offset, s.Fence.Group, s.Fence.Partition)}
		}
	}
	return v
}
