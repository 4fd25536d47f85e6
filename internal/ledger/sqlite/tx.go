package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lib "modernc.org/sqlite/lib"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

var errRevoked = fault.As(fault.Permanent, errors.New("the transaction handle was used after its effect had returned or run out of time; don't keep it"))

// txn is a user's handle on a transaction. It's good until it is revoked; every use of the connection through it
// holds gate, so that whoever has revoked it has the connection to himself.
type txn struct {
	c        *conn
	readOnly bool
	done     <-chan struct{} // of the context that the transaction's runner watches; others are watched per statement

	busy atomic.Bool // a statement is running; set before contexts are looked at

	gate    sync.Mutex
	revoked bool
	open    []*rows
	// failure is the first error that the effect can't come back from, whatever it returns: the transaction is
	// over, a statement was refused, or the disk failed.
	failure error
}

var _ ledger.Tx = (*txn)(nil)

func (t *txn) Dialect() string { return "sqlite" }

func (t *txn) Exec(ctx context.Context, query string, args ...any) (n int64, err error) {
	values, err := arguments(args)
	if err != nil {
		return 0, fmt.Errorf("exec %s: %w", clip(query), err)
	}
	err = t.run(ctx, "exec", query, func(st *userStatement) error {
		defer st.release()
		before := t.c.changes()
		result, err := st.ExecContext(background, t.c.bind(values))
		if err == nil && t.c.changes() != before { // SQLite keeps the count of the last statement that changed rows
			n, err = result.RowsAffected()
		}
		return err
	})
	return n, err
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
		return &single{err: err}
	}
	defer r.Close()
	if !r.Next() {
		if err := r.Err(); err != nil {
			return &single{err: err}
		}
		return &single{err: ledger.ErrNoRows}
	}
	return &single{values: r.values}
}

func (t *txn) query(ctx context.Context, query string, args []any) (*rows, error) {
	values, err := arguments(args)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", clip(query), err)
	}
	r := &rows{t: t, ctx: ctx, sql: query, unwatch: func() {}}
	err = t.run(ctx, "query", query, func(st *userStatement) (err error) {
		if r.driver, err = st.QueryContext(background, t.c.bind(values)); err != nil {
			st.release()
			return err
		}
		r.st, r.values = st, make([]driver.Value, len(r.driver.Columns()))
		r.unwatch = t.watch(ctx)
		t.open = append(t.open, r)
		return nil
	})
	return r, err
}

// run runs f on a user's statement, with the guard up, and looks at what it left of the transaction.
func (t *txn) run(ctx context.Context, op, query string, f func(*userStatement) error) error {
	t.gate.Lock()
	defer t.gate.Unlock()
	t.busy.Store(true)
	defer t.busy.Store(false)
	if err := t.usable(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", op, clip(query), err)
	}
	defer t.watch(ctx)()
	t.c.guard.active, t.c.guard.readOnly = true, t.readOnly
	defer func() { t.c.guard.active = false }()
	st, err := t.c.users.get(query)
	if err == nil {
		err = f(st)
	}
	return t.check(ctx, op, query, err)
}

// usable is the error of using the handle now. t.gate is held.
func (t *txn) usable(ctx context.Context) error {
	switch {
	case t.revoked:
		return errRevoked
	case t.failure != nil:
		return t.failure
	}
	return ctx.Err()
}

// check gives a statement's error its class, and notes what the effect can't come back from. t.gate is held.
func (t *txn) check(ctx context.Context, op, query string, err error) error {
	ended := t.c.autocommit()
	if err == nil && !ended {
		return nil
	}
	what := op + " " + clip(query)
	switch {
	case err == nil:
		err = fault.Fatalf("%s ended the ledger's transaction; return an error to undo a step", what)
	case code(err) == lib.SQLITE_AUTH && t.c.guard.denied != "":
		err = fault.Fatalf("%s: refused: %s", what, t.c.guard.denied)
		t.c.guard.denied = ""
		t.fail(err)
	case environmental(err):
		err = environment(what, err)
		t.fail(err)
	case code(err) == lib.SQLITE_INTERRUPT && ctx.Err() != nil:
		err = fmt.Errorf("%s: %w", what, ctx.Err())
	default:
		err = fmt.Errorf("%s: %w", what, blame(err))
	}
	if ended {
		t.fail(err)
	}
	return err
}

func (t *txn) fail(err error) {
	if t.failure == nil {
		t.failure = err
	}
}

// watch interrupts the running statement once ctx ends, until the returned function is called. The context of the
// transaction itself is watched by its runner.
func (t *txn) watch(ctx context.Context) (stop func()) {
	if ctx.Done() == nil || ctx.Done() == t.done {
		return func() {}
	}
	return t.interruptAfter(ctx)
}

func (t *txn) interruptAfter(ctx context.Context) (stop func()) {
	returned := make(chan struct{})
	var over atomic.Bool
	cancel := context.AfterFunc(ctx, func() {
		defer close(returned)
		for t.busy.Load() && !over.Load() {
			t.c.interrupt()
			time.Sleep(time.Millisecond)
		}
	})
	return func() {
		over.Store(true)
		if !cancel() {
			<-returned // it may be using the connection
		}
	}
}

// revoke takes the handle away: it interrupts what runs and returns once nobody uses the connection through it.
func (t *txn) revoke() {
	for !t.gate.TryLock() {
		t.c.interrupt()
		time.Sleep(time.Millisecond)
	}
	defer t.gate.Unlock()
	t.revoked = true
	for len(t.open) > 0 {
		t.open[0].err = errRevoked
		_ = t.open[0].closeLocked()
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

// rows is the answer to a user's query.
type rows struct {
	t       *txn
	ctx     context.Context
	sql     string
	st      *userStatement
	driver  driver.Rows
	values  []driver.Value
	unwatch func()
	err     error
}

func (r *rows) Next() bool {
	t := r.t
	t.gate.Lock()
	defer t.gate.Unlock()
	if r.driver == nil || r.err != nil {
		return false
	}
	t.busy.Store(true)
	defer t.busy.Store(false)
	if err := t.usable(r.ctx); err != nil {
		r.err = err
		return false
	}
	t.c.guard.active, t.c.guard.readOnly = true, t.readOnly
	defer func() { t.c.guard.active = false }()
	err := r.driver.Next(r.values)
	if errors.Is(err, io.EOF) {
		r.err = r.closeLocked()
		return false
	}
	r.err = t.check(r.ctx, "query", r.sql, err)
	return r.err == nil
}

func (r *rows) Scan(dest ...any) error {
	r.t.gate.Lock()
	defer r.t.gate.Unlock()
	if r.driver == nil {
		return fmt.Errorf("scan: there's no row: call Next first, and Close last")
	}
	return scan(r.values, dest)
}

func (r *rows) Err() error {
	r.t.gate.Lock()
	defer r.t.gate.Unlock()
	return r.err
}

func (r *rows) Close() error {
	r.t.gate.Lock()
	defer r.t.gate.Unlock()
	if r.t.revoked {
		return nil // closed with its transaction
	}
	return r.closeLocked()
}

func (r *rows) closeLocked() error {
	if r.driver == nil {
		return nil
	}
	err := r.driver.Close()
	r.driver = nil
	r.unwatch()
	r.st.release()
	for i, o := range r.t.open {
		if o == r {
			r.t.open = append(r.t.open[:i], r.t.open[i+1:]...)
			break
		}
	}
	return err
}

// single is the answer to a query for one row, read already.
type single struct {
	values []driver.Value
	err    error
}

func (s *single) Scan(dest ...any) error {
	if s.err != nil {
		return s.err
	}
	return scan(s.values, dest)
}

// userStatements keeps users' statements prepared, by their text.
type userStatements struct {
	c    *conn
	kept map[string]*userStatement
}

// keptStatements bounds how many: more than that are texts put together from data.
const keptStatements = 256

type userStatement struct {
	prepared
	kept bool
	used bool // by rows that aren't closed yet
}

func newUserStatements(c *conn) *userStatements {
	return &userStatements{c: c, kept: make(map[string]*userStatement)}
}

func (u *userStatements) get(sql string) (*userStatement, error) {
	if st := u.kept[sql]; st != nil && !st.used {
		st.used = true
		return st, nil
	}
	if strings.IndexByte(sql, 0) >= 0 {
		return nil, fault.Permanentf("the statement holds a NUL character, at which SQLite would stop reading")
	}
	p, err := u.c.prepare(sql)
	if err != nil {
		return nil, err
	}
	st := &userStatement{prepared: p, used: true}
	if u.kept[sql] == nil {
		if len(u.kept) >= keptStatements {
			u.clear()
		}
		st.kept = true
		u.kept[sql] = st
	}
	return st, nil
}

// release gives a statement back.
func (s *userStatement) release() {
	s.used = false
	if !s.kept {
		_ = s.Close()
	}
}

// clear forgets all statements; those in use are closed when they are released.
func (u *userStatements) clear() {
	for sql, st := range u.kept {
		if st.used {
			st.kept = false
		} else {
			_ = st.Close()
		}
		delete(u.kept, sql)
	}
}
