package sqlite

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/swarmlog/swarmlog/internal/fault"
)

var errReadOnly = fault.As(fault.Permanent, errors.New("the ledger was opened for reading alone"))

// takeWriter waits for the writing connection; it goes back with db.writer <- w.
func (db *DB) takeWriter(ctx context.Context) (*conn, error) {
	if db.readOnly {
		return nil, errReadOnly
	}
	select {
	case <-db.closed:
		return nil, errClosed
	default:
	}
	select {
	case w := <-db.writer:
		if err := db.settle(w); err != nil {
			db.writer <- w
			return nil, err
		}
		return w, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the ledger's writer: %w", ctx.Err())
	case <-db.closed:
		return nil, errClosed
	}
}

// reader waits for a reading connection; it goes back with giveBack.
func (db *DB) reader(ctx context.Context) (*conn, error) {
	select {
	case <-db.closed:
		return nil, errClosed
	default:
	}
	var r *conn
	select {
	case r = <-db.readers:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a reader of the ledger: %w", ctx.Err())
	case <-db.closed:
		return nil, errClosed
	}
	if r != nil {
		return r, nil
	}
	r, err := openConn(db.dsn + pragmas(fmt.Sprintf("cache_size(-%d)", cacheKiB/8), "query_only(1)"))
	if err != nil {
		db.readers <- nil
		return nil, err
	}
	return r, nil
}

// giveBack returns a reader; one that failed is closed, and opened anew when it's needed.
func (db *DB) giveBack(r *conn, err error) {
	if err != nil {
		_ = r.close()
		r = nil
	}
	db.readers <- r
}

// read runs f on a reader, in a transaction that sees one state.
func (db *DB) read(ctx context.Context, f func(*conn) error) error {
	r, err := db.reader(ctx)
	if err != nil {
		return err
	}
	var broken error
	defer func() { db.giveBack(r, broken) }()
	if broken = r.begin(qBeginRead); broken != nil {
		return broken
	}
	err = f(r)
	broken = r.rollback()
	return errors.Join(err, broken)
}

// queue holds small writes that wait for the writer.
type queue struct {
	mu      sync.Mutex
	waiting []*request
}

type request struct {
	f    func(*conn) error
	err  error
	done chan struct{}
}

// write runs f in a write transaction. Those that wait at the same time share one, and so one sync of the disk. So f
// returns an error of its own before it has written anything; an error of SQLite undoes them all.
func (db *DB) write(ctx context.Context, f func(*conn) error) error {
	if db.readOnly {
		return errReadOnly
	}
	r := &request{f: f, done: make(chan struct{})}
	db.queue.mu.Lock()
	db.queue.waiting = append(db.queue.waiting, r)
	db.queue.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case w := <-db.writer:
		db.serve(w)
		db.writer <- w
		<-r.done // by this call, or by one that had taken it before
		return r.err
	case <-ctx.Done():
		return db.withdraw(r, fmt.Errorf("wait for the ledger's writer: %w", ctx.Err()))
	case <-db.closed:
		return db.withdraw(r, errClosed)
	}
}

// withdraw takes a request back, or waits for whoever runs it already.
func (db *DB) withdraw(r *request, why error) error {
	db.queue.mu.Lock()
	for i, q := range db.queue.waiting {
		if q == r {
			db.queue.waiting = append(db.queue.waiting[:i], db.queue.waiting[i+1:]...)
			db.queue.mu.Unlock()
			return why
		}
	}
	db.queue.mu.Unlock()
	<-r.done
	return r.err
}

// serve runs all requests that wait, in one transaction.
func (db *DB) serve(w *conn) {
	db.queue.mu.Lock()
	requests := db.queue.waiting
	db.queue.waiting = nil
	db.queue.mu.Unlock()
	if len(requests) == 0 {
		return
	}
	err := db.settle(w)
	if err == nil {
		err = w.begin(qBeginWrite)
	}
	for i := 0; i < len(requests) && err == nil; i++ {
		r := requests[i]
		if r.err = r.f(w); r.err != nil && (code(r.err) != 0 || w.autocommit()) {
			err = r.err
		}
	}
	if err == nil {
		err = w.commit()
	}
	if err != nil {
		err = environment("write to the ledger", errors.Join(err, w.rollback()))
	}
	for _, r := range requests {
		if r.err == nil || err != nil {
			r.err = err
		}
		close(r.done)
	}
}
