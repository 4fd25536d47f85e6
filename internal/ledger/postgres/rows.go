package postgres

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/swarmlog/swarmlog/internal/fault"
)

// rows is the answer to a user's query. It's read off the connection row by row, until another statement needs the
// connection: then the rest is read into memory.
type rows struct {
	t     *txn
	ctx   context.Context
	leave func()
	sql   string

	pg       pgx.Rows
	fields   []pgconn.FieldDescription
	raw      [][]byte // the current row; nil before the first and after the last
	rest     [][][]byte
	inMemory bool
	ended    bool
	err      error
}

func (r *rows) Next() bool {
	r.t.gate.Lock()
	defer r.t.gate.Unlock()
	r.raw = nil
	switch {
	case r.err != nil:
		return false
	case r.t.revoked && !r.ended:
		r.err = errRevoked
		return false
	case r.inMemory:
		if len(r.rest) > 0 {
			r.raw, r.rest = r.rest[0], r.rest[1:]
		}
		r.ended = r.raw == nil
	case r.ended:
	case r.pg.Next():
		r.raw = r.pg.RawValues()
		r.describe()
	default:
		r.ended = true
		r.finish()
	}
	return r.raw != nil && r.err == nil
}

// describe keeps what the columns are: the connection uses its memory again for the next query. t.gate is held.
func (r *rows) describe() {
	if r.fields == nil {
		r.fields = slices.Clone(r.pg.FieldDescriptions())
	}
}

// finish closes the query and notes its error. t.gate is held.
func (r *rows) finish() {
	r.pg.Close()
	r.err = r.t.check(r.ctx, "query", r.sql, r.pg.Err())
	r.leave()
	if r.t.open == r {
		r.t.open = nil
	}
}

// drain reads what is left into memory, so that the connection is free. t.gate is held.
func (r *rows) drain() {
	if r == nil || r.inMemory || r.ended {
		return
	}
	r.raw = clone(r.raw) // it's the connection's, and may be scanned yet
	for r.pg.Next() {
		r.describe()
		r.rest = append(r.rest, clone(r.pg.RawValues()))
	}
	r.inMemory = true
	r.finish()
}

// shut ends rows that were left open by an effect that has returned. t.gate is held.
func (r *rows) shut() {
	if r == nil || r.ended {
		return
	}
	r.finish()
	r.raw = nil
}

// clone copies a row out of the connection's buffer.
func clone(raw [][]byte) [][]byte {
	if raw == nil {
		return nil
	}
	out := make([][]byte, len(raw))
	for i, v := range raw {
		if v != nil {
			out[i] = append([]byte{}, v...)
		}
	}
	return out
}

func (r *rows) Scan(dest ...any) error {
	r.t.gate.Lock()
	defer r.t.gate.Unlock()
	return r.scan(r.raw, dest)
}

// scan reads a row into dest. t.gate is held.
func (r *rows) scan(raw [][]byte, dest []any) error {
	if raw == nil {
		return fault.Permanentf("scan: there's no row: call Next first, and Close last")
	}
	if len(dest) != len(r.fields) {
		return fault.Permanentf("scan: the query has %d columns and Scan got %d destinations", len(r.fields), len(dest))
	}
	if err := pgx.ScanRow(r.t.c.TypeMap(), r.fields, raw, dest...); err != nil {
		return fault.As(fault.Permanent, fmt.Errorf("scan: %w", err))
	}
	return nil
}

func (r *rows) Err() error {
	r.t.gate.Lock()
	defer r.t.gate.Unlock()
	return r.err
}

func (r *rows) Close() error {
	r.t.gate.Lock()
	defer r.t.gate.Unlock()
	if r.t.revoked || r.ended {
		return nil // closed with its transaction, or at its end
	}
	r.raw, r.rest, r.ended = nil, nil, true
	if r.inMemory {
		return nil
	}
	r.finish()
	return r.err
}

// single is the answer to a query for one row, read already.
type single struct {
	rows *rows
	raw  [][]byte
	err  error
}

func (s single) Scan(dest ...any) error {
	if s.err != nil {
		return s.err
	}
	s.rows.t.gate.Lock()
	defer s.rows.t.gate.Unlock()
	return s.rows.scan(s.raw, dest)
}
