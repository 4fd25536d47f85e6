package postgres

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/sabotage"
	"github.com/swarmlog/swarmlog/ledger"
)

// attempt is one run of a batch's transaction. A run that a step fails is thrown away, and another one made without
// that step.
//
// It reads all that the batch asks about at once, decides in memory how each record ends, step by step, and writes
// what came of it at once.
type attempt struct {
	db     *DB
	link   *link
	batch  *ledger.Batch
	failed []error // by step; those that aren't nil are left out
	// strict writes, and lets deferred constraints be checked, after each step instead of at the end: to find the
	// step that is to blame.
	strict bool

	results    []ledger.Result
	leases     []*heldLease
	now        looked
	pending    pending
	committing bool
	xid        string   // its transaction's number, on this timeline
	timeline   string   //
	verdict    *verdict // of a COMMIT whose outcome was unknown and is known now

	watched
}

// heldLease is a lease as the transaction will leave it; its fence is the one that was found.
type heldLease struct {
	foundLease
	key   ledger.Key // also where no row was found
	dirty bool
}

// looked is what the transaction knows of the tables, as its steps leave them.
type looked struct {
	seen      map[seenKey]*seenRow
	histories map[historyKey]*history
	rows      map[rowKey]*waitRow
	carried   map[carriedKey]bool
}

type seenKey struct {
	group int32
	event [16]byte
}

// seenRow is an event in seen, or one that isn't there.
type seenRow struct {
	digest   [16]byte
	present  bool
	inserted *ledger.Step // whose words this transaction would insert
	ours     bool         // it has inserted them
	claimed  *ledger.Step // that took it
	lease    int32
}

type historyKey struct {
	group   int32
	history [32]byte
}

// history is how far one got, and by which record; where last is anywhere, from which log time on it goes on.
type history struct {
	was, last int64
	lease     int32
	logTime   int64
}

type rowKey struct {
	lease    int32
	position int64
}

// waitRow is a row of the backlog.
type waitRow struct {
	was, present bool
	changed      bool
	dead, alone  bool
	reason       string       // "" where it stays
	wait         *ledger.Wait // of a new one
	event        [16]byte     // of a new one
	history      []byte       // of a new one
}

// stepFailure is the error of an attempt that one step is to blame for.
type stepFailure struct {
	step int
	err  error
}

func (f *stepFailure) Error() string { return f.err.Error() }
func (f *stepFailure) Unwrap() error { return f.err }

func newAttempt(ctx context.Context, db *DB, l *link, b *ledger.Batch, failed []error, strict bool) *attempt {
	a := &attempt{db: db, link: l, batch: b, failed: failed, strict: strict, results: make([]ledger.Result, len(b.Steps))}
	a.now = looked{make(map[seenKey]*seenRow), make(map[historyKey]*history), make(map[rowKey]*waitRow), make(map[carriedKey]bool)}
	a.ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return a
}

// limited is a context for one round trip of the ledger's own.
func (a *attempt) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(a.ctx), a.db.call)
}

// run is the transaction. It's left open where an error is returned.
func (a *attempt) run() error {
	if err := a.open(); err != nil {
		return err
	}
	if err := a.look(); err != nil {
		return err
	}
	for i, s := range a.batch.Steps {
		if err := a.failed[i]; err != nil {
			a.results[i].Err = err
			continue
		}
		if err := a.step(i, s); err != nil {
			return err
		}
		if a.strict && a.results[i].Err == nil {
			if err := a.flushStep(i); err != nil {
				return err
			}
		}
	}
	for _, p := range a.batch.Published {
		if l := a.lease(p.Fence.Key); a.holds(l, p.Fence) { // else the new owner publishes them again
			a.pending.published = append(a.pending.published, published{l.id, p.From, p.To})
		}
	}
	if err := a.flush(true); err != nil {
		return err
	}
	a.committing = true
	return a.db.endTx(a.link.conn())
}

// open begins the transaction and locks the batch's leases, in the order of their ids.
func (a *attempt) open() error {
	ctx, cancel := a.limited()
	defer cancel()
	keys := leaseKeys(a.batch)
	names, topics, parts := make([]string, len(keys)), make([][16]byte, len(keys)), make([]int32, len(keys))
	for i, k := range keys {
		names[i], topics[i], parts[i] = k.Group, k.TopicID, k.Partition
	}
	found := make(map[ledger.Key]foundLease, len(keys))
	b := &pgx.Batch{}
	a.db.open(b, inCommit)
	b.Queue(a.db.sql[qLockLeases], names, topics, parts).Query(func(rows pgx.Rows) error {
		return collect(rows, scanLease, func(l foundLease) { found[l.Key] = l })
	})
	if err := send(ctx, a.link.conn(), b); err != nil {
		return err
	}
	for _, k := range keys {
		l := found[k]
		l.Key = k
		if err := a.db.memory.check(l); err != nil {
			return err
		}
		a.leases = append(a.leases, &heldLease{foundLease: l, key: k})
	}
	return a.lookForCarried()
}

// holds tells whether a fence is a lease's present one.
func (a *attempt) holds(l *heldLease, f ledger.Fence) bool {
	return holds(l.foundLease, f) || l.id != 0 && sabotage.Is(sabotage.NoFence)
}

// fenced is the error of a step that must not commit: its lease has moved on, or nobody left it to its worker.
func (a *attempt) fenced(s *ledger.Step) error {
	l := a.lease(s.Fence.Key)
	switch {
	case !s.Carried && a.holds(l, s.Fence), s.Carried && a.now.carried[carriedKeyOf(l, s)]:
		return nil
	case s.Carried:
		return errNotCarried(s.Fence, s.Offset)
	}
	return errFenced(s.Fence, l.Lease)
}

// leaseKeys are the keys of a batch's leases, each once.
func leaseKeys(b *ledger.Batch) []ledger.Key {
	var keys []ledger.Key
	add := func(k ledger.Key) {
		if !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for _, s := range b.Steps {
		add(s.Fence.Key)
	}
	for _, p := range b.Published {
		add(p.Fence.Key)
	}
	return keys
}

func (a *attempt) lease(k ledger.Key) *heldLease {
	for _, l := range a.leases {
		if l.key == k {
			return l
		}
	}
	return nil
}

func (a *attempt) step(i int, s *ledger.Step) error {
	r := &a.results[i]
	l := a.lease(s.Fence.Key)
	if r.Err = a.fenced(s); r.Err != nil {
		return nil //nolint:nilerr // told in the step's result
	}
	before, handled := a.handled(l, s)
	if handled {
		r.Outcome = ledger.Duplicate
		a.finish(l, s)
		return nil
	}
	outcome, reason, err := a.decide(l, s)
	if err != nil {
		r.Err = err // it has written nothing yet, so the others may go on
		return nil  //nolint:nilerr // told in the step's result
	}
	if outcome == s.Outcome {
		if r.FirstSeq, err = a.carryOut(l, i, s); err != nil {
			return err
		}
	}
	a.wait(l, s, outcome, reason)
	count(l, s, before, outcome)
	a.finish(l, s)
	r.Outcome = outcome
	return nil
}

// handled tells whether the step's record was settled before, as after a COMMIT that was thought lost; and else, for
// a record in the backlog, what it is counted as.
func (a *attempt) handled(l *heldLease, s *ledger.Step) (before ledger.Outcome, handled bool) {
	if !s.FromBacklog {
		return 0, s.Offset < l.Next || l.Finished.Contains(s.Offset)
	}
	row := a.now.rows[rowKey{l.id, s.Offset}]
	switch {
	case row == nil || !row.present:
		return 0, true
	case row.dead:
		return ledger.Dead, false
	}
	return ledger.Waiting, false
}

// decide tells how the record ends: as the step says, or as a copy, or behind a gap in its sequence.
func (a *attempt) decide(l *heldLease, s *ledger.Step) (ledger.Outcome, string, error) {
	switch {
	case !settles(s):
		return s.Outcome, "", nil
	case s.Event.Sequence > 0:
		return a.inSequence(l, s)
	case asksSeen(s):
		outcome, err := a.firstSight(l, s)
		return outcome, "", err
	}
	return s.Outcome, "", nil
}

// settles tells whether a step's outcome is the group's last word on its event. One that was found where its key doesn't
// lead comes again where it does.
func settles(s *ledger.Step) bool {
	return s.Outcome != ledger.Waiting && s.Outcome != ledger.Duplicate && s.Outcome != ledger.Misrouted
}

// asksSeen tells whether a step's event is told from its copies by seen.
func asksSeen(s *ledger.Step) bool {
	return s.Outcome == ledger.Applied && s.Event.Sequence == 0 && !s.Event.Positional
}

// asksHistory tells whether it's told by its place in its history.
func asksHistory(s *ledger.Step) bool {
	return s.Event.Sequence > 0 && settles(s)
}

func historyOf(l *heldLease, s *ledger.Step) historyKey {
	return historyKey{l.group, hash(s.Event.Source, s.Event.Subject)}
}

// inSequence compares an event's place in its history with what was settled of it. However it ends, its place is
// taken then, but where it's parked: an event that was ignored must not leave a gap.
func (a *attempt) inSequence(l *heldLease, s *ledger.Step) (ledger.Outcome, string, error) {
	e, h := s.Event, a.now.histories[historyOf(l, s)]
	switch row := a.now.rows[rowKey{l.id, s.Offset}]; {
	case h.last == anywhere && stamp(s.LogTime) < h.logTime:
		return ledger.Duplicate, "", nil
	case s.FromBacklog && row.alone && e.Sequence <= h.last:
		return s.Outcome, "", nil
	case h.last != anywhere && e.Sequence <= h.last:
		return ledger.Duplicate, "", nil
	case e.Sequence == h.last+1, h.last == anywhere:
		if !parks(s) {
			h.last, h.lease, h.logTime = e.Sequence, l.id, stamp(s.LogTime)
		}
		return s.Outcome, "", nil
	case s.Wait == nil && !s.FromBacklog:
		return 0, "", fault.Fatalf("event %d of %s came after event %d, and the step has no row for the backlog", e.Sequence, e.Subject, h.last)
	}
	return ledger.Waiting, fmt.Sprintf("%s: event %d came before event %d", ledger.GapReason, e.Sequence, h.last+1), nil
}

// anywhere is how far a history got that was rewound: its next event is the first that comes of then or later.
const anywhere = -1

// parks tells whether a step leaves its dead record at the head of its aggregate.
func parks(s *ledger.Step) bool { return s.Outcome == ledger.Dead && s.Wait != nil && s.Wait.Dead }

// firstSight takes an event as applied, and tells it from its copies.
func (a *attempt) firstSight(l *heldLease, s *ledger.Step) (ledger.Outcome, error) {
	row := a.now.seen[seenKey{l.group, eventKey(s.Event.Source, s.Event.ID)}]
	switch {
	case !row.present:
		row.present, row.claimed, row.digest, row.lease = true, s, s.Event.Digest, l.id
		return s.Outcome, nil
	case row.digest == s.Event.Digest:
		return ledger.Duplicate, nil
	}
	return 0, fault.As(fault.Permanent, fmt.Errorf("%w: %s of %s has digest %s, and was applied with %s", ledger.ErrConflict,
		s.Event.ID, s.Event.Source, hex.EncodeToString(s.Event.Digest[:]), hex.EncodeToString(row.digest[:])))
}

// carryOut does what a step wants done: its effects, and its events into the outbox.
func (a *attempt) carryOut(l *heldLease, i int, s *ledger.Step) (firstSeq int64, err error) {
	for _, f := range s.Effects {
		if err := a.effect(i, f); err != nil {
			return 0, err
		}
	}
	if len(s.Emits) == 0 {
		return 0, nil
	}
	firstSeq = l.Seq + 1
	for _, o := range s.Emits {
		l.Seq++
		l.dirty = true
		a.pending.outbox = append(a.pending.outbox, outRow{l.id, l.Seq, o.Topic, o.Partition, encodeMessage(o.Message)})
	}
	return firstSeq, nil
}

// wait keeps the backlog in step with how a record ended.
func (a *attempt) wait(l *heldLease, s *ledger.Step, outcome ledger.Outcome, reason string) {
	if outcome == ledger.Dead || s.FromBacklog && outcome != ledger.Waiting {
		a.pending.dead = append(a.pending.dead, deadRow{rowKey{l.id, s.Offset}, outcome == ledger.Dead})
	}
	dead := outcome == ledger.Dead && parks(s)
	stays := outcome == ledger.Waiting || dead
	if reason == "" && s.Wait != nil {
		reason = s.Wait.Reason
	}
	k := rowKey{l.id, s.Offset}
	row := a.now.rows[k]
	switch {
	case s.FromBacklog && stays:
		row.changed, row.dead = true, dead
		if reason != "" {
			row.reason = reason
		}
	case s.FromBacklog:
		row.changed, row.present = true, false
	case stays:
		if row == nil {
			row = &waitRow{}
			a.now.rows[k] = row
		}
		row.changed, row.present, row.dead, row.reason, row.wait = true, true, dead, reason, s.Wait
		row.event = eventKey(s.Event.Source, s.Event.ID)
		if s.Event.Sequence > 0 {
			k := hash(s.Event.Source, s.Event.Subject)
			row.history = k[:]
		}
	}
}

// count enters a record under its outcome, once: one that comes from the backlog leaves the count that it had there.
func count(l *heldLease, s *ledger.Step, before, outcome ledger.Outcome) {
	l.dirty = true
	*l.Counters.Of(outcome)++
	if s.FromBacklog {
		*l.Counters.Of(before)--
		return
	}
	highest := l.Next - 1
	if n := len(l.Finished); n > 0 {
		highest = l.Finished[n-1].To
	}
	if s.Offset > highest {
		l.LastCRC = s.CRC
		if !s.LogTime.IsZero() {
			l.LastTime = s.LogTime
		}
	}
	l.Next, l.Finished = l.Finished.Add(ledger.Span{From: s.From, To: s.Offset}).Advance(l.Next)
}
