package sqlite

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/swarmlog/swarmlog/internal/fault"
)

var errClosed = errors.New("the ledger is closed")

// code is SQLite's primary result code of an error, or 0.
func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// environmental tells whether an error is the fault of the disk, the memory or another process: then no step is to
// blame, and the batch is tried again whole.
func environmental(err error) bool {
	switch code(err) {
	case lib.SQLITE_BUSY, lib.SQLITE_NOMEM, lib.SQLITE_IOERR, lib.SQLITE_FULL, lib.SQLITE_CANTOPEN,
		lib.SQLITE_PROTOCOL, lib.SQLITE_READONLY, lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
		return true
	}
	return false
}

// environment gives an environmental error its class, and says what to do.
func environment(op string, err error) error {
	switch code(err) {
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
		return fault.Fatalf("%s: %w: the ledger's file is damaged; stop, keep a copy of it and restore a backup", op, err)
	case lib.SQLITE_FULL:
		return fault.As(fault.Unavailable, fmt.Errorf("%s: %w: free some space on its disk", op, err))
	case lib.SQLITE_IOERR, lib.SQLITE_READONLY, lib.SQLITE_CANTOPEN:
		return fault.As(fault.Unavailable, fmt.Errorf("%s: %w: see to the disk that holds the ledger", op, err))
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
}

// blame gives the error of a user's statement its class: what the data or the statement is the cause of is permanent.
func blame(err error) error {
	switch code(err) {
	case lib.SQLITE_ERROR, lib.SQLITE_CONSTRAINT, lib.SQLITE_MISMATCH, lib.SQLITE_TOOBIG, lib.SQLITE_RANGE, lib.SQLITE_MISUSE:
		return fault.As(fault.Permanent, err)
	}
	return err
}
