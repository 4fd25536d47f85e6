package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

var (
	errRevoked = fault.As(fault.Permanent, errors.New("the transaction handle was used after its effect had returned or run out of time; don't keep it"))
	errEnded   = fault.As(fault.Fatal, errors.New("the effect ended the ledger's transaction; return an error to undo a step"))
	errStray   = errors.New("a statement was still running when its effect returned")
)

// txn is a user's handle on a transaction. It's good until it is revoked; every use of the connection through it
// holds gate, so that whoever has revoked it has the connection to himself.
type txn struct {
	db     *DB
	c      *pgx.Conn
	place  place
	ctx    context.Context // ends with the effect's time
	cancel context.CancelFunc

	gate    sync.Mutex
	revoked bool
	open    *rows // that are still being read from the connection
	// failure is the first error that the effect can't come back from, whatever it returns: PostgreSQL fails a
	// transaction with its first failing statement, and every later error is an echo.
	failure error
}

var _ ledger.Tx = (*txn)(nil)

func newTxn(ctx context.Context, db *DB, c *pgx.Conn, p place) *txn {
	t := &txn{db: db, c: c, place: p}
	t.ctx, t.cancel = context.WithCancel(ctx)
	return t
}

func (t *txn) Dialect() string { return "postgres" }

func (t *txn) Exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = t.run(ctx, "exec", query, args, func(ctx context.Context, parts []statement) error {
		for _, s := range parts {
			tag, err := t.exec(ctx, s.text, args)
			if err != nil {
				return err
			}
			if n = 0; tag.Insert() || tag.Update() || tag.Delete() || !tag.Select() {
				n = tag.RowsAffected()
			}
		}
		return nil
	})
	return n, err
}

func (t *txn) exec(ctx context.Context, sql string, args []any) (pgconn.CommandTag, error) {
	if len(args) > 0 {
		return t.c.Exec(ctx, sql, args...)
	}
	// pgx would send it by the simple protocol, in which a text is any number of statements.
	r := t.c.PgConn().ExecParams(ctx, sql, nil, nil, nil, nil).Read()
	return r.CommandTag, r.Err
}

func (t *txn) Query(ctx context.Context, query string, args ...any) (ledger.Rows, error) {
	r, err := t.query(ctx, query, args)
	if err != nil {
		return nil, err
	}
	return r, nil
}

func (t *txn) QueryRow(ctx context.Context, query string, args ...any) ledger.Row {
	r, err := t.query(ctx, query, args)
	if err != nil {
		return single{err: err}
	}
	if !r.Next() {
		if err := r.Err(); err != nil {
			return single{err: err}
		}
		return single{err: ledger.ErrNoRows}
	}
	s := single{rows: r, raw: clone(r.raw)}
	if err := r.Close(); err != nil {
		return single{err: err}
	}
	return s
}

func (t *txn) query(ctx context.Context, query string, args []any) (*rows, error) {
	r := &rows{t: t, sql: query}
	err := t.run(ctx, "query", query, args, func(_ context.Context, parts []statement) (err error) {
		if len(parts) != 1 {
			return fault.Permanentf("it's %d statements, and a query is one", len(parts))
		}
		var joined context.Context
		joined, r.leave = t.join(ctx)
		r.ctx = joined
		if r.pg, err = t.c.Query(joined, query, args...); err != nil {
			r.leave()
			return err
		}
		t.open = r
		return nil
	})
	return r, err
}

// run runs f on a user's statement that the guard lets pass, and looks at what it left of the transaction.
func (t *txn) run(ctx context.Context, op, query string, args []any, f func(context.Context, []statement) error) error {
	t.gate.Lock()
	defer t.gate.Unlock()
	if err := t.usable(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", op, clip(query), err)
	}
	parts := t.db.texts.read(query)
	for _, s := range parts {
		if why := refusal(s, t.place, t.db.opts.Schema); why != "" {
			err := fault.Fatalf("%s %s: refused: %s", op, clip(query), why)
			t.fail(err)
			return err
		}
	}
	if err := checkArguments(args); err != nil {
		return fmt.Errorf("%s %s: %w", op, clip(query), err)
	}
	if len(args) > 0 && len(parts) > 1 {
		return fault.Permanentf("%s %s: it's %d statements, of which none can have parameters; run them one by one", op, clip(query), len(parts))
	}
	t.open.drain() // a connection answers one query at a time
	if t.failure != nil {
		return fmt.Errorf("%s %s: %w", op, clip(query), t.failure)
	}
	joined, leave := t.join(ctx)
	defer leave()
	return t.check(joined, op, query, f(joined, parts))
}

// checkArguments refuses what pgx would take as an instruction to itself.
func checkArguments(args []any) error {
	for i, a := range args {
		switch a.(type) {
		case pgx.QueryExecMode, pgx.QueryResultFormats, pgx.QueryResultFormatsByOID, pgx.QueryRewriter:
			return fault.Permanentf("parameter $%d is a %T, not a value", i+1, a)
		}
	}
	return nil
}

// usable is the error of using the handle now. t.gate is held.
func (t *txn) usable(ctx context.Context) error {
	switch {
	case t.revoked:
		return errRevoked
	case t.failure != nil:
		return t.failure
	case t.ctx.Err() != nil:
		return context.Cause(t.ctx)
	}
	return ctx.Err()
}

// join is a context that ends with ctx and with the handle's time, for a statement. An effect's own needs none, for
// which pgx would start a goroutine: whoever ends its time revokes the handle, which interrupts what runs.
func (t *txn) join(ctx context.Context) (context.Context, func()) {
	switch {
	case ctx.Done() != t.ctx.Done():
	case t.place == inCommit:
		return context.WithoutCancel(ctx), func() {}
	default:
		return ctx, func() {}
	}
	joined, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(t.ctx, func() { cancel(t.ctx.Err()) })
	return joined, func() { stop(); cancel(nil) }
}

// check gives a statement's error its class, and notes what the effect can't come back from: all that has failed the
// transaction. t.gate is held.
func (t *txn) check(ctx context.Context, op, query string, err error) error {
	status := byte(0) // the connection is gone
	if !t.c.IsClosed() {
		status = t.c.PgConn().TxStatus()
	}
	if err == nil && status == 'T' {
		return nil
	}
	what := op + " " + clip(query)
	switch c := code(err); {
	case status == 'I':
		err = fault.Fatalf("%s ended the ledger's transaction (%v); return an error to undo a step", what, err)
	case err == nil && status == 'E':
		err = fault.Permanentf("%s left the transaction failed", what)
	case status == 0 && c == "" && errors.Is(ctx.Err(), context.DeadlineExceeded): // the server didn't even answer the cancel request
		err = late(what, ctx.Err())
	case ctx.Err() != nil && (c == "57014" || c == ""):
		err = fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case t.ctx.Err() != nil && (c == "57014" || c == ""):
		err = fmt.Errorf("%s: %w", what, context.Cause(t.ctx))
	case c == "57014":
		err = fmt.Errorf("%s: %w: %w", what, context.DeadlineExceeded, err)
	case c == "25006" && t.place == inRead:
		err = fault.As(fault.Permanent, fmt.Errorf("%s: %w", what, err))
	case outage(c), status == 0:
		err = environment(what, err)
	case c == "" && status == 'T': // refused on this side: a parameter that doesn't fit, or a result
		if fault.ClassOf(err) == fault.Transient {
			err = fault.As(fault.Permanent, err)
		}
		return fmt.Errorf("%s: %w", what, err) // nothing was sent, so the transaction is as it was
	default:
		err = fmt.Errorf("%s: %w", what, blame(err))
	}
	if status != 'T' {
		t.fail(err)
	}
	return err
}

func (t *txn) fail(err error) {
	if t.failure == nil {
		t.failure = err
	}
}

// revoke takes the handle away, and returns once nobody uses the connection through it. What still runs is cancelled.
func (t *txn) revoke() {
	if !t.gate.TryLock() {
		t.cancel()
		stop := t.interrupt()
		t.gate.Lock()
		stop()
	}
	defer t.gate.Unlock()
	if t.revoked {
		return
	}
	t.open.shut()
	t.revoked = true
	t.cancel()
	switch {
	case t.c.IsClosed():
		t.fail(environment("keep the transaction", errors.New("the connection is lost")))
	case t.c.PgConn().TxStatus() == 'I':
		t.fail(errEnded)
	case t.c.PgConn().TxStatus() != 'T':
		t.fail(errStray)
	}
}

// interrupt cancels what runs, again and again until the returned function is called, since a request that comes just
// before a statement is lost. A server that doesn't answer loses the connection.
func (t *txn) interrupt() (stop func()) {
	done := make(chan struct{})
	var over sync.WaitGroup
	over.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), abandonAfter)
		defer cancel()
		for {
			_ = t.c.PgConn().CancelRequest(ctx)
			select {
			case <-done:
				return
			case <-ctx.Done():
				_ = t.c.PgConn().Conn().Close()
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	return func() {
		close(done)
		over.Wait() // it may be using the connection
	}
}

// end revokes the handle of an effect that returned err, and says what became of it.
func (t *txn) end(err error) error {
	t.revoke()
	if t.failure != nil {
		return t.failure // the cause; what the effect made of it is an echo
	}
	return err
}
