package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	lib "modernc.org/sqlite/lib"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/sabotage"
	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qSaveLease = define("UPDATE swarmlog_lease SET next = ?, finished = ?, seq = ?, applied = ?, duplicate = ?, refused = ?, " +
		"skipped = ?, ignored = ?, dead = ?, waiting = ?, misrouted = ?, last_time = ?, last_crc = ?, commits = ? WHERE id = ?")
	qInsertSeen = define("INSERT INTO swarmlog_seen (group_id, event, digest, lease_id, log_time) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING")
	qSeen       = define("SELECT digest FROM swarmlog_seen WHERE group_id = ? AND event = ?")

	// A history that is to be applied again begins at the first event that comes, from the row's log time on.
	qFirstOfSequence = define("INSERT INTO swarmlog_cursor (group_id, source, subject, last, lease_id, log_time) VALUES (?1, ?2, ?3, 1, ?4, ?5) " +
		"ON CONFLICT DO UPDATE SET last = 1, lease_id = ?4, log_time = ?5 WHERE last = -1 AND ?5 >= log_time")
	qNextOfSequence = define("UPDATE swarmlog_cursor SET last = ?4, lease_id = ?5, log_time = ?6 WHERE group_id = ?1 AND source = ?2 AND subject = ?3 " +
		"AND (last = ?4 - 1 OR last = -1 AND ?6 >= log_time)")
	qLastOfSequence = define("SELECT last, log_time FROM swarmlog_cursor WHERE group_id = ? AND source = ? AND subject = ?")

	qInsertOutbox  = define("INSERT INTO swarmlog_outbox (lease_id, seq, topic, part, message) VALUES (?, ?, ?, ?, ?)")
	qDeleteOutbox  = define("DELETE FROM swarmlog_outbox WHERE lease_id = ? AND seq BETWEEN ? AND ?")
	qBacklogRow    = define("SELECT dead, alone FROM swarmlog_backlog WHERE lease_id = ? AND position = ?")
	qInsertBacklog = define("INSERT INTO swarmlog_backlog (lease_id, position, subject, sequence, reason, dead, message, event, source, arrived, released, alone) " +
		"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")
	qUpdateBacklog = define("UPDATE swarmlog_backlog SET dead = ?3, released = 0, reason = coalesce(?4, reason) WHERE lease_id = ?1 AND position = ?2")
	qDeleteBacklog = define("DELETE FROM swarmlog_backlog WHERE lease_id = ? AND position = ?")
	qCommits       = define("SELECT commits FROM swarmlog_lease WHERE id = ?")
)

// attempt is one run of a batch's transaction. A run that a step fails is thrown away, and another one made without
// that step.
type attempt struct {
	db     *DB
	c      *conn
	batch  *ledger.Batch
	failed []error // by step; those that aren't nil are left out

	results    []ledger.Result
	leases     []*heldLease
	committing bool
	verdict    *bool // whether the COMMIT happened, where that was unknown and is known now
	scratch    []byte
	early      *earlyCommit // nil but where a fault switch is on

	watched
}

// heldLease is a lease as the transaction will leave it. All steps of a partition share one, whatever their fences.
type heldLease struct {
	ledger.Lease
	key    ledger.Key // that was asked for
	id     leaseID    // none where the lease was never taken
	dirty  bool
	before int64 // commits that the row had seen
}

// stepFailure is the error of an attempt that one step is to blame for.
type stepFailure struct {
	step int
	err  error
}

func (f *stepFailure) Error() string { return f.err.Error() }
func (f *stepFailure) Unwrap() error { return f.err }

func newAttempt(ctx context.Context, db *DB, c *conn, b *ledger.Batch, failed []error) *attempt {
	a := &attempt{db: db, c: c, batch: b, failed: failed, results: make([]ledger.Result, len(b.Steps))}
	a.ctx, a.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return a
}

// run is the transaction. It's left open where an error is returned.
func (a *attempt) run() error {
	if err := a.c.begin(qBeginWrite); err != nil {
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
	}
	for _, p := range a.batch.Published {
		l, err := a.lease(p.Fence.Key)
		if err != nil {
			return err
		}
		if l.fencing(p.Fence) != nil {
			continue // the new owner publishes them again
		}
		if _, err := a.c.exec(qDeleteOutbox, l.id.id, p.From, p.To); err != nil {
			return err
		}
	}
	for _, l := range a.leases {
		if err := a.save(l); err != nil {
			return err
		}
	}
	a.committing = true
	return a.db.endTx(a.c)
}

func (a *attempt) step(i int, s *ledger.Step) error {
	r := &a.results[i]
	l, err := a.lease(s.Fence.Key)
	if err != nil {
		return err
	}
	if r.Err, err = a.fenced(l, s); err != nil || r.Err != nil {
		return err
	}
	was, err := a.standing(l, s)
	if err != nil {
		return err
	}
	if was.handled {
		r.Outcome = ledger.Duplicate
		return a.putDown(l, s)
	}
	outcome, reason, err := a.decide(l, i, s, was)
	if errors.Is(err, ledger.ErrConflict) {
		r.Err = err // it has written nothing yet, so the others may go on
		return nil
	}
	if err != nil {
		return err
	}
	if outcome == s.Outcome {
		if r.FirstSeq, err = a.carryOut(l, i, s); err != nil {
			return err
		}
	}
	if err := a.wait(l, s, outcome, reason); err != nil {
		return a.ownError(i, err)
	}
	if err := a.noteDead(l, s, outcome); err != nil {
		return err
	}
	a.count(l, s, was.counted, outcome)
	r.Outcome = outcome
	return a.putDown(l, s)
}

// ownError is the error of one of the ledger's own statements that writes what a step gave.
func (a *attempt) ownError(i int, err error) error {
	if code(err) == lib.SQLITE_TOOBIG {
		return &stepFailure{i, fault.As(fault.Permanent, err)}
	}
	return err
}

// lease reads a lease once.
func (a *attempt) lease(key ledger.Key) (*heldLease, error) {
	for j := len(a.leases) - 1; j >= 0; j-- {
		if a.leases[j].key == key {
			return a.leases[j], nil
		}
	}
	h := &heldLease{key: key}
	id, found, err := a.db.leaseID(a.c, key)
	if err != nil {
		return nil, err
	}
	if found {
		var bad error
		if _, err = a.c.first(qLeaseByID, func(r row) { h.Lease, h.id, bad = readLease(r, a.db.opts.Now()); h.before = r.int(commitsColumn) }, id.id); err == nil {
			err = bad
		}
		if err != nil {
			return nil, err
		}
	}
	a.leases = append(a.leases, h)
	return h, nil
}

// fencing is the error of a write under a fence that isn't the lease's any more.
func (h *heldLease) fencing(f ledger.Fence) error {
	if h.Fence == f || h.Epoch > 0 && sabotage.Is(sabotage.NoFence) {
		return nil
	}
	return errFenced(f, h.Lease)
}

// fenced is what a step is fenced with: by the lease, or by its carried row where the lease moved on without it.
func (a *attempt) fenced(l *heldLease, s *ledger.Step) (fenced, err error) {
	if !s.Carried {
		return l.fencing(s.Fence), nil
	}
	ok, err := a.db.carries(a.c, l.id, s.Fence, s.Offset)
	if err != nil || ok || l.Epoch > 0 && sabotage.Is(sabotage.NoFence) {
		return nil, err
	}
	return errNotCarried(s.Fence, s.Offset), nil
}

// putDown ends the carrying of a step that is settled.
func (a *attempt) putDown(l *heldLease, s *ledger.Step) error {
	if !s.Carried {
		return nil
	}
	l.dirty = true // so that reading back tells whether the row went
	_, err := a.c.exec(qPutDown, l.id.id, s.Fence.Owner, s.Fence.Epoch, s.Offset)
	return err
}

// standing is how a step's record stood before it.
type standing struct {
	handled bool           // settled, as after a COMMIT that was thought lost
	counted ledger.Outcome // what a record in the backlog is counted as
	alone   bool           // it was put back there after its place in its history was taken
}

func (a *attempt) standing(l *heldLease, s *ledger.Step) (was standing, err error) {
	if !s.FromBacklog {
		was.handled = !a.early.finished(s) && (s.Offset < l.Next || l.Finished.Contains(s.Offset))
		return was, nil
	}
	was.counted = ledger.Waiting
	found, err := a.c.first(qBacklogRow, func(r row) {
		if r.int(0) != 0 {
			was.counted = ledger.Dead
		}
		was.alone = r.int(1) != 0
	}, l.id.id, s.Offset)
	was.handled = !found
	return was, err
}

// decide tells how the record ends: as the step says, or as a copy, or behind a gap in its sequence.
func (a *attempt) decide(l *heldLease, i int, s *ledger.Step, was standing) (ledger.Outcome, string, error) {
	switch {
	case s.Outcome == ledger.Waiting || s.Outcome == ledger.Duplicate || s.Outcome == ledger.Misrouted:
		return s.Outcome, "", nil // a misrouted record takes its place in its history where it's forwarded to
	case s.Event.Sequence > 0:
		return a.inSequence(l, i, s, was)
	case s.Outcome == ledger.Applied && !s.Event.Positional:
		outcome, err := a.firstSight(l, s)
		return outcome, "", err
	}
	return s.Outcome, "", nil
}

// inSequence compares an event's place in its history with what was settled of it. However it ends, its place is
// taken then, but where it's parked: an event that was ignored must not leave a gap.
func (a *attempt) inSequence(l *heldLease, i int, s *ledger.Step, was standing) (ledger.Outcome, string, error) {
	e := s.Event
	if !parks(s) {
		moved, err := a.db.settleSequence(a.c, l.id, e.Source, e.Subject, e.Sequence, stamp(s.LogTime))
		if err != nil || moved {
			return s.Outcome, "", err
		}
	}
	var last, since int64
	if _, err := a.c.first(qLastOfSequence, func(r row) { last, since = r.int(0), r.int(1) }, l.id.group, e.Source, e.Subject); err != nil {
		return 0, "", err
	}
	switch {
	case last < 0 && stamp(s.LogTime) < since:
		return ledger.Duplicate, "", nil
	case last < 0 || was.alone && e.Sequence <= last:
		return s.Outcome, "", nil
	case e.Sequence <= last:
		return ledger.Duplicate, "", nil
	case e.Sequence == last+1:
		return s.Outcome, "", nil
	case s.Wait == nil && !s.FromBacklog:
		return 0, "", &stepFailure{i, fault.Fatalf("event %d of %s came after event %d, and the step has no row for the backlog", e.Sequence, e.Subject, last)}
	}
	return ledger.Waiting, fmt.Sprintf("%s: event %d came before event %d", ledger.GapReason, e.Sequence, last+1), nil
}

// settleSequence takes an event's place in its history, where it's the next one.
func (db *DB) settleSequence(c *conn, id leaseID, source, subject string, sequence, logTime int64) (bool, error) {
	var moved int64
	var err error
	if sequence == 1 {
		moved, err = c.exec(qFirstOfSequence, id.group, source, subject, id.id, logTime)
	} else {
		moved, err = c.exec(qNextOfSequence, id.group, source, subject, sequence, id.id, logTime)
	}
	return moved > 0, err
}

// parks tells whether a step leaves its dead record at the head of its aggregate.
func parks(s *ledger.Step) bool { return s.Outcome == ledger.Dead && s.Wait != nil && s.Wait.Dead }

// firstSight notes an event as applied, and tells it from its copies.
func (a *attempt) firstSight(l *heldLease, s *ledger.Step) (ledger.Outcome, error) {
	key := a.eventKey(s.Event.Source, s.Event.ID)
	n, err := a.c.exec(qInsertSeen, l.id.group, key, s.Event.Digest[:], l.id.id, stamp(s.LogTime))
	if err != nil || n > 0 || a.early.inserted(s) {
		return s.Outcome, err
	}
	var was []byte
	if _, err := a.c.first(qSeen, func(r row) { was = r.blob(0) }, l.id.group, key); err != nil {
		return 0, err
	}
	if slices.Equal(was, s.Event.Digest[:]) {
		return ledger.Duplicate, nil
	}
	return 0, fault.As(fault.Permanent, fmt.Errorf("%w: %s of %s has digest %s, and was applied with %s", ledger.ErrConflict,
		s.Event.ID, s.Event.Source, hex.EncodeToString(s.Event.Digest[:]), hex.EncodeToString(was)))
}

func (a *attempt) eventKey(source, id string) []byte {
	var sum [sha256.Size]byte
	sum, a.scratch = eventKey(a.scratch, source, id)
	return sum[:16]
}

// eventKey is what an event is found by in seen and recorded: 16 bytes of SHA-256 over its source and id.
func eventKey(scratch []byte, source, id string) (sum [sha256.Size]byte, _ []byte) {
	scratch = binary.AppendUvarint(scratch[:0], uint64(len(source)))
	scratch = append(append(scratch, source...), id...)
	return sha256.Sum256(scratch), scratch
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
		if _, err := a.c.exec(qInsertOutbox, l.id.id, l.Seq, o.Topic, int64(o.Partition), encodeMessage(o.Message)); err != nil {
			return 0, a.ownError(i, err)
		}
	}
	return firstSeq, nil
}

// wait keeps the backlog in step with how a record ended.
func (a *attempt) wait(l *heldLease, s *ledger.Step, outcome ledger.Outcome, reason string) (err error) {
	dead := outcome == ledger.Dead && parks(s)
	stays := outcome == ledger.Waiting || dead
	if reason == "" && s.Wait != nil {
		reason = s.Wait.Reason
	}
	flag := int64(0)
	if dead {
		flag = 1
	}
	switch {
	case s.FromBacklog && stays:
		var why driver.Value // unchanged
		if reason != "" {
			why = reason
		}
		_, err = a.c.exec(qUpdateBacklog, l.id.id, s.Offset, flag, why)
	case s.FromBacklog:
		_, err = a.c.exec(qDeleteBacklog, l.id.id, s.Offset)
	case stays:
		w := s.Wait
		var key [sha256.Size]byte
		key, a.scratch = eventKey(a.scratch, s.Event.Source, s.Event.ID)
		_, err = a.c.exec(qInsertBacklog, l.id.id, s.Offset, w.Subject, w.Sequence, reason, flag, encodeMessage(w.Message), key[:16],
			s.Event.Source, stamp(a.db.opts.Now()), int64(0), int64(0))
	}
	return err
}

// noteDead keeps which records are dead and wait for a person.
func (a *attempt) noteDead(l *heldLease, s *ledger.Step, outcome ledger.Outcome) (err error) {
	switch {
	case outcome == ledger.Dead:
		_, err = a.c.exec(qNoteDead, l.id.id, s.Offset)
	case s.FromBacklog && outcome != ledger.Waiting:
		_, err = a.c.exec(qForgetDead, l.id.id, s.Offset)
	}
	return err
}

// count enters a record under its outcome, once: one that comes from the backlog leaves the count that it had there.
func (a *attempt) count(l *heldLease, s *ledger.Step, before, outcome ledger.Outcome) {
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

func (a *attempt) save(l *heldLease) error {
	if !l.dirty {
		return nil
	}
	c := l.Counters
	n, err := a.c.exec(qSaveLease, l.Next, l.Finished.Encode(l.Next), l.Seq, c.Applied, c.Duplicate, c.Refused, c.Skipped, c.Ignored,
		c.Dead, c.Waiting, c.Misrouted, stamp(l.LastTime), int64(l.LastCRC), l.before+1, l.id.id)
	if err == nil && n != 1 {
		err = fault.Fatalf("lease of %s on %s/%d is gone from the ledger", l.Group, l.Topic, l.Partition)
	}
	return err
}
