package postgres

import (
	"context"
	"embed"
	"fmt"
	"hash/fnv"
	"io/fs"
	"sort"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/internal/fault"
)

// Migrations are numbered from 1 without gaps and never change once released; the table migration says which have run.
// They run in one transaction, under an advisory lock that ends with it: a pooler keeps no other kind.
//
//go:embed migrations/*.sql
var migrations embed.FS

var (
	qMigrationTable = define("SELECT to_regclass('{}migration') IS NOT NULL, EXISTS (SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1)")
	qVersion        = define("SELECT coalesce(max(version), 0) FROM {}migration")
	qMakeMigrations = define("CREATE TABLE {}migration (version integer PRIMARY KEY, name text NOT NULL, at timestamptz NOT NULL DEFAULT now())")
	qMigrated       = define("INSERT INTO {}migration (version, name) VALUES ($1, $2)")
)

// migrationFiles are the names, in order.
func migrationFiles() []string {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	sort.Strings(names)
	return names
}

// advisory is the key of an advisory lock for a purpose, apart for each schema.
func (db *DB) advisory(purpose string) int64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "swarmlog %s %s", db.opts.Schema, purpose)
	return int64(h.Sum64())
}

func (db *DB) migrate(ctx context.Context) error {
	names := migrationFiles()
	return db.own(ctx, func(ctx context.Context, c *pgx.Conn) error {
		version, ours, used, err := db.version(ctx, c)
		switch {
		case err != nil:
			return err
		case version > len(names):
			return db.newer(version)
		case version == len(names):
			return nil // without a lock, and without the right to create anything
		case used && !ours:
			return own(fault.Fatalf("schema %s belongs to something else: name another one for the ledger", db.opts.Schema))
		case db.opts.Existing && !ours:
			return own(fault.As(fault.Fatal, fmt.Errorf("database %s has no ledger in schema %s: %w: nothing has run there yet; check the connection string and the schema, or start a swarm with swarmlog run",
				db.pool.Config().ConnConfig.Database, db.opts.Schema, fs.ErrNotExist)))
		}
		return db.migrateTo(ctx, c, names)
	})
}

// version is how many migrations the schema has had, whether it's ours, and whether it has any table at all.
func (db *DB) version(ctx context.Context, c *pgx.Conn) (version int, ours, used bool, err error) {
	if err := c.QueryRow(ctx, db.sql[qMigrationTable], db.opts.Schema).Scan(&ours, &used); err != nil || !ours {
		return 0, ours, used, err
	}
	err = c.QueryRow(ctx, db.sql[qVersion]).Scan(&version)
	return version, ours, used, err
}

func (db *DB) newer(version int) error {
	return own(fault.Fatalf("schema %s was written by a newer Swarmlog (its version is %d, this program knows %d): upgrade this program",
		db.opts.Schema, version, len(migrationFiles())))
}

func (db *DB) migrateTo(ctx context.Context, c *pgx.Conn, names []string) error {
	b := &pgx.Batch{}
	db.open(b, inSetup)
	b.Queue("SELECT pg_advisory_xact_lock($1)", db.advisory("migrate"))
	if err := send(ctx, c, b); err != nil {
		return err
	}
	version, ours, _, err := db.version(ctx, c) // somebody else may have been faster
	if err != nil {
		return err
	}
	if version > len(names) {
		return db.newer(version)
	}
	if !ours {
		if _, err := c.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS "+quoteIdentifier(db.opts.Schema)); err != nil {
			return fmt.Errorf("create schema %s: %w", db.opts.Schema, err)
		}
		if _, err := c.Exec(ctx, db.sql[qMakeMigrations]); err != nil {
			return err
		}
	}
	if _, err := c.Exec(ctx, "SELECT set_config('search_path', $1, true)", quoteIdentifier(db.opts.Schema)); err != nil {
		return err
	}
	for i := version; i < len(names); i++ {
		script, err := migrations.ReadFile(names[i])
		if err != nil {
			return err
		}
		if _, err := c.Exec(ctx, string(script)); err != nil {
			return fmt.Errorf("migrate with %s: %w", names[i], err)
		}
		if _, err := c.Exec(ctx, db.sql[qMigrated], i+1, names[i]); err != nil {
			return err
		}
	}
	return db.commit(c)
}

// ownErr is an error that has its class already.
type ownErr struct{ error }

func own(err error) error { return &ownErr{err} }

func (e *ownErr) Unwrap() error        { return e.error }
func (e *ownErr) Is(target error) bool { return target == errOwn }
