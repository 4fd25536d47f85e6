package postgres

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/swarmlog/swarmlog/internal/fault"
)

var (
	qForgetSeenIDs = define("DELETE FROM {}seen s USING unnest($1::integer[], $2::uuid[]) k (group_id, event) WHERE s.group_id = k.group_id AND s.event = k.event")
	qRewriteSeen   = define("UPDATE {}seen s SET digest = k.digest, lease_id = k.lease_id, log_time = k.log_time FROM unnest($1::integer[], $2::uuid[], $3::uuid[], $4::integer[], $5::bigint[]) " +
		"k (group_id, event, digest, lease_id, log_time) WHERE s.group_id = k.group_id AND s.event = k.event")
	qBeginHistories = define("INSERT INTO {}history (group_id, history, last, lease_id, log_time) " +
		"SELECT * FROM unnest($1::integer[], $2::bytea[], $3::bigint[], $4::integer[], $5::bigint[]) ON CONFLICT DO NOTHING")
	qMoveHistories = define("UPDATE {}history h SET last = k.last, lease_id = k.lease_id, log_time = k.log_time " +
		"FROM unnest($1::integer[], $2::bytea[], $3::bigint[], $4::integer[], $5::bigint[], $6::bigint[]) k (group_id, history, last, lease_id, log_time, was) " +
		"WHERE h.group_id = k.group_id AND h.history = k.history AND h.last = k.was")
	qGiveUp        = define("INSERT INTO {}dead (lease_id, position) SELECT * FROM unnest($1::integer[], $2::bigint[]) ON CONFLICT DO NOTHING")
	qRecover       = define("DELETE FROM {}dead d USING unnest($1::integer[], $2::bigint[]) k (lease_id, position) WHERE d.lease_id = k.lease_id AND d.position = k.position")
	qInsertOutbox  = define("INSERT INTO {}outbox (lease_id, seq, topic, part, message) SELECT * FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::integer[], $5::bytea[])")
	qDeleteOutbox  = define("DELETE FROM {}outbox WHERE lease_id = $1 AND seq BETWEEN $2 AND $3")
	qInsertBacklog = define("INSERT INTO {}backlog (lease_id, position, sequence, subject_key, subject, reason, dead, event, message, history, arrived) " +
		"SELECT k.*, {now} FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::uuid[], $5::bytea[], $6::text[], $7::boolean[], $8::uuid[], $9::bytea[], $10::bytea[]) k")
	qUpdateBacklog = define("UPDATE {}backlog b SET dead = k.dead, released = false, reason = CASE WHEN k.reason = '' THEN b.reason ELSE k.reason END " +
		"FROM unnest($1::integer[], $2::bigint[], $3::boolean[], $4::text[]) k (lease_id, position, dead, reason) WHERE b.lease_id = k.lease_id AND b.position = k.position")
	qDeleteBacklog = define("DELETE FROM {}backlog b USING unnest($1::integer[], $2::bigint[]) k (lease_id, position) WHERE b.lease_id = k.lease_id AND b.position = k.position")
	qSaveLease     = define("UPDATE {}lease SET next = $2, finished = $3, seq = $4, applied = $5, duplicate = $6, refused = $7, skipped = $8, ignored = $9, " +
		"dead = $10, waiting = $11, misrouted = $12, last_time = $13, last_crc = $14, commits = $15 WHERE id = $1")
	// A cancelled wait for the stand-by would count as a commit that it has.
	qBeforeCommit = define("SELECT set_config('statement_timeout', '0', true), pg_current_xact_id()::text, " + timeline)
)

const (
	// largestMessage is far above what a broker takes, and far below what a bytea holds.
	largestMessage = 256 << 20
	// statementBytes bounds what one statement inserts, with the message that passes it.
	statementBytes = 8 << 20
)

// pending is what the attempt has still to write.
type pending struct {
	outbox    []outRow
	published []published
	carried   []rowKey // that are carried no more
	dead      []deadRow
}

// deadRow is a record that was given up, or one that was and isn't any more.
type deadRow struct {
	rowKey
	dead bool
}

type outRow struct {
	lease     int32
	seq       int64
	topic     string
	partition int32
	message   []byte
}

type published struct {
	lease    int32
	from, to int64
}

// flushStep writes what a step has left, and lets its deferred constraints be checked.
func (a *attempt) flushStep(i int) error {
	err := a.flush(false)
	if err == nil {
		ctx, cancel := a.limited()
		defer cancel()
		b := &pgx.Batch{}
		b.Queue("SET CONSTRAINTS ALL IMMEDIATE")
		b.Queue("SET CONSTRAINTS ALL DEFERRED")
		err = send(ctx, a.link.conn(), b)
	}
	if err == nil || code(err) == "" || outage(code(err)) {
		return err
	}
	if dataError(err) {
		err = fault.As(fault.Permanent, err)
	}
	return &stepFailure{i, fmt.Errorf("commit the step: %w", err)}
}

// flush writes all that is pending, in one round trip; the leases come last.
func (a *attempt) flush(last bool) error {
	b := &pgx.Batch{}
	if last {
		a.fixSeen(b)
	}
	a.moveHistories(b)
	a.writeOutbox(b)
	a.writeBacklog(b)
	for _, l := range a.leases {
		if last && l.dirty {
			a.save(b, l)
		}
	}
	if last {
		b.Queue(a.db.sql[qBeforeCommit]).QueryRow(func(r pgx.Row) error { return r.Scan(nil, &a.xid, &a.timeline) })
	}
	ctx, cancel := a.limited()
	defer cancel()
	return send(ctx, a.link.conn(), b)
}

// exactly makes a statement that changes another number of rows a race that was lost.
func exactly(q *pgx.QueuedQuery, n int) {
	q.Exec(func(tag pgconn.CommandTag) error {
		if tag.RowsAffected() != int64(n) {
			return errRace
		}
		return nil
	})
}

// fixSeen takes ids out of seen again that no step took, and rewrites those that another one did than the one whose
// words they have.
func (a *attempt) fixSeen(b *pgx.Batch) {
	var unused, stale seenColumns
	for k, r := range a.now.seen {
		switch {
		case r.ours && r.claimed == nil:
			unused.groups, unused.events = append(unused.groups, k.group), append(unused.events, k.event)
		case r.stale():
			stale.groups, stale.events = append(stale.groups, k.group), append(stale.events, k.event)
			stale.digests, stale.leases = append(stale.digests, r.digest), append(stale.leases, r.lease)
			stale.times = append(stale.times, stamp(r.claimed.LogTime))
		}
	}
	if n := len(unused.groups); n > 0 {
		exactly(b.Queue(a.db.sql[qForgetSeenIDs], unused.groups, unused.events), n)
	}
	if n := len(stale.groups); n > 0 {
		exactly(b.Queue(a.db.sql[qRewriteSeen], stale.groups, stale.events, stale.digests, stale.leases, stale.times), n)
	}
}

// moveHistories writes how far histories got, in an order that all keep, and only from where they were found.
func (a *attempt) moveHistories(b *pgx.Batch) {
	var keys []historyKey
	for k, h := range a.now.histories {
		if h.last != h.was {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(x, y historyKey) int {
		return cmp.Or(cmp.Compare(x.group, y.group), bytes.Compare(x.history[:], y.history[:]))
	})
	var begun, moved historyColumns
	for _, k := range keys {
		h := a.now.histories[k]
		if h.was == 0 {
			begun.add(k, h)
		} else {
			moved.add(k, h)
		}
		h.was = h.last
	}
	if c, n := begun, len(begun.keys); n > 0 {
		exactly(b.Queue(a.db.sql[qBeginHistories], c.groups, c.keys, c.lasts, c.leases, c.times), n)
	}
	if c, n := moved, len(moved.keys); n > 0 {
		exactly(b.Queue(a.db.sql[qMoveHistories], c.groups, c.keys, c.lasts, c.leases, c.times, c.were), n)
	}
}

// historyColumns are rows of history as arrays for unnest.
type historyColumns struct {
	groups      []int32
	keys        [][]byte
	lasts, were []int64
	leases      []int32
	times       []int64
}

func (c *historyColumns) add(k historyKey, h *history) {
	c.groups, c.keys = append(c.groups, k.group), append(c.keys, k.history[:])
	c.lasts, c.were = append(c.lasts, h.last), append(c.were, h.was)
	c.leases, c.times = append(c.leases, h.lease), append(c.times, h.logTime)
}

func (a *attempt) writeOutbox(b *pgx.Batch) {
	var leases, parts []int32
	var seqs []int64
	var topics []string
	var messages [][]byte
	size := 0
	insert := func() {
		if len(leases) > 0 {
			b.Queue(a.db.sql[qInsertOutbox], leases, seqs, topics, parts, messages)
		}
		leases, parts, seqs, topics, messages, size = nil, nil, nil, nil, nil, 0
	}
	for _, o := range a.pending.outbox {
		leases, seqs, topics = append(leases, o.lease), append(seqs, o.seq), append(topics, o.topic)
		parts, messages = append(parts, o.partition), append(messages, o.message)
		if size += len(o.message); size > statementBytes {
			insert()
		}
	}
	insert()
	for _, p := range a.pending.published {
		b.Queue(a.db.sql[qDeleteOutbox], p.lease, p.from, p.to)
	}
	a.dropCarried(b)
	a.noteDead(b)
	a.pending = pending{}
}

// dropCarried removes the rows of carried steps, in an order that all keep. One that was put down meanwhile is a race.
func (a *attempt) dropCarried(b *pgx.Batch) {
	slices.SortFunc(a.pending.carried, func(x, y rowKey) int {
		return cmp.Or(cmp.Compare(x.lease, y.lease), cmp.Compare(x.position, y.position))
	})
	var leases []int32
	var positions []int64
	for _, k := range a.pending.carried {
		leases, positions = append(leases, k.lease), append(positions, k.position)
	}
	if n := len(leases); n > 0 {
		exactly(b.Queue(a.db.sql[qDropCarried], leases, positions), n)
	}
}

// noteDead keeps the list of those that wait for a person.
func (a *attempt) noteDead(b *pgx.Batch) {
	var leases [2][]int32
	var positions [2][]int64
	for _, d := range a.pending.dead {
		i := 0
		if d.dead {
			i = 1
		}
		leases[i], positions[i] = append(leases[i], d.lease), append(positions[i], d.position)
	}
	for i, q := range []stmt{qRecover, qGiveUp} {
		if len(leases[i]) > 0 {
			b.Queue(a.db.sql[q], leases[i], positions[i])
		}
	}
}

// waitColumns are rows of the backlog as arrays for unnest.
type waitColumns struct {
	leases    []int32
	positions []int64
	sequences []int64
	keys      [][16]byte
	subjects  [][]byte
	reasons   []string
	dead      []bool
	events    [][16]byte
	histories [][]byte
	messages  [][]byte
	size      int
}

func (w *waitColumns) add(k rowKey, r *waitRow) {
	w.leases, w.positions = append(w.leases, k.lease), append(w.positions, k.position)
	w.reasons, w.dead = append(w.reasons, text(r.reason)), append(w.dead, r.dead)
}

func (a *attempt) writeBacklog(b *pgx.Batch) {
	var made, changed, gone waitColumns
	insert := func() {
		if n := len(made.leases); n > 0 {
			exactly(b.Queue(a.db.sql[qInsertBacklog], made.leases, made.positions, made.sequences, made.keys, made.subjects,
				made.reasons, made.dead, made.events, made.messages, made.histories), n)
		}
		made = waitColumns{}
	}
	for k, r := range a.now.rows {
		switch {
		case !r.changed:
		case r.present && !r.was:
			m := encodeMessage(r.wait.Message)
			made.add(k, r)
			made.sequences, made.keys = append(made.sequences, r.wait.Sequence), append(made.keys, subjectKey(r.wait.Subject))
			made.events, made.histories = append(made.events, r.event), append(made.histories, r.history)
			made.subjects, made.messages = append(made.subjects, []byte(r.wait.Subject)), append(made.messages, m)
			if made.size += len(m); made.size > statementBytes {
				insert()
			}
		case r.present:
			changed.add(k, r)
		case r.was:
			gone.add(k, r)
		}
		r.was, r.changed = r.present, false
	}
	insert()
	if n := len(changed.leases); n > 0 {
		exactly(b.Queue(a.db.sql[qUpdateBacklog], changed.leases, changed.positions, changed.dead, changed.reasons), n)
	}
	if n := len(gone.leases); n > 0 {
		exactly(b.Queue(a.db.sql[qDeleteBacklog], gone.leases, gone.positions), n)
	}
}

func (a *attempt) save(b *pgx.Batch, l *heldLease) {
	c := l.Counters
	exactly(b.Queue(a.db.sql[qSaveLease], l.id, l.Next, l.Finished.Encode(l.Next), l.Seq, c.Applied, c.Duplicate, c.Refused, c.Skipped, c.Ignored,
		c.Dead, c.Waiting, c.Misrouted, stamp(l.LastTime), int64(l.LastCRC), l.commits+1), 1)
}
