package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qBeat = define("INSERT INTO swarmlog_worker VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET pool = excluded.pool, " +
		"started = excluded.started, beat = excluded.beat, in_flight = excluded.in_flight, oldest = excluded.oldest, " +
		"steps = excluded.steps, memory = excluded.memory")
	qRetire     = define("DELETE FROM swarmlog_worker WHERE id = ?")
	qPutAllDown = define("DELETE FROM swarmlog_carried WHERE worker = ?")
	qWorkers    = define("SELECT id, pool, started, beat, in_flight, oldest, steps, memory FROM swarmlog_worker WHERE beat >= ? ORDER BY id")
)

// Beat implements ledger.Ledger.
func (db *DB) Beat(ctx context.Context, w ledger.Worker, ttl time.Duration) (held []ledger.Fence, err error) {
	err = db.write(ctx, func(c *conn) error {
		now := db.opts.Now()
		if _, err := c.exec(qBeat, w.ID, w.Pool, stamp(w.Started), stamp(now), int64(w.InFlight), stamp(w.Oldest), int64(w.Steps), w.Memory); err != nil {
			return err
		}
		if _, err := c.exec(qExtendCarried, stamp(now.Add(ttl)), w.ID); err != nil {
			return err
		}
		if _, err := c.exec(qExtendLeases, stamp(now.Add(ttl)), w.ID); err != nil {
			return err
		}
		return c.query(qOwnedLeases, func(r row) error {
			f := ledger.Fence{Key: ledger.Key{Group: r.text(0), Partition: int32(r.int(2))}, Owner: r.text(3), Epoch: r.int(4)}
			copy(f.TopicID[:], r.blob(1))
			held = append(held, f)
			return nil
		}, w.ID)
	})
	if err != nil {
		return nil, fmt.Errorf("beat of worker %s: %w", w.ID, err)
	}
	return held, nil
}

// Retire implements ledger.Ledger.
func (db *DB) Retire(ctx context.Context, worker string) error {
	err := db.write(ctx, func(c *conn) error {
		if _, err := c.exec(qRetire, worker); err != nil {
			return err
		}
		_, err := c.exec(qPutAllDown, worker)
		return err
	})
	if err != nil {
		return fmt.Errorf("retire worker %s: %w", worker, err)
	}
	return nil
}

// Workers implements ledger.Ledger.
func (db *DB) Workers(ctx context.Context, ttl time.Duration) (workers []ledger.Worker, err error) {
	err = db.read(ctx, func(c *conn) error {
		workers, err = listWorkers(c, stamp(db.opts.Now().Add(-ttl)))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return workers, nil
}

func listWorkers(c *conn, since int64) (workers []ledger.Worker, err error) {
	err = c.query(qWorkers, func(r row) error {
		workers = append(workers, ledger.Worker{ID: r.text(0), Pool: r.text(1), Started: unstamp(r.int(2)), Beat: unstamp(r.int(3)),
			InFlight: int(r.int(4)), Oldest: unstamp(r.int(5)), Steps: int(r.int(6)), Memory: r.int(7)})
		return nil
	}, since)
	return workers, err
}
