package agents

import (
	"context"
	"errors"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// file is a path and what it held when it was last looked at.
type file struct {
	Path     string
	Name     string
	Document string // SHA-256 in hex; "": it couldn't be read
	Size     int64
	Modified time.Time
	Problem  string
	Version  int64 // counts the changes of the file
	Gone     bool
}

// splitState is how far a document got.
type splitState int

const (
	unknown splitState = iota // never seen
	unsplit                   // found, but its pages aren't out
	split
)

// store is the SQL of the agents. A dialect of its own implements it in a file of its own.
type store interface {
	setup(ctx context.Context) error
	present(ctx context.Context) (bool, error)

	files(ctx context.Context, yield func(file)) error
	putFile(ctx context.Context, f file) error
	addDocument(ctx context.Context, document, mediaType string, size int64) error
	splitState(ctx context.Context, document string) (splitState, error)
	setPages(ctx context.Context, document string, pages int) error
	// holders yields the paths and names of the files that hold a document now, problems those of files that can't be
	// read, with why.
	holders(ctx context.Context, document string, yield func(file)) error
	problems(ctx context.Context, yield func(file)) error

	applyText(ctx context.Context, p Page) error
	applyNotes(ctx context.Context, n Notes) error
	applyVector(ctx context.Context, v Vector) error

	// byWords ranks pages by full text, best first. Any of the terms is enough; one of several words is a phrase.
	byWords(ctx context.Context, terms []string, limit int) ([]int64, error)
	byVector(ctx context.Context, vector []byte, model string, dims, limit int) ([]int64, error)
	// excerpt is where a page has the terms; "": nowhere.
	excerpt(ctx context.Context, terms []string, id int64) (string, error)
	hit(ctx context.Context, id int64) (Hit, error)
	pages(ctx context.Context, yield func(PageRow) error) error
	counts(ctx context.Context) (Counts, error)
}

// storeOf is the store for a transaction's dialect.
func storeOf(tx ledger.Tx) (store, error) {
	switch d := tx.Dialect(); d {
	case "sqlite":
		return sqliteStore{tx}, nil
	case "postgres":
		return postgresStore{tx}, nil
	default:
		return nil, fault.Fatalf("the index of documents isn't written for ledgers in %s: use SQLite or PostgreSQL", d)
	}
}

// eachRow runs a query and hands each row's Scan to f.
func eachRow(ctx context.Context, tx ledger.Tx, f func(scan func(...any) error) error, query string, args ...any) (err error) {
	rows, err := tx.Query(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := f(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func setup(ctx context.Context, tx ledger.Tx) error {
	s, err := storeOf(tx)
	if err != nil {
		return err
	}
	return s.setup(ctx)
}

// within makes an effect of a change of the store.
func within(f func(ctx context.Context, s store) error) func(context.Context, ledger.Tx) error {
	return func(ctx context.Context, tx ledger.Tx) error {
		s, err := storeOf(tx)
		if err != nil {
			return err
		}
		return f(ctx, s)
	}
}
