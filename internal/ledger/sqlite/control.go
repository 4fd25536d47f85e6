package sqlite

import (
	"context"
	"fmt"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qSetControl = define("INSERT INTO swarmlog_control (group_name, paused, reason, time) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO UPDATE " +
		"SET time = CASE WHEN paused = ?2 THEN time ELSE ?4 END, paused = ?2, reason = ?3")
	qControls = define("SELECT group_name, paused, reason, time FROM swarmlog_control ORDER BY group_name")

	qSetRoute = define("INSERT INTO swarmlog_route (topic_id, topic, partitions) VALUES (?, ?, ?) ON CONFLICT DO NOTHING")
	qRoute    = define("SELECT partitions FROM swarmlog_route WHERE topic_id = ?")

	qForgetPlan = define("DELETE FROM swarmlog_plan")
	qPlanFor    = define("INSERT INTO swarmlog_plan (group_name, topic_id, part, worker) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET worker = excluded.worker")
	qPlan       = define("SELECT group_name, topic_id, part, worker FROM swarmlog_plan ORDER BY group_name, topic_id, part")
)

// SetControl implements ledger.Controls.
func (db *DB) SetControl(ctx context.Context, control ledger.Control) error {
	err := db.write(ctx, func(c *conn) error {
		paused := int64(0)
		if control.Paused {
			paused = 1
		}
		_, err := c.exec(qSetControl, control.Group, paused, control.Reason, stamp(db.opts.Now()))
		return err
	})
	if err != nil {
		return fmt.Errorf("control agent %s: %w", control.Group, err)
	}
	return nil
}

// Controls implements ledger.Controls.
func (db *DB) Controls(ctx context.Context) (controls []ledger.Control, err error) {
	err = db.read(ctx, func(c *conn) error {
		return c.query(qControls, func(r row) error {
			controls = append(controls, ledger.Control{Group: r.text(0), Paused: r.int(1) != 0, Reason: r.text(2), At: unstamp(r.int(3))})
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list what agents are told: %w", err)
	}
	return controls, nil
}

// Route implements ledger.Controls. Most calls find what was set before, and write nothing.
func (db *DB) Route(ctx context.Context, topicID [16]byte, topic string, partitions int32) (slots int32, err error) {
	if partitions < 1 {
		return 0, fault.Fatalf("route of topic %s: it has %d partitions", topic, partitions)
	}
	found := false
	read := func(c *conn) (err error) {
		found, err = c.first(qRoute, func(r row) { slots = int32(r.int(0)) }, topicID[:])
		return err
	}
	if err = db.read(ctx, read); err == nil && !found {
		err = db.write(ctx, func(c *conn) error {
			if _, err := c.exec(qSetRoute, topicID[:], topic, int64(partitions)); err != nil {
				return err
			}
			return read(c)
		})
	}
	if err != nil {
		return 0, fmt.Errorf("route of topic %s: %w", topic, err)
	}
	return slots, nil
}

// SetPlan implements ledger.Plans.
func (db *DB) SetPlan(ctx context.Context, f ledger.Fence, wants []ledger.Want) error {
	err := db.write(ctx, func(c *conn) error {
		if _, _, err := db.fenced(c, f); err != nil {
			return err
		}
		if _, err := c.exec(qForgetPlan); err != nil {
			return err
		}
		for _, w := range wants {
			if _, err := c.exec(qPlanFor, w.Group, w.TopicID[:], int64(w.Partition), w.Worker); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("set a plan for %d partitions: %w", len(wants), err)
	}
	return nil
}

// Plan implements ledger.Plans.
func (db *DB) Plan(ctx context.Context) (wants []ledger.Want, err error) {
	err = db.read(ctx, func(c *conn) error {
		return c.query(qPlan, func(r row) error {
			w := ledger.Want{Key: ledger.Key{Group: r.text(0), Partition: int32(r.int(2))}, Worker: r.text(3)}
			copy(w.TopicID[:], r.blob(1))
			wants = append(wants, w)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read the plan: %w", err)
	}
	return wants, nil
}
