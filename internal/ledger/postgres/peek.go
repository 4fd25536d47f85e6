package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/ledger"
)

// ErrOtherSchema says that a ledger's tables are of another version than this program's, or aren't there.
var ErrOtherSchema = errors.New("the ledger's tables are of another version, or aren't there yet: a worker makes them when it starts")

// State is what a ledger's tables say of who works on what.
type State struct {
	Leases  []ledger.Lease
	Workers []ledger.Worker // those whose heartbeat isn't older than the time that was given
	// Slots is how many slots the keys of topics have, by topic id.
	Slots map[[16]byte]int32
}

// Peek reads the state of a ledger without opening it: unlike Open it makes no schema, notes nothing of the server, and
// takes one of any settings, so that a look at a ledger leaves no trace. Of the options it takes DSN and Schema.
func Peek(ctx context.Context, o Options, ttl time.Duration) (State, error) {
	if err := o.setDefaults(); err != nil {
		return State{}, fmt.Errorf("look at the ledger: %w", err)
	}
	config, err := configure(&o)
	if err != nil {
		return State{}, fmt.Errorf("look at the ledger: %w", err)
	}
	c := config.ConnConfig
	c.ValidateConnect = nil
	c.DefaultQueryExecMode = pgx.QueryExecModeExec // what every pooler passes on
	ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout+newDB(o).call)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return State{}, fmt.Errorf("look at the ledger: %w", unreachable(err))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	state := State{Slots: map[[16]byte]int32{}}
	if err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly, IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		return state.read(ctx, tx, o.Schema, ttl)
	}); err != nil {
		if errors.Is(err, ErrOtherSchema) {
			return State{}, fmt.Errorf("look at the ledger: %w", err)
		}
		return State{}, fmt.Errorf("look at the ledger: %w", environment("read its tables", err))
	}
	return state, nil
}

func (s *State) read(ctx context.Context, tx pgx.Tx, schema string, ttl time.Duration) error {
	var there bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", quoteIdentifier(schema)+".migration").Scan(&there); err != nil {
		return err
	}
	if !there {
		return ErrOtherSchema
	}
	var version int
	if err := tx.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM "+quoteIdentifier(schema)+".migration").Scan(&version); err != nil {
		return err
	}
	if version != len(migrationFiles()) {
		return ErrOtherSchema
	}
	sql := within(schema)
	rows, err := tx.Query(ctx, sql[qLeases])
	if err != nil {
		return err
	}
	if err := collect(rows, scanLease, func(l foundLease) { s.Leases = append(s.Leases, l.Lease) }); err != nil {
		return err
	}
	if rows, err = tx.Query(ctx, sql[qWorkers], ttl.Microseconds()); err != nil {
		return err
	}
	if err := collect(rows, scanWorker, func(w ledger.Worker) { s.Workers = append(s.Workers, w) }); err != nil {
		return err
	}
	if rows, err = tx.Query(ctx, "SELECT topic_id, slots FROM "+quoteIdentifier(schema)+".route"); err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var id [16]byte
		var slots int32
		if err := rows.Scan(&id, &slots); err != nil {
			return err
		}
		s.Slots[id] = slots
	}
	return rows.Err()
}
