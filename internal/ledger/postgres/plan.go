package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qPlan     = define(`SELECT group_name, topic_id, part, worker FROM {}plan ORDER BY group_name COLLATE "C", topic_id, part`)
	qDropPlan = define("DELETE FROM {}plan p WHERE NOT EXISTS (SELECT 1 FROM unnest($1::text[], $2::uuid[], $3::integer[]) k (group_name, topic_id, part) " +
		"WHERE k.group_name = p.group_name AND k.topic_id = p.topic_id AND k.part = p.part)")
	// What stays as it is isn't written.
	qWritePlan = define("INSERT INTO {}plan AS p SELECT DISTINCT ON (group_name, topic_id, part) * FROM unnest($1::text[], $2::uuid[], $3::integer[], $4::text[]) k (group_name, topic_id, part, worker) " +
		"ON CONFLICT (group_name, topic_id, part) DO UPDATE SET worker = excluded.worker WHERE p.worker <> excluded.worker")
)

// SetPlan implements ledger.Plans. The planner's lease keeps two from writing at the same time.
func (db *DB) SetPlan(ctx context.Context, f ledger.Fence, wants []ledger.Want) error {
	groups, topics, parts, workers := make([]string, len(wants)), make([][16]byte, len(wants)), make([]int32, len(wants)), make([]string, len(wants))
	for i, w := range wants {
		groups[i], topics[i], parts[i], workers[i] = w.Group, w.TopicID, w.Partition, w.Worker
	}
	err := db.underLease(ctx, qWriteLease, f.Key, func(ctx context.Context, c *pgx.Conn, l foundLease) error {
		if !holds(l, f) {
			return errFenced(f, l.Lease)
		}
		b := &pgx.Batch{}
		b.Queue(db.sql[qDropPlan], groups, topics, parts)
		b.Queue(db.sql[qWritePlan], groups, topics, parts, workers)
		return send(ctx, c, b)
	})
	if err != nil {
		return fmt.Errorf("write a plan for %d partitions: %w", len(wants), err)
	}
	return nil
}

// Plan implements ledger.Plans.
func (db *DB) Plan(ctx context.Context) (wants []ledger.Want, err error) {
	err = db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		wants = nil
		rows, err := c.Query(ctx, db.sql[qPlan])
		if err != nil {
			return err
		}
		return collect(rows, func(r pgx.CollectableRow) (w ledger.Want, err error) {
			err = r.Scan(&w.Group, &w.TopicID, &w.Partition, &w.Worker)
			return w, err
		}, func(w ledger.Want) { wants = append(wants, w) })
	})
	if err != nil {
		return nil, fmt.Errorf("read the plan: %w", err)
	}
	return wants, nil
}
