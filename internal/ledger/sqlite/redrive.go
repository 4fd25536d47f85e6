package sqlite

import (
	"context"
	"fmt"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qHead = define("SELECT position, source, sequence, message FROM swarmlog_backlog WHERE lease_id = ? AND subject = ? AND dead = 1 AND released = 0 " +
		"ORDER BY sequence, position LIMIT 1")
	qReleaseHead = define("UPDATE swarmlog_backlog SET released = 1 WHERE lease_id = ? AND position = ?")

	qAsk    = define("INSERT INTO swarmlog_ask VALUES (?, ?) ON CONFLICT DO NOTHING")
	qAnswer = define("DELETE FROM swarmlog_ask WHERE lease_id = ? AND subject = ?")
	qAsks   = define("SELECT g.name, l.topic_id, l.part, l.owner, l.epoch, a.subject FROM swarmlog_ask a JOIN swarmlog_lease l ON l.id = a.lease_id " +
		"JOIN swarmlog_group g ON g.id = l.group_id WHERE l.owner = ? ORDER BY g.name, l.topic_id, l.part, a.subject")
)

// decideOn runs f, in a write transaction, on the lease of an aggregate about which a person decides, and asks its
// owner to look where f says so. It's false where the lease was never taken.
func (db *DB) decideOn(ctx context.Context, verb string, key ledger.Key, subject string, f func(*conn, foundLease, leaseID) (bool, error)) (done bool, err error) {
	err = db.write(ctx, func(c *conn) error {
		done = false
		l, id, found, err := db.lease(c, key)
		if err != nil || !found {
			return err
		}
		if done, err = f(c, l, id); err != nil || !done {
			return err
		}
		_, err = c.exec(qAsk, id.id, subject)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("%s %s of %s on partition %d: %w", verb, subject, key.Group, key.Partition, err)
	}
	return done, nil
}

// head is the dead record that an aggregate is parked behind.
type head struct {
	position, sequence int64
	source             string
	message            []byte
}

func findHead(c *conn, id leaseID, subject string) (h head, found bool, err error) {
	found, err = c.first(qHead, func(r row) {
		h = head{position: r.int(0), source: r.text(1), sequence: r.int(2), message: append([]byte(nil), r.blob(3)...)}
	}, id.id, subject)
	return h, found, err
}

// Redrive implements ledger.Redrives.
func (db *DB) Redrive(ctx context.Context, key ledger.Key, subject string, offset int64) (bool, error) {
	return db.decideOn(ctx, "redrive", key, subject, func(c *conn, _ foundLease, id leaseID) (bool, error) {
		h, found, err := findHead(c, id, subject)
		if err != nil || !found || (offset >= 0 && h.position != offset) {
			return false, err
		}
		_, err = c.exec(qReleaseHead, id.id, h.position)
		return true, err
	})
}

// Discard implements ledger.Redrives.
func (db *DB) Discard(ctx context.Context, key ledger.Key, subject string, offset int64) (bool, error) {
	return db.decideOn(ctx, "discard", key, subject, func(c *conn, l foundLease, id leaseID) (bool, error) {
		h, found, err := findHead(c, id, subject)
		if err != nil || !found || (offset >= 0 && h.position != offset) {
			return false, err
		}
		if h.source == "" && h.sequence > 0 { // from before sources were kept
			e, err := eventOf(h.message, l, h.position)
			if err != nil {
				return false, err
			}
			h.source = e.Source
		}
		if _, err := c.exec(qDeleteBacklog, id.id, h.position); err != nil {
			return false, err
		}
		if _, err := c.exec(qForgetDead, id.id, h.position); err != nil {
			return false, err
		}
		if h.sequence > 0 {
			_, err = db.settleSequence(c, id, h.source, subject, h.sequence, stamp(l.LastTime))
		}
		return true, err
	})
}

// eventOf is the event of a stored record, as far as it can be read.
func eventOf(stored []byte, l foundLease, position int64) (event.Event, error) {
	m, err := decodeMessage(stored)
	if err != nil {
		return event.Event{}, fmt.Errorf("row of offset %d: %w", position, err)
	}
	e, _ := event.Decode(m, event.Position{Topic: l.Topic, Partition: l.Partition, Offset: position})
	return e, nil
}

// Requeue implements ledger.Redrives.
func (db *DB) Requeue(ctx context.Context, key ledger.Key, w ledger.Wait) (bool, error) {
	return db.decideOn(ctx, "requeue", key, w.Subject, func(c *conn, l foundLease, id leaseID) (bool, error) {
		if dead, err := c.first(qDead, func(row) {}, id.id, w.Offset); err != nil || !dead {
			return false, err
		}
		if there, err := c.first(qBacklogRow, func(row) {}, id.id, w.Offset); err != nil || there {
			return false, err
		}
		// So that what it was answered before is found, and kept while it waits.
		stored := encodeMessage(w.Message)
		e, err := eventOf(stored, l, w.Offset)
		if err != nil {
			return false, err
		}
		called, _ := eventKey(nil, e.Source, e.ID)
		_, err = c.exec(qInsertBacklog, id.id, w.Offset, w.Subject, w.Sequence, w.Reason, int64(1), stored, called[:16],
			e.Source, stamp(db.opts.Now()), int64(1), int64(1))
		return true, err
	})
}

// Asks implements ledger.Redrives.
func (db *DB) Asks(ctx context.Context, worker string) (asks []ledger.Ask, err error) {
	if worker == "" { // who owns what nobody has
		return nil, nil
	}
	err = db.read(ctx, func(c *conn) error {
		return c.query(qAsks, func(r row) error {
			a := ledger.Ask{Fence: ledger.Fence{Key: ledger.Key{Group: r.text(0), Partition: int32(r.int(2))}, Owner: r.text(3), Epoch: r.int(4)}, Subject: r.text(5)}
			copy(a.Fence.TopicID[:], r.blob(1))
			asks = append(asks, a)
			return nil
		}, worker)
	})
	if err != nil {
		return nil, fmt.Errorf("list what worker %s is asked: %w", worker, err)
	}
	return asks, nil
}

// Answer implements ledger.Redrives.
func (db *DB) Answer(ctx context.Context, f ledger.Fence, subjects ...string) error {
	err := db.write(ctx, func(c *conn) error {
		_, id, err := db.fenced(c, f)
		if err != nil {
			return err
		}
		for _, subject := range subjects {
			if _, err := c.exec(qAnswer, id.id, subject); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("answer %d asks of %s on partition %d: %w", len(subjects), f.Group, f.Partition, err)
	}
	return nil
}
