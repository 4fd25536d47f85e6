package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/internal/fault"
)

// Server is what there is to say about a PostgreSQL server as a place for a ledger. It holds no secret.
type Server struct {
	Host     string // address that was connected to
	Database string
	User     string
	Version  string // as the server says it: 17.2 (Debian …)
	Number   int    // 170002
	Encoding string // of the database

	InRecovery bool   // it's a stand-by, which takes no writes
	System     string // what tells this cluster's data from another's; "" where the role may not ask
	Timeline   string // rises with each fail-over and each restore to a point in time; "" on a stand-by

	// Settings as they hold for a session of this role in this database.
	Fsync             string
	FullPageWrites    string
	SynchronousCommit Setting
	WALLevel          string
	Checksums         string // data_checksums
	StandbyNames      string // synchronous_standby_names: whom a synchronous commit waits for; "": nobody
	Standbys          []Standby

	// Time-outs of a session, 0 for none. The ledger sets its own in each transaction.
	IdleInTransaction, StatementTime, LockTime time.Duration

	MaxConns int // max_connections, without those that are reserved for superusers
	InUse    int // of all clients, this one included
	// OwnLimit is how many the role or the database may have, the smaller of both; -1: as many as there are.
	OwnLimit int

	Pooled bool // a pooler in transaction mode is in between

	Clock time.Time // the server's, at
	Asked time.Time // by the clock here: the middle of the round trip
	Trip  time.Duration

	Schema        string
	SchemaVersion int   // how many migrations the ledger's schema has had; 0: there is none yet
	KnownVersion  int   // how many this program knows
	Bytes         int64 // of the ledger's tables, with their indexes
	Tables        []Table
	// Lives are the servers and timelines that the ledger has lived on, the last one last. More than one says that
	// PostgreSQL failed over, or that a backup was restored. None are known before a worker has opened it.
	Lives []Life
}

// Life is a time in which a ledger lived on one server and timeline.
type Life struct {
	Since    time.Time // by the database's clock
	System   string
	Timeline string
}

// Setting is a server's setting and where it comes from.
type Setting struct {
	Value  string
	Source string // default, configuration file, database, user, client, …
}

// Standby is a server that follows this one.
type Standby struct {
	Name  string
	State string        // streaming, catchup, …; "" where the role may not see it: grant it pg_monitor
	Sync  string        // sync, quorum, potential or async
	Lag   time.Duration // from a commit here until it's durable there; 0 where nothing has been sent lately
}

// Table is one of the ledger's own.
type Table struct {
	Name  string
	Rows  int64 // as the server estimates them; -1: not yet
	Bytes int64 // with its indexes
}

const inspectSettings = "SELECT name, setting, coalesce(unit, ''), source FROM pg_settings WHERE name IN ('server_version', 'server_version_num', 'server_encoding', " +
	"'fsync', 'full_page_writes', 'synchronous_commit', 'wal_level', 'data_checksums', 'synchronous_standby_names', 'idle_in_transaction_session_timeout', " +
	"'statement_timeout', 'lock_timeout', 'max_connections', 'superuser_reserved_connections', 'reserved_connections')"

const inspectServer = "SELECT pg_backend_pid()::bigint, current_database()::text, current_user::text, pg_is_in_recovery(), " +
	"CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) ELSE '' END, " +
	"(SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend'), " +
	"(SELECT CASE WHEN r.rolconnlimit < 0 THEN d.datconnlimit WHEN d.datconnlimit < 0 THEN r.rolconnlimit ELSE least(r.rolconnlimit, d.datconnlimit) END " +
	"FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database())"

const inspectStandbys = "SELECT coalesce(application_name, ''), coalesce(state, ''), coalesce(sync_state, ''), " +
	"coalesce((extract(epoch FROM flush_lag) * 1000000)::bigint, 0) FROM pg_stat_replication WHERE application_name IS DISTINCT FROM 'pg_basebackup' ORDER BY 1"

const inspectTables = "SELECT c.relname::text, c.reltuples::bigint, pg_total_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace " +
	"WHERE n.nspname = '%s' AND c.relkind = 'r' ORDER BY 1"

// Inspect looks at a server, for people who ask whether it keeps what it acknowledges. It writes nothing, makes no
// schema, and says of a stand-by and of a server that Open would refuse as much as of any other. Of the options it
// takes DSN and Schema.
func Inspect(ctx context.Context, o Options) (Server, error) {
	if err := o.setDefaults(); err != nil {
		return Server{}, fmt.Errorf("inspect PostgreSQL: %w", err)
	}
	config, err := configure(&o)
	if err != nil {
		return Server{}, fmt.Errorf("inspect PostgreSQL: %w", err)
	}
	c := config.ConnConfig
	c.ValidateConnect = nil // a stand-by is looked at too
	c.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	ctx, cancel := context.WithTimeout(ctx, c.ConnectTimeout+newDB(o).call)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, c)
	if err != nil {
		return Server{}, fmt.Errorf("inspect PostgreSQL: %w", unreachable(err))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	i := inspection{c: conn, s: Server{Schema: o.Schema, KnownVersion: len(migrationFiles()), Host: conn.PgConn().Conn().RemoteAddr().String()}}
	for _, look := range []func(context.Context) error{i.clock, i.settings, i.server, i.system, i.standbys, i.tables} {
		if err := look(ctx); err != nil {
			return Server{}, fmt.Errorf("inspect PostgreSQL: %w", environment("look at the server", err))
		}
	}
	return i.s, nil
}

// inspection is one look at a server.
type inspection struct {
	c *pgx.Conn
	s Server
}

func (i *inspection) clock(ctx context.Context) error {
	before := time.Now()
	var micros int64
	if err := i.c.QueryRow(ctx, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").Scan(&micros); err != nil {
		return err
	}
	i.s.Trip = time.Since(before)
	i.s.Asked, i.s.Clock = before.Add(i.s.Trip/2), unstamp(micros)
	return nil
}

func (i *inspection) settings(ctx context.Context) error {
	rows, err := i.c.Query(ctx, inspectSettings)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var name, value, unit, source string
		if err := rows.Scan(&name, &value, &unit, &source); err != nil {
			return err
		}
		if err := i.setting(name, value, unit, source); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (i *inspection) setting(name, value, unit, source string) error {
	s := &i.s
	texts := map[string]*string{"server_version": &s.Version, "server_encoding": &s.Encoding, "fsync": &s.Fsync, "full_page_writes": &s.FullPageWrites,
		"wal_level": &s.WALLevel, "data_checksums": &s.Checksums, "synchronous_standby_names": &s.StandbyNames}
	if t := texts[name]; t != nil {
		*t = value
		return nil
	}
	if name == "synchronous_commit" {
		s.SynchronousCommit = Setting{Value: value, Source: source}
		return nil
	}
	n, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("setting %s is %q: %w", name, value, err)
	}
	times := map[string]*time.Duration{"idle_in_transaction_session_timeout": &s.IdleInTransaction, "statement_timeout": &s.StatementTime, "lock_timeout": &s.LockTime}
	switch t := times[name]; {
	case t != nil && unit != "ms":
		return fmt.Errorf("setting %s is in %q, and not in milliseconds", name, unit)
	case t != nil:
		*t = time.Duration(n) * time.Millisecond
	case name == "server_version_num":
		s.Number = n
	case name == "max_connections":
		s.MaxConns += n
	default: // reserved ones
		s.MaxConns -= n
	}
	return nil
}

func (i *inspection) server(ctx context.Context) error {
	s := &i.s
	var pid int64
	if err := i.c.QueryRow(ctx, inspectServer).Scan(&pid, &s.Database, &s.User, &s.InRecovery, &s.Timeline, &s.InUse, &s.OwnLimit); err != nil {
		return err
	}
	s.Pooled = pid != int64(i.c.PgConn().PID())
	return nil
}

// system asks for what some services keep from roles that aren't superusers.
func (i *inspection) system(ctx context.Context) error {
	err := i.c.QueryRow(ctx, "SELECT system_identifier::text FROM pg_control_system()").Scan(&i.s.System)
	if code(err) == "42501" {
		return nil
	}
	return err
}

func (i *inspection) standbys(ctx context.Context) error {
	rows, err := i.c.Query(ctx, inspectStandbys)
	if err != nil {
		return err
	}
	return collect(rows, func(r pgx.CollectableRow) (b Standby, err error) {
		var micros int64
		err = r.Scan(&b.Name, &b.State, &b.Sync, &micros)
		b.Lag = time.Duration(micros) * time.Microsecond
		return b, err
	}, func(b Standby) { i.s.Standbys = append(i.s.Standbys, b) })
}

func (i *inspection) tables(ctx context.Context) error {
	rows, err := i.c.Query(ctx, fmt.Sprintf(inspectTables, i.s.Schema)) // its letters were looked at
	if err != nil {
		return err
	}
	ours := false
	err = collect(rows, func(r pgx.CollectableRow) (t Table, err error) {
		err = r.Scan(&t.Name, &t.Rows, &t.Bytes)
		return t, err
	}, func(t Table) {
		ours = ours || t.Name == "migration"
		i.s.Tables, i.s.Bytes = append(i.s.Tables, t), i.s.Bytes+t.Bytes
	})
	if err != nil || !ours {
		return err
	}
	schema := quoteIdentifier(i.s.Schema)
	if err := i.c.QueryRow(ctx, "SELECT coalesce(max(version), 0) FROM "+schema+".migration").Scan(&i.s.SchemaVersion); err != nil {
		if code(err) == "42501" {
			return fault.As(fault.Unavailable, fmt.Errorf("%w: give role %s its rights on schema %s", err, i.s.User, i.s.Schema))
		}
		return err
	}
	if i.s.SchemaVersion < firstWithLives {
		return nil
	}
	return i.lives(ctx, schema)
}

// firstWithLives is the migration that made the table.
const firstWithLives = 2

func (i *inspection) lives(ctx context.Context, schema string) error {
	rows, err := i.c.Query(ctx, "SELECT since, system, timeline FROM "+schema+".life ORDER BY since")
	if err != nil {
		return err
	}
	return collect(rows, func(r pgx.CollectableRow) (l Life, err error) {
		err = r.Scan(int64Time{&l.Since}, &l.System, &l.Timeline)
		return l, err
	}, func(l Life) { i.s.Lives = append(i.s.Lives, l) })
}
