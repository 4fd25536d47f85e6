package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/swarmlog/swarmlog/internal/fault"
)

var (
	errClosed = errors.New("the ledger is closed")
	// errRace says that another transaction changed, between a look and a write, what the batch was decided on.
	errRace = errors.New("another commit changed what this one was decided on")
)

// code is an error's SQLSTATE, or "" where the server didn't send it.
func code(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// severed tells whether an error came from the server together with the end of the session.
func severed(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return false
	}
	severity := e.SeverityUnlocalized
	if severity == "" {
		severity = e.Severity
	}
	return severity == "FATAL" || severity == "PANIC"
}

// environmentError is the fault of the server, of the way there or of another transaction: no step is to blame, and
// the batch is tried again whole.
type environmentError struct{ err error }

func (e *environmentError) Error() string { return e.err.Error() }
func (e *environmentError) Unwrap() error { return e.err }

func environmental(err error) bool {
	var e *environmentError
	return errors.As(err, &e)
}

// environment marks an error as environmental, gives it a class, and says what to do.
func environment(op string, err error) error {
	if errors.Is(err, errClosed) || errors.Is(err, context.Canceled) || errors.Is(err, errOwn) || environmental(err) {
		return fmt.Errorf("%s: %w", op, err)
	}
	err = &environmentError{err}
	switch c := code(err); {
	case conflict(err), c == "55P03":
		return fmt.Errorf("%s: %w", op, err)
	case c == "53100":
		return fault.As(fault.Unavailable, fmt.Errorf("%s: %w: free some space on PostgreSQL's disk", op, err))
	case c == "53300":
		return fault.As(fault.Unavailable, fmt.Errorf("%s: %w: raise max_connections, or lower the ledger's connection budget", op, err))
	case c == "42P01" || c == "3F000" || c == "42703":
		return fault.As(fault.Unavailable, fmt.Errorf("%s: %w: the ledger's own tables are gone or changed: restore them", op, err))
	case c == "42501":
		return fault.As(fault.Unavailable, fmt.Errorf("%s: %w: give this role its rights on the ledger's schema back", op, err))
	case c == "26000":
		return fault.As(fault.Unavailable, fmt.Errorf("%s: %w: a pooler in between loses prepared statements: add default_query_exec_mode=cache_describe to the connection string", op, err))
	}
	return fault.As(fault.Unavailable, fmt.Errorf("%s: %w", op, err))
}

// late is the error of a context that ended while the server, or the way to it, was waited for. A deadline that passes
// so is nobody's fault: the record of a handler that reads the ledger in an outage must not be dead-lettered for it.
func late(op string, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", op, err)
	}
	return environment(op, err)
}

// conflict tells whether two transactions got into each other's way; run again, each finds its place.
func conflict(err error) bool {
	return strings.HasPrefix(code(err), "40") || errors.Is(err, errRace)
}

// outage tells whether a SQLSTATE is the server's state rather than the statement's fault.
func outage(sqlstate string) bool {
	switch {
	case sqlstate == "55P03", sqlstate == "25P03", sqlstate == "25P04", sqlstate == "25006":
		return true
	case sqlstate == "57014": // a statement that was cancelled; the others of its class end the session
		return false
	case len(sqlstate) == 5:
		switch sqlstate[:2] {
		case "08", "40", "53", "57", "58":
			return true
		}
	}
	return false
}

// blame gives the error of a user's statement its class: what the data or the statement is the cause of is permanent.
func blame(err error) error {
	c := code(err)
	if len(c) != 5 {
		return err
	}
	switch c[:2] {
	case "2D": // a procedure that tried to end the transaction
		return fault.As(fault.Fatal, err)
	case "21", "22", "23", "25", "42", "44", "54":
		return fault.As(fault.Permanent, err)
	}
	return err
}

// dataError tells whether one of the ledger's own statements failed by what a step gave it.
func dataError(err error) bool {
	switch c := code(err); {
	case len(c) != 5:
		return false
	default:
		return c[:2] == "22" || c[:2] == "54" || c[:2] == "23" || c[:2] == "P0"
	}
}
