package ledger

import "context"

// Tx is the commit transaction of a step, for the user's own SQL. It must not
// be kept: every call after the effect returned, or after its time-out, fails.
// Statements that end or nest the transaction (COMMIT, ROLLBACK, SAVEPOINT, …)
// are refused and stop the agent. Placeholders are $1, $2, … in every dialect.
type Tx interface {
	// Exec runs a statement and returns the number of rows that it changed.
	Exec(ctx context.Context, query string, args ...any) (int64, error)
	// Query runs a query; its Rows must be closed.
	Query(ctx context.Context, query string, args ...any) (Rows, error)
	// QueryRow runs a query for at most one row; Scan answers ErrNoRows where there's none.
	QueryRow(ctx context.Context, query string, args ...any) Row
	// Dialect is "sqlite" or "postgres".
	Dialect() string
}

// Rows is the answer to a query, read from the first row to the last.
type Rows interface {
	Next() bool
	Scan(dest ...any) error
	Err() error
	Close() error
}

// Row is the answer to a query for one row.
type Row interface{ Scan(dest ...any) error }
