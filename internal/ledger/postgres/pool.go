package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/swarmlog/swarmlog/ledger"
)

// attempts is how often a transaction is run again by itself after a deadlock or a serialization failure.
const attempts = 5

// cancelling ends a statement whose context is over by a cancel request, so that the server stops too and lets go of
// its locks; a connection that stays silent is closed.
func cancelling(c *pgconn.PgConn) ctxwatch.Handler {
	return &pgconn.CancelRequestContextWatcherHandler{Conn: c, DeadlineDelay: abandonAfter}
}

// share bounds how many connections a kind of use has at a time.
type share chan struct{}

// link is a connection in use. It's replaced when it breaks.
type link struct {
	db *DB
	c  *pgxpool.Conn
	s  share
}

func (l *link) conn() *pgx.Conn { return l.c.Conn() }

// take waits for a connection out of a share; it goes back with link.close.
func (db *DB) take(ctx context.Context, s share) (*link, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case <-db.closed:
		return nil, errClosed
	default:
	}
	select {
	case s <- struct{}{}:
	case <-ctx.Done():
		return nil, late("wait for a connection", ctx.Err())
	case <-db.closed:
		return nil, errClosed
	}
	c, err := db.connect(ctx)
	if err != nil {
		<-s
		return nil, err
	}
	return &link{db: db, c: c, s: s}, nil
}

// connect takes a connection out of the pool.
func (db *DB) connect(ctx context.Context) (*pgxpool.Conn, error) {
	limited, cancel := context.WithTimeout(ctx, db.call)
	defer cancel()
	c, err := db.pool.Acquire(limited)
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, late("wait for a connection", ctx.Err())
	case limited.Err() != nil:
		return nil, environment("connect", fmt.Errorf("no connection within %s: %w", db.call, err))
	}
	return nil, unreachable(err)
}

// renew replaces a connection that broke.
func (l *link) renew(ctx context.Context) error {
	if !l.c.Conn().IsClosed() {
		return nil
	}
	c, err := l.db.connect(ctx)
	if err != nil {
		return err
	}
	l.c.Release()
	l.c = c
	return nil
}

// discard closes a connection that can't be trusted any more.
func (l *link) discard() {
	ctx, cancel := context.WithTimeout(context.Background(), abandonAfter)
	defer cancel()
	_ = l.c.Conn().Close(ctx)
}

func (l *link) close() {
	l.c.Release() // rolls nothing back: the pool closes a connection that is in a transaction
	if l.s != nil {
		<-l.s
	}
}

// rollback ends a transaction. Where that fails the connection is closed, which ends it too.
func (l *link) rollback() {
	c := l.conn()
	if c.IsClosed() || c.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.db.call)
	defer cancel()
	if _, err := c.Exec(ctx, "ROLLBACK"); err != nil || c.PgConn().TxStatus() != 'I' {
		l.discard()
	}
}

// own runs f, one of the ledger's own reads or writes, on a connection of its own. What f began must be over when it
// returns nil. After a deadlock or a serialization failure it runs again.
func (db *DB) own(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return db.ownWithin(ctx, db.call, f)
}

func (db *DB) ownWithin(ctx context.Context, limit time.Duration, f func(context.Context, *pgx.Conn) error) error {
	select {
	case <-db.closed:
		return errClosed
	default:
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c, err := db.connect(ctx)
	if err != nil {
		return err
	}
	l := &link{db: db, c: c}
	defer l.close()
	for n := 1; ; n++ {
		limited, cancel := context.WithTimeout(ctx, limit)
		err := f(limited, l.conn())
		cancel()
		if err == nil {
			return nil
		}
		l.rollback()
		if !conflict(err) || n == attempts {
			return db.ownError(ctx, err)
		}
		if err := l.renew(ctx); err != nil {
			return err
		}
	}
}

// ownError gives the error of one of the ledger's own statements its class; errors of package ledger have theirs.
func (db *DB) ownError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil && code(err) != "57014":
		return late("ask PostgreSQL", ctx.Err())
	case ctx.Err() != nil:
		return ctx.Err()
	case environmental(err), errors.Is(err, ledger.ErrFenced), errors.Is(err, ledger.ErrHeld), errors.Is(err, ledger.ErrMode), errors.Is(err, errOwn):
		return err
	}
	return environment("ask PostgreSQL", err)
}

// errOwn marks errors that were made here and have their class.
var errOwn = errors.New("")

// send runs a batch in one round trip, and the functions that wait for its results.
func send(ctx context.Context, c *pgx.Conn, b *pgx.Batch) error {
	if b.Len() == 0 {
		return nil
	}
	return c.SendBatch(ctx, b).Close()
}

// place is where a transaction is.
type place int

const (
	inCommit place = iota
	inSetup
	inRead
	inOwn
)

// open queues the beginning of a transaction.
func (db *DB) open(b *pgx.Batch, p place) {
	if p == inRead {
		b.Queue("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
	} else {
		b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
	}
	b.Queue(db.begin[p])
}

// commit ends a transaction, and reads how: a COMMIT that answers ROLLBACK is a failure. It's bounded by a deadline on
// the connection and not by a cancel request, which would end a wait for the stand-by as if that had the data.
func (db *DB) commit(c *pgx.Conn) error {
	if s := c.PgConn().TxStatus(); s != 'T' {
		return fmt.Errorf("the transaction isn't healthy (%c) before its COMMIT", s)
	}
	_ = c.PgConn().Conn().SetDeadline(time.Now().Add(db.call))
	tag, err := c.Exec(context.Background(), "COMMIT")
	if err != nil {
		return err
	}
	_ = c.PgConn().Conn().SetDeadline(time.Time{})
	if tag.String() != "COMMIT" {
		return fmt.Errorf("the COMMIT was answered with %s", tag)
	}
	return nil
}

// turnstile lets one commit at a time through for each lease.
type turnstile struct {
	mu      sync.Mutex
	busy    map[ledger.Key]bool
	changed chan struct{} // closed when somebody leaves
}

// enter waits until none of the keys is busy, and takes all: so nobody waits while he holds one.
func (t *turnstile) enter(ctx context.Context, keys []ledger.Key) error {
	for {
		t.mu.Lock()
		free := true
		for _, k := range keys {
			free = free && !t.busy[k]
		}
		if free {
			for _, k := range keys {
				t.busy[k] = true
			}
			t.mu.Unlock()
			return nil
		}
		changed := t.changed
		t.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return late("wait for another commit of the same lease", ctx.Err())
		}
	}
}

func (t *turnstile) leave(keys []ledger.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range keys {
		delete(t.busy, k)
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// unmarshalExact keeps numbers as they are written.
func unmarshalExact(b []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	return nil
}
