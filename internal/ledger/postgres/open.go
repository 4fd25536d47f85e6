package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// Options are the settings of a ledger. The zero value of a field means its default.
type Options struct {
	// DSN is a connection string, postgres://… or key=value; required. It holds a password, perhaps: it's never logged
	// and in no error. Users' SQL runs in the search path that its role or database has.
	DSN string
	// Schema holds the ledger's own tables; default swarmlog. Lower-case letters, digits and underscores.
	Schema string
	// MaxConns is the budget of connections of this process, at least 4; default 10.
	MaxConns int
	// LeaseTime is how long a lease lasts without a heartbeat; time-outs of sessions follow from it. Default 15 s.
	LeaseTime time.Duration
	// EffectTimeout bounds one effect of a step; it must be below LeaseTime. Default 10 s, at most two thirds of LeaseTime.
	EffectTimeout time.Duration
	Logger        *slog.Logger // default: nothing is logged
	// AcceptLoss lets a server be used whose settings lose commits that it has acknowledged (fsync or
	// synchronous_commit off). Nothing that swarmlog promises holds then.
	AcceptLoss bool
	// Existing makes no ledger where there's none: that's an error then, which wraps fs.ErrNotExist. A command that looks
	// at the wrong database leaves nothing in it.
	Existing bool
}

const (
	oldestServer = 140000
	fewestConns  = 4 // connections at least
	// closePatience bounds, with the time of an effect, how long Close waits for those who still use connections.
	closePatience = 10 * time.Second
	// abandonAfter is how long the way to the server may be silent after a statement was cancelled.
	abandonAfter = 2 * time.Second
	// longRead ends a reading transaction that nobody uses: it holds back vacuum, no row.
	longRead = 5 * time.Minute
)

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// DB is a ledger in a PostgreSQL database.
type DB struct {
	opts Options
	log  *slog.Logger
	sql  []string // the ledger's own statements, by stmt
	pool *pgxpool.Pool

	begin [4]string // by place: the settings of a transaction
	patience

	writes, reads share // of the connections, for those that run users' code
	turns         turnstile
	texts         reader
	memory        *memory
	timeline      atomic.Value // string: the server's, as it was last seen
	closed        chan struct{}
	closing       sync.Once
	closeBy       error

	mu      sync.Mutex
	unknown map[*ledger.Batch]*attempt // batches whose COMMIT has an unknown outcome
	endTx   func(*pgx.Conn) error      // commits; tests let it fail
}

// patience is what follows from the lease time.
type patience struct {
	idle time.Duration // of a transaction between two statements, and of one statement
	lock time.Duration // for one lock
	call time.Duration // for one of the ledger's own round trips, at this end
}

var _ ledger.Ledger = (*DB)(nil)

func (o *Options) setDefaults() error {
	if o.Schema == "" {
		o.Schema = "swarmlog"
	}
	if o.MaxConns == 0 {
		o.MaxConns = 10
	}
	if o.LeaseTime == 0 {
		o.LeaseTime = 15 * time.Second
	}
	if o.EffectTimeout == 0 {
		o.EffectTimeout = min(10*time.Second, o.LeaseTime*2/3)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case !schemaName.MatchString(o.Schema):
		return fault.Fatalf("schema %q: use lower-case letters, digits and underscores", o.Schema)
	case o.MaxConns < fewestConns:
		return fault.Fatalf("a budget of %d connections: it takes %d at least, for commits, reads, heartbeats and model calls", o.MaxConns, fewestConns)
	case o.EffectTimeout < 0 || o.EffectTimeout >= o.LeaseTime:
		return fault.Fatalf("an effect may run for %s and a lease lasts %s: give effects less time, or leases more", o.EffectTimeout, o.LeaseTime)
	}
	return nil
}

// Open connects, checks that the server keeps what it acknowledges, and makes or updates the ledger's schema.
func Open(ctx context.Context, o Options) (*DB, error) {
	if err := o.setDefaults(); err != nil {
		return nil, fmt.Errorf("open PostgreSQL ledger: %w", err)
	}
	config, err := configure(&o)
	if err != nil {
		return nil, fmt.Errorf("open PostgreSQL ledger: %w", err)
	}
	db := newDB(o)
	pooled, err := db.probe(ctx, config.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("open PostgreSQL ledger: %w", err)
	}
	if pooled && config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// Statements that are prepared by name belong to a session, and behind a pooler nobody has one.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		db.log.Info("a pooler is in between: statements are prepared anew for each use")
	}
	if db.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("open PostgreSQL ledger: %w", err)
	}
	err = db.migrate(ctx)
	if err == nil {
		err = db.own(ctx, db.recognize)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open PostgreSQL ledger: %w", err), db.Close())
	}
	return db, nil
}

func newDB(o Options) *DB {
	db := &DB{opts: o, log: o.Logger, sql: within(o.Schema), closed: make(chan struct{}), memory: newMemory(),
		turns:   turnstile{busy: make(map[ledger.Key]bool), changed: make(chan struct{})},
		unknown: make(map[*ledger.Batch]*attempt), writes: make(share, max(1, o.MaxConns/4)), reads: make(share, max(1, o.MaxConns/3))}
	db.idle = (o.EffectTimeout + o.LeaseTime) / 2
	db.lock = min(o.LeaseTime/3, db.idle)
	db.call = db.idle + abandonAfter
	db.endTx = db.commit
	keep := ", CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) END"
	if o.AcceptLoss {
		keep = ""
	}
	db.begin[inCommit] = settings(db.idle, db.lock, db.idle) + keep
	db.begin[inSetup] = settings(0, 6*db.lock, db.idle) + keep
	db.begin[inRead] = settings(0, db.lock, longRead)
	db.begin[inOwn] = settings(db.idle, db.lock, db.idle) + keep
	return db
}

// settings is a statement that sets a transaction's time-outs, where 0 is none.
func settings(statement, lock, idle time.Duration) string {
	return fmt.Sprintf("SELECT set_config('statement_timeout', '%d', true), set_config('lock_timeout', '%d', true), "+
		"set_config('idle_in_transaction_session_timeout', '%d', true)", statement.Milliseconds(), lock.Milliseconds(), idle.Milliseconds())
}

// configure reads the connection string. What the parser says about it is kept back, since it may quote a password.
func configure(o *Options) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(o.DSN)
	if err != nil || o.DSN == "" {
		return nil, fault.Fatalf("its connection string can't be read: write postgres://USER@HOST:PORT/DATABASE or host=… user=… dbname=…, " +
			"with special characters of a URL's parts percent-encoded; a password may come from PGPASSWORD or a passfile instead")
	}
	config.MaxConns = int32(o.MaxConns)
	config.MinConns, config.MinIdleConns = 0, 0
	c := config.ConnConfig
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 5 * time.Second
	}
	if c.ValidateConnect == nil { // after a fail-over the old primary may be there still, as a stand-by
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsPrimary
	}
	c.DialFunc = (&net.Dialer{Timeout: c.ConnectTimeout, Control: unanswered(o.LeaseTime),
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: o.LeaseTime / 3, Interval: max(time.Second, o.LeaseTime/6), Count: 2}}).DialContext
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "swarmlog"
	}
	c.RuntimeParams["timezone"] = "UTC" // poolers pass this one on
	c.BuildContextWatcherHandler = cancelling
	c.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if n.Severity == "WARNING" || n.SeverityUnlocalized == "WARNING" {
			o.Logger.Warn("PostgreSQL warns", "code", n.Code, "message", n.Message)
		}
	}
	config.AfterConnect = prepareTypes
	return config, nil
}

// prepareTypes makes what users read exact: times in UTC, and numbers in JSON digit by digit.
func prepareTypes(_ context.Context, c *pgx.Conn) error {
	m := c.TypeMap()
	m.RegisterType(&pgtype.Type{Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC}})
	exact := func(b []byte, v any) error {
		if _, ok := v.(*any); !ok {
			return json.Unmarshal(b, v)
		}
		return unmarshalExact(b, v)
	}
	m.RegisterType(&pgtype.Type{Name: "json", OID: pgtype.JSONOID, Codec: &pgtype.JSONCodec{Marshal: json.Marshal, Unmarshal: exact}})
	m.RegisterType(&pgtype.Type{Name: "jsonb", OID: pgtype.JSONBOID, Codec: &pgtype.JSONBCodec{Marshal: json.Marshal, Unmarshal: exact}})
	return nil
}

// probe looks at the server through a connection of its own, and tells whether a pooler is in between.
func (db *DB) probe(ctx context.Context, config *pgx.ConnConfig) (pooled bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, config.ConnectTimeout+db.call)
	defer cancel()
	c, err := pgx.ConnectConfig(ctx, config.Copy())
	if err != nil {
		return false, unreachable(err)
	}
	defer c.Close(context.WithoutCancel(ctx))
	if c.PgConn().ParameterStatus("standard_conforming_strings") == "off" {
		return false, fault.Fatalf("standard_conforming_strings is off: set it on for this role (ALTER ROLE … SET standard_conforming_strings = on)")
	}
	// The simple protocol: all that every pooler passes on.
	var pid int64
	var standby bool
	server := map[string]string{}
	rows, err := c.Query(ctx, "SELECT pg_backend_pid()::bigint, pg_is_in_recovery(), current_setting('server_version_num'), current_setting('server_encoding'), "+
		"current_setting('fsync'), current_setting('synchronous_commit')", pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		return false, environment("look at the server", err)
	}
	defer rows.Close()
	if rows.Next() {
		var version, encoding, fsync, synchronous string
		if err := rows.Scan(&pid, &standby, &version, &encoding, &fsync, &synchronous); err != nil {
			return false, environment("look at the server", err)
		}
		server = map[string]string{"version": version, "encoding": encoding, "fsync": fsync, "synchronous_commit": synchronous}
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return false, environment("look at the server", err)
	}
	if standby {
		return false, fault.As(fault.Unavailable, errors.New("the server is a stand-by: connect to the primary, or name all hosts in the connection string"))
	}
	// A pooler makes up the number that it gives a client as its server process.
	return pid != int64(c.PgConn().PID()), db.judge(server)
}

// judge says which setting of a server breaks a promise.
func (db *DB) judge(server map[string]string) error {
	version, _ := strconv.Atoi(server["version"])
	switch {
	case version < oldestServer:
		return fault.Fatalf("the server is PostgreSQL %d: 14 or newer is needed", version/10000)
	case server["encoding"] != "UTF8":
		return fault.Fatalf("the database's encoding is %s, which can't hold every text: create one with ENCODING 'UTF8'", server["encoding"])
	case db.opts.AcceptLoss:
		return nil
	case server["fsync"] != "on":
		return fault.Fatalf("fsync is off, so a crash loses commits that were acknowledged: set fsync = on in postgresql.conf, or accept the loss by name")
	case server["synchronous_commit"] == "off":
		return fault.Fatalf("synchronous_commit is off, so a crash loses commits that were acknowledged: set it on for this role (ALTER ROLE … SET synchronous_commit = on), or accept the loss by name")
	}
	if server["synchronous_commit"] == "local" {
		db.log.Warn("synchronous_commit is local: a fail-over to a stand-by loses the last commits", "setting", server["synchronous_commit"])
	}
	return nil
}

// unreachable is the error of a connection that could not be made; it names hosts and never a password.
func unreachable(err error) error {
	switch c := code(err); {
	case c == "42704" || c == "08P01": // as a pooler says about a parameter that it doesn't pass on
		return fault.As(fault.Unavailable, fmt.Errorf("connect: %w: leave parameters that a pooler refuses out of the connection string", err))
	case len(c) == 5 && c[:2] == "28", c == "3D000":
		return fault.As(fault.Unavailable, fmt.Errorf("connect: %w: check the connection string's user, password and database", err))
	}
	return environment("connect", err)
}

// Close waits a while for those who use connections, and closes them. It may be called again.
func (db *DB) Close() error {
	db.closing.Do(func() { db.closeBy = db.close() })
	return db.closeBy
}

func (db *DB) close() error {
	close(db.closed)
	if db.pool == nil {
		return nil
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		db.pool.Close()
	}()
	patience := time.NewTimer(closePatience + db.opts.EffectTimeout)
	defer patience.Stop()
	select {
	case <-done:
		return nil
	case <-patience.C:
		return errors.New("close ledger: somebody still uses a connection")
	}
}
