package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"reflect"

	"modernc.org/libc"
	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
	_ "modernc.org/sqlite/vec" // vec0 in every connection: agents' tables may use it
)

// background is given to the driver for every statement: with a context that can end it would start a goroutine for
// each, and still not watch the later rows of a query. Whoever may interrupt does so through conn.interrupt.
var background = context.Background()

// stmtID names one of the ledger's own statements.
type stmtID int

var statements []string

// define adds a statement that every connection prepares when it first runs it.
func define(sql string) stmtID {
	statements = append(statements, sql)
	return stmtID(len(statements) - 1)
}

var (
	qBeginWrite = define("BEGIN IMMEDIATE")
	qBeginRead  = define("BEGIN DEFERRED")
	qCommit     = define("COMMIT")
	qRollback   = define("ROLLBACK")
)

type prepared interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// conn is one connection of the driver, without database/sql: at our batch sizes that costs a tenth of the time.
// One goroutine uses it at a time; interrupt alone may be called from another.
type conn struct {
	driver driver.Conn
	handle uintptr // *sqlite3, for what the driver doesn't offer
	tls    *libc.TLS
	own    []prepared
	args   []driver.NamedValue
	users  *userStatements
	guard  guard
}

// openConn opens a connection; dsn is the driver's, with its pragmas.
func openConn(dsn string) (*conn, error) {
	connector, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, err
	}
	dc, err := connector.Connect(background)
	if err != nil {
		return nil, err
	}
	c := &conn{driver: dc, own: make([]prepared, len(statements)), tls: libc.NewTLS()}
	// The driver keeps the handle to itself, and offers neither an interrupt between two rows nor the state of
	// autocommit. TestHandle fails where a new version of it renames the field.
	field := reflect.Indirect(reflect.ValueOf(dc)).FieldByName("db")
	if !field.IsValid() || field.Kind() != reflect.Uintptr || field.Uint() == 0 {
		_ = c.close()
		return nil, fmt.Errorf("this version of modernc.org/sqlite keeps its handle elsewhere: pin the version in go.mod")
	}
	c.handle = uintptr(field.Uint())
	c.users = newUserStatements(c)
	authorize, ok := dc.(sqlite.AuthorizerRegisterer)
	if !ok {
		_ = c.close()
		return nil, errors.New("this version of modernc.org/sqlite has no authorizer: pin the version in go.mod")
	}
	if err := authorize.RegisterAuthorizer(c.guard.authorize); err != nil {
		_ = c.close()
		return nil, err
	}
	return c, nil
}

func (c *conn) close() error {
	if c.users != nil {
		c.users.clear()
	}
	for _, s := range c.own {
		if s != nil {
			_ = s.Close()
		}
	}
	err := c.driver.Close()
	c.tls.Close()
	return err
}

// autocommit tells whether no transaction is open.
func (c *conn) autocommit() bool { return lib.Xsqlite3_get_autocommit(c.tls, c.handle) != 0 }

// changes is the number of rows changed since the connection was opened.
func (c *conn) changes() int64 { return int64(lib.Xsqlite3_total_changes(c.tls, c.handle)) }

// interrupt ends the running statement, if there's one. Where one is only just starting, it may be missed: call it
// again until the statement has returned.
func (c *conn) interrupt() {
	tls := libc.NewTLS() // c.tls belongs to the connection's goroutine
	lib.Xsqlite3_interrupt(tls, c.handle)
	tls.Close()
}

func (c *conn) prepare(sql string) (prepared, error) {
	st, err := c.driver.(driver.ConnPrepareContext).PrepareContext(background, sql)
	if err != nil {
		return nil, err
	}
	return st.(prepared), nil
}

func (c *conn) statement(id stmtID) (prepared, error) {
	if st := c.own[id]; st != nil {
		return st, nil
	}
	st, err := c.prepare(statements[id])
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", clip(statements[id]), err)
	}
	c.own[id] = st
	return st, nil
}

// bind puts values into the connection's argument list, which the driver reads during the call only.
func (c *conn) bind(values []driver.Value) []driver.NamedValue {
	for len(c.args) < len(values) {
		c.args = append(c.args, driver.NamedValue{Ordinal: len(c.args) + 1})
	}
	for i, v := range values {
		c.args[i].Value = v
	}
	return c.args[:len(values)]
}

// exec runs one of the ledger's own statements and returns how many rows it changed.
func (c *conn) exec(id stmtID, values ...driver.Value) (int64, error) {
	st, err := c.statement(id)
	if err != nil {
		return 0, err
	}
	result, err := st.ExecContext(background, c.bind(values))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", clip(statements[id]), err)
	}
	return result.RowsAffected()
}

// query runs one of the ledger's own queries and hands each row to f, which must not run another.
func (c *conn) query(id stmtID, f func(row) error, values ...driver.Value) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", clip(statements[id]), err)
		}
	}()
	st, err := c.statement(id)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(background, c.bind(values))
	if err != nil {
		return err
	}
	r := make(row, len(rows.Columns()))
	for {
		switch err := rows.Next(r); {
		case errors.Is(err, io.EOF):
			return rows.Close()
		case err != nil:
			_ = rows.Close()
			return err
		}
		if err := f(r); err != nil {
			_ = rows.Close()
			return err
		}
	}
}

// first is query for at most one row; found tells whether there was one.
func (c *conn) first(id stmtID, f func(row), values ...driver.Value) (found bool, err error) {
	err = c.query(id, func(r row) error {
		if !found {
			f(r)
		}
		found = true
		return nil
	}, values...)
	return found, err
}

// begin opens a transaction; one that could not be rolled back before is tried again first.
func (c *conn) begin(id stmtID) error {
	if err := c.rollback(); err != nil {
		return err
	}
	_, err := c.exec(id)
	return err
}

func (c *conn) commit() error {
	_, err := c.exec(qCommit)
	return err
}

// rollback ends the transaction, if one is open: some errors have done so already.
func (c *conn) rollback() error {
	if c.autocommit() {
		return nil
	}
	_, err := c.exec(qRollback)
	return err
}

// row is a row of one of the ledger's own queries. The tables are STRICT, so a column's type is known.
type row []driver.Value

func (r row) int(i int) int64 { v, _ := r[i].(int64); return v }
func (r row) text(i int) string {
	v, _ := r[i].(string)
	return v
}
func (r row) blob(i int) []byte { v, _ := r[i].([]byte); return v }
func (r row) null(i int) bool   { return r[i] == nil }

// clip shortens a statement for an error's text.
func clip(sql string) string {
	const limit = 72
	out := make([]byte, 0, limit)
	space := false
	for i := 0; i < len(sql); i++ {
		switch b := sql[i]; b {
		case ' ', '\t', '\n', '\r':
			space = len(out) > 0
		default:
			if space {
				out = append(out, ' ')
			}
			space = false
			if len(out) >= limit {
				return string(out) + "…"
			}
			out = append(out, b)
		}
	}
	return string(out)
}
