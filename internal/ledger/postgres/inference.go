package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

const answerColumns = "i.id, i.model, i.response, i.tokens_in, i.tokens_out, i.time"

const keepAnswer = "ON CONFLICT (group_id, call) DO UPDATE SET lease_id = excluded.lease_id, epoch = excluded.epoch, position = excluded.position, address = excluded.address, " +
	"reuse = excluded.reuse, key = excluded.key, inference_id = excluded.inference_id, time = excluded.time WHERE recorded.inference_id IS NULL"

var (
	qRecorded = define("SELECT " + answerColumns + " FROM {}recorded r JOIN {}agent_group g ON g.id = r.group_id LEFT JOIN {}inference i ON i.id = r.inference_id " +
		"WHERE g.name = $1 AND r.call = $2")
	// Kept until the call's transaction ends, so that nobody takes the step over in between.
	qCarriesCall = define("SELECT c.position FROM {}lease l JOIN {}agent_group g ON g.id = l.group_id JOIN {}carried c ON c.lease_id = l.id " +
		"WHERE g.name = $1 AND l.topic_id = $2 AND l.part = $3 AND c.position = $4 AND c.worker = $5 AND c.epoch = $6 FOR KEY SHARE OF c")
	qReusable      = define("SELECT " + answerColumns + " FROM {}inference i WHERE i.address = $1 AND i.reusable ORDER BY i.id DESC LIMIT 1")
	qForgetPending = define("DELETE FROM {}recorded WHERE address = $1 AND reuse AND inference_id IS NULL")
	// Begun by another event's step, not long ago, under a lease that another worker still has, or that has moved on
	// while another worker carries the step.
	qElsewhere = define("SELECT coalesce(c.worker, l.owner) FROM {}recorded r JOIN {}lease l ON l.id = r.lease_id LEFT JOIN {}worker w ON w.id = l.owner " +
		"LEFT JOIN ({}carried c LEFT JOIN {}worker cw ON cw.id = c.worker) ON c.lease_id = r.lease_id AND c.epoch = r.epoch AND c.position = r.position " +
		"WHERE r.address = $1 AND r.reuse AND r.inference_id IS NULL AND r.time > {now} - $2 AND NOT (r.group_id = $4 AND r.call = $5) AND " +
		"(l.epoch = r.epoch AND l.owner NOT IN ('', $3) AND " + leaseExpires + " > {now} OR " +
		"c.worker <> $3 AND CASE WHEN cw.beat > c.taken THEN cw.expires ELSE c.expires END > {now}) LIMIT 1")
	// An answer stays: a call is begun again only where it has none.
	qRecord = define("INSERT INTO {}recorded (group_id, call, event, lease_id, epoch, position, address, reuse, key, inference_id, time) " +
		"VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, {now}) " + keepAnswer)
	qSettle = define("WITH i AS (INSERT INTO {}inference (address, model, response, tokens_in, tokens_out, time, reusable) VALUES ($7, $10, $11, $12, $13, $14, $8) RETURNING id) " +
		"INSERT INTO {}recorded (group_id, call, event, lease_id, epoch, position, address, reuse, key, inference_id, time) " +
		"SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, i.id, {now} FROM i " + keepAnswer)
	qAbandon    = define("DELETE FROM {}recorded WHERE group_id = $1 AND call = $2 AND inference_id IS NULL")
	qCountCalls = define("UPDATE {}inference_total SET calls = calls + $1, reused = reused + $2, in_doubt = in_doubt + $3 WHERE shard = pg_backend_pid() % 64")
	qCalls      = define("SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(reused), 0)::bigint, coalesce(sum(in_doubt), 0)::bigint FROM {}inference_total")
)

// called is an answer with its row's id; 0 where there's none.
type called struct {
	id int64
	ledger.Answer
}

func scanCalled(r pgx.CollectableRow) (a called, err error) {
	var id, in, out, at *int64
	var model *string
	var response []byte
	if err := r.Scan(&id, &model, &response, &in, &out, &at); err != nil || id == nil {
		return a, err
	}
	return called{*id, ledger.Answer{Model: *model, Response: append([]byte{}, response...), TokensIn: *in, TokensOut: *out, At: unstamp(*at)}}, nil
}

// callTx is a transaction about one call, under its fence: what it begins with takes one round trip, and what it ends
// with another.
type callTx struct {
	db   *DB
	c    *pgx.Conn
	call ledger.Call
	key  []byte

	group    int32
	lease    int32
	begun    bool // there's a record of it
	recorded called
}

// inCall runs f in a transaction about a call. The lease's row is shared: a change of its owner waits, a commit doesn't.
func (db *DB) inCall(ctx context.Context, what string, call ledger.Call, f func(context.Context, *callTx) error) error {
	err := db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		t := &callTx{db: db, c: c, call: call, key: callKey(call.Source, call.EventID, call.Name)}
		b := &pgx.Batch{}
		db.open(b, inOwn)
		var l foundLease
		b.Queue(db.sql[qShareLease], call.Fence.Group, call.Fence.TopicID, call.Fence.Partition).Query(func(rows pgx.Rows) error {
			return collect(rows, scanLease, func(f foundLease) { l = f })
		})
		b.Queue(db.sql[qRecorded], call.Fence.Group, t.key).Query(func(rows pgx.Rows) error {
			return collect(rows, scanCalled, func(a called) { t.begun, t.recorded = true, a })
		})
		carried := false
		b.Queue(db.sql[qCarriesCall], call.Fence.Group, call.Fence.TopicID, call.Fence.Partition, call.Offset, call.Fence.Owner, call.Fence.Epoch).
			Query(func(rows pgx.Rows) error {
				return collect(rows, pgx.RowTo[int64], func(int64) { carried = true })
			})
		if err := send(ctx, c, b); err != nil {
			return err
		}
		if !holds(l, call.Fence) && !carried {
			return errFenced(call.Fence, l.Lease)
		}
		t.group, t.lease = l.group, l.id
		if err := f(ctx, t); err != nil {
			return err
		}
		return db.commit(c)
	})
	if err != nil {
		return fmt.Errorf("%s call %q of event %s for %s: %w", what, call.Name, call.EventID, call.Fence.Group, err)
	}
	return nil
}

func (t *callTx) record(b *pgx.Batch, inference int64) {
	var id *int64
	if inference != 0 {
		id = &inference
	}
	b.Queue(t.db.sql[qRecord], append(t.named(), id)...)
}

// named is what a record says of its call.
func (t *callTx) named() []any {
	c := t.call
	return []any{t.group, t.key, eventKey(c.Source, c.EventID), t.lease, c.Fence.Epoch, c.Offset, c.Address[:], c.Reuse, text(c.Key)}
}

func (t *callTx) count(b *pgx.Batch, calls, reused, inDoubt int64) {
	b.Queue(t.db.sql[qCountCalls], calls, reused, inDoubt)
}

// Recall implements ledger.Ledger. In this order: what this event's step got, what the address may be answered with,
// a call that was begun and never ended, and else a new one.
func (db *DB) Recall(ctx context.Context, call ledger.Call) (answer ledger.Answer, state ledger.CallState, err error) {
	err = db.inCall(ctx, "recall", call, func(ctx context.Context, t *callTx) error {
		answer, state, err = t.recall(ctx)
		return err
	})
	if err != nil {
		return ledger.Answer{}, 0, err
	}
	return answer, state, nil
}

func (t *callTx) recall(ctx context.Context) (ledger.Answer, ledger.CallState, error) {
	b := &pgx.Batch{}
	if t.recorded.id != 0 {
		t.count(b, 0, 1, 0)
		return t.recorded.Answer, ledger.CallRecorded, send(ctx, t.c, b)
	}
	begun := t.begun
	if t.call.Reuse {
		found, elsewhere, err := t.ask(ctx)
		switch {
		case err != nil:
			return ledger.Answer{}, 0, err
		case found.id != 0:
			t.record(b, found.id)
			t.count(b, 0, 1, 0)
			return found.Answer, ledger.CallReused, send(ctx, t.c, b)
		case elsewhere != "":
			return ledger.Answer{}, 0, own(fault.As(fault.Unavailable, fmt.Errorf("%w: %s", ledger.ErrElsewhere, elsewhere)))
		}
		// A call of another event to the same address that is still pending isn't in the air: the same owner would have
		// kept this one back, and others have lost their lease. So it's in doubt, and this one takes its place.
		tag, err := t.c.Exec(ctx, t.db.sql[qForgetPending], t.call.Address[:])
		if err != nil {
			return ledger.Answer{}, 0, err
		}
		begun = begun || tag.RowsAffected() > 0
	}
	t.record(b, 0)
	state, inDoubt := ledger.CallNew, int64(0)
	if begun {
		state, inDoubt = ledger.CallInDoubt, 1
	}
	t.count(b, 1, 0, inDoubt)
	return ledger.Answer{}, state, send(ctx, t.c, b)
}

// ask looks for a reusable answer to the call's address, and for another worker who may be about to get one. Whoever
// asks about an address has it to himself until his transaction ends: else two would find nobody, and both would call.
func (t *callTx) ask(ctx context.Context) (found called, elsewhere string, err error) {
	b := &pgx.Batch{}
	b.Queue("SELECT pg_advisory_xact_lock($1)", t.db.advisory("call "+string(t.call.Address[:])))
	b.Queue(t.db.sql[qReusable], t.call.Address[:]).Query(func(rows pgx.Rows) error {
		return collect(rows, scanCalled, func(a called) { found = a })
	})
	b.Queue(t.db.sql[qElsewhere], t.call.Address[:], ledger.CallTime.Microseconds(), t.call.Fence.Owner, t.group, t.key).Query(func(rows pgx.Rows) error {
		return collect(rows, pgx.RowTo[string], func(owner string) { elsewhere = owner })
	})
	return found, elsewhere, send(ctx, t.c, b)
}

// Settle implements ledger.Ledger. The first answer to a call stays.
func (db *DB) Settle(ctx context.Context, call ledger.Call, a ledger.Answer) error {
	return db.inCall(ctx, "settle", call, func(ctx context.Context, t *callTx) error {
		if t.recorded.id != 0 {
			return nil
		}
		_, err := t.c.Exec(ctx, db.sql[qSettle], append(t.named(), text(a.Model), a.Response, a.TokensIn, a.TokensOut, stamp(a.At))...)
		return err
	})
}

// Abandon implements ledger.Ledger.
func (db *DB) Abandon(ctx context.Context, call ledger.Call) error {
	return db.inCall(ctx, "abandon", call, func(ctx context.Context, t *callTx) error {
		_, err := t.c.Exec(ctx, db.sql[qAbandon], t.group, t.key)
		return err
	})
}
