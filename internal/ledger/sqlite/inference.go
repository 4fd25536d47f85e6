package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

const answerColumns = "i.model, i.response, i.tokens_in, i.tokens_out, i.time"

var (
	qRecorded = define("SELECT r.inference_id, " + answerColumns + " FROM swarmlog_recorded r LEFT JOIN swarmlog_inference i ON i.id = r.inference_id " +
		"WHERE r.group_id = ? AND r.event = ? AND r.name = ?")
	qReusable      = define("SELECT i.id, " + answerColumns + " FROM swarmlog_inference i WHERE i.address = ? AND i.reusable = 1 ORDER BY i.id DESC LIMIT 1")
	qForgetPending = define("DELETE FROM swarmlog_recorded WHERE address = ? AND reuse = 1 AND inference_id IS NULL")
	// Begun by another event's step, under a lease that another worker still has or with its step carried by another,
	// and not long ago.
	qElsewhere = define("SELECT coalesce(l.owner, c.worker) FROM swarmlog_recorded r " +
		"LEFT JOIN swarmlog_lease l ON l.id = r.lease_id AND l.epoch = r.epoch AND l.owner NOT IN ('', ?3) AND l.expires > ?4 " +
		"LEFT JOIN swarmlog_carried c ON c.lease_id = r.lease_id AND c.position = r.position AND c.epoch = r.epoch AND c.worker <> ?3 AND c.expires > ?4 " +
		"WHERE r.address = ?1 AND r.reuse = 1 AND r.inference_id IS NULL AND r.time > ?2 AND (l.id IS NOT NULL OR c.worker IS NOT NULL) " +
		"AND NOT (r.group_id = ?5 AND r.event = ?6 AND r.name = ?7) LIMIT 1")
	qRecord = define("INSERT INTO swarmlog_recorded (group_id, event, name, address, reuse, key, inference_id, time, lease_id, epoch, position) " +
		"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET address = excluded.address, reuse = excluded.reuse, key = excluded.key, " +
		"inference_id = excluded.inference_id, time = excluded.time, lease_id = excluded.lease_id, epoch = excluded.epoch, " +
		"position = excluded.position")
	qInsertAnswer = define("INSERT INTO swarmlog_inference (address, model, response, tokens_in, tokens_out, time, reusable) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id")
	qAbandon      = define("DELETE FROM swarmlog_recorded WHERE group_id = ? AND event = ? AND name = ? AND inference_id IS NULL")
	qCountCalls   = define("UPDATE swarmlog_inference_total SET calls = calls + ?, reused = reused + ?, in_doubt = in_doubt + ?")
	qCalls        = define("SELECT calls, reused, in_doubt FROM swarmlog_inference_total")
)

// callKey is where a call's record is, and the lease that it's made under.
type callKey struct {
	lease int64
	group int64
	event []byte
	name  string
}

// callKey finds where a call's record is, under its fence: the lease's, or that of its step where it's carried.
func (db *DB) callKey(c *conn, call ledger.Call) (callKey, error) {
	_, id, err := db.fenced(c, call.Fence)
	if errors.Is(err, ledger.ErrFenced) {
		carried, failed := db.carries(c, id, call.Fence, call.Offset)
		switch {
		case failed != nil:
			err = failed
		case carried:
			err = nil
		}
	}
	if err != nil {
		return callKey{}, err
	}
	sum, _ := eventKey(nil, call.Source, call.EventID)
	return callKey{id.id, id.group, sum[:16], call.Name}, nil
}

func readAnswer(r row) ledger.Answer {
	return ledger.Answer{Model: r.text(1), Response: append([]byte{}, r.blob(2)...), TokensIn: r.int(3), TokensOut: r.int(4), At: unstamp(r.int(5))}
}

// record writes a call's record; inference 0 is pending.
func (db *DB) record(c *conn, k callKey, call ledger.Call, inference int64) error {
	reuse := int64(0)
	if call.Reuse {
		reuse = 1
	}
	var id any
	if inference != 0 {
		id = inference
	}
	_, err := c.exec(qRecord, k.group, k.event, k.name, call.Address[:], reuse, call.Key, id, stamp(db.opts.Now()), k.lease, call.Fence.Epoch, call.Offset)
	return err
}

// Recall implements ledger.Ledger. In this order: what this event's step got, what the address may be answered with,
// a call that was begun and never ended, and else a new one.
func (db *DB) Recall(ctx context.Context, call ledger.Call) (answer ledger.Answer, state ledger.CallState, err error) {
	err = db.write(ctx, func(c *conn) error {
		k, err := db.callKey(c, call)
		if err != nil {
			return err
		}
		answer, state, err = db.recall(c, k, call)
		return err
	})
	if err != nil {
		return ledger.Answer{}, 0, fmt.Errorf("recall call %q of event %s for %s: %w", call.Name, call.EventID, call.Fence.Group, err)
	}
	return answer, state, nil
}

func (db *DB) recall(c *conn, k callKey, call ledger.Call) (answer ledger.Answer, _ ledger.CallState, err error) {
	answered := false
	begun, err := c.first(qRecorded, func(r row) {
		if answered = !r.null(0); answered {
			answer = readAnswer(r)
		}
	}, k.group, k.event, k.name)
	if err != nil {
		return answer, 0, err
	}
	if answered {
		_, err := c.exec(qCountCalls, int64(0), int64(1), int64(0))
		return answer, ledger.CallRecorded, err
	}
	if call.Reuse {
		var id int64
		found, err := c.first(qReusable, func(r row) { id, answer = r.int(0), readAnswer(r) }, call.Address[:])
		if err != nil {
			return answer, 0, err
		}
		if found {
			if err := db.record(c, k, call, id); err != nil {
				return answer, 0, err
			}
			_, err := c.exec(qCountCalls, int64(0), int64(1), int64(0))
			return answer, ledger.CallReused, err
		}
		if err := db.elsewhere(c, k, call); err != nil {
			return answer, 0, err
		}
		// A call of another event to the same address that is still pending isn't in the air: the same owner would have
		// kept this one back, and others have lost their lease. So it's in doubt, and this one takes its place.
		n, err := c.exec(qForgetPending, call.Address[:])
		if err != nil {
			return answer, 0, err
		}
		begun = begun || n > 0
	}
	if err := db.record(c, k, call, 0); err != nil {
		return answer, 0, err
	}
	if begun {
		_, err = c.exec(qCountCalls, int64(1), int64(0), int64(1))
		return answer, ledger.CallInDoubt, err
	}
	_, err = c.exec(qCountCalls, int64(1), int64(0), int64(0))
	return answer, ledger.CallNew, err
}

// elsewhere is ErrElsewhere where another worker may have a call to the same address in the air.
func (db *DB) elsewhere(c *conn, k callKey, call ledger.Call) error {
	now := db.opts.Now()
	var owner string
	found, err := c.first(qElsewhere, func(r row) { owner = r.text(0) }, call.Address[:], stamp(now.Add(-ledger.CallTime)),
		call.Fence.Owner, stamp(now), k.group, k.event, k.name)
	if err == nil && found {
		err = fault.As(fault.Unavailable, fmt.Errorf("%w: %s", ledger.ErrElsewhere, owner))
	}
	return err
}

// Settle implements ledger.Ledger. The first answer to a call stays.
func (db *DB) Settle(ctx context.Context, call ledger.Call, a ledger.Answer) error {
	err := db.write(ctx, func(c *conn) error {
		k, err := db.callKey(c, call)
		if err != nil {
			return err
		}
		answered := false
		if _, err := c.first(qRecorded, func(r row) { answered = !r.null(0) }, k.group, k.event, k.name); err != nil || answered {
			return err
		}
		reusable := int64(0)
		if call.Reuse {
			reusable = 1
		}
		var id int64
		if _, err := c.first(qInsertAnswer, func(r row) { id = r.int(0) },
			call.Address[:], a.Model, a.Response, a.TokensIn, a.TokensOut, stamp(a.At), reusable); err != nil {
			return err
		}
		return db.record(c, k, call, id)
	})
	if err != nil {
		return fmt.Errorf("settle call %q of event %s for %s: %w", call.Name, call.EventID, call.Fence.Group, err)
	}
	return nil
}

// Abandon implements ledger.Ledger.
func (db *DB) Abandon(ctx context.Context, call ledger.Call) error {
	err := db.write(ctx, func(c *conn) error {
		k, err := db.callKey(c, call)
		if err != nil {
			return err
		}
		_, err = c.exec(qAbandon, k.group, k.event, k.name)
		return err
	})
	if err != nil {
		return fmt.Errorf("abandon call %q of event %s for %s: %w", call.Name, call.EventID, call.Fence.Group, err)
	}
	return nil
}
