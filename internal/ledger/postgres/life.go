package postgres

import (
	"context"
	"maps"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// A database goes back by a fail-over to a stand-by that hadn't got the last commits, or by a restored backup. What
// was published since, and what handlers were told, can't be taken back, so whoever notices stops for good. It's
// noticed by what processes remember: of each lease that they hold its epoch and how many commits it had, and of the
// ledger as a whole a token that rises with the heartbeats. Where nobody is left who remembers, the ledger's lives tell
// people that it was moved: the system's identifier and the timeline, which a promotion and a restore make anew.

// timeline is the one that the server writes on; "" on a stand-by.
const timeline = "CASE WHEN pg_is_in_recovery() THEN '' ELSE substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END"

var (
	qLastLife = define("SELECT t.token, " + timeline + ", l.* FROM {}tide t LEFT JOIN (SELECT since, system, timeline FROM {}life ORDER BY since DESC LIMIT 1) l ON true")
	qNewLife  = define("INSERT INTO {}life (since, system, timeline, token) SELECT {now}, $1, $2, token FROM {}tide ON CONFLICT DO NOTHING")
)

const qSystem = "SELECT system_identifier::text FROM pg_control_system()"

// errBack says that something which was acknowledged isn't there any more.
func errBack(format string, args ...any) error {
	return own(fault.Fatalf(format+": the database went back, by a fail-over that lost commits or a restored backup; stop all workers, and run swarmlog recover --swarm FILE", args...))
}

// memory is what this process remembers of the ledger; safe for concurrent use.
type memory struct {
	mu   sync.Mutex
	what remembered
	back error // once it was noticed, it stays
}

// remembered is what was acknowledged at some time.
type remembered struct {
	leases map[ledger.Key]mark
	token  int64
}

// mark is how far a lease was.
type mark struct{ epoch, commits int64 }

func newMemory() *memory {
	return &memory{what: remembered{leases: make(map[ledger.Key]mark)}}
}

// keep remembers a lease as the server has acknowledged it.
func (m *memory) keep(k ledger.Key, epoch, commits int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.what.leases[k]
	m.what.leases[k] = mark{max(was.epoch, epoch), max(was.commits, commits)}
}

func (m *memory) keepToken(token int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.what.token = max(m.what.token, token)
}

// copy is what is remembered now. What is read later than that must not be older.
func (m *memory) copy() remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	return remembered{maps.Clone(m.what.leases), m.what.token}
}

// check compares a lease, as it is under its lock, with what is remembered.
func (m *memory) check(l foundLease) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.back == nil {
		m.back = m.what.check(l)
	}
	return m.back
}

// gone is the error of a database that was seen to have gone back.
func (m *memory) gone() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.back
}

func (m *memory) lose(err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.back == nil {
		m.back = err
	}
	return m.back
}

func (r remembered) check(l foundLease) error {
	was := r.leases[l.Key]
	if l.commits < was.commits || l.Epoch < was.epoch {
		return errBack("lease of %s on %s/%d is at epoch %d with %d commits, and was at epoch %d with %d", l.Group, l.Topic, l.Partition,
			l.Epoch, l.commits, was.epoch, was.commits)
	}
	return nil
}

// pulse is what a heartbeat hears of the database.
type pulse struct {
	token    int64
	timeline string
	back     error
}

// scan reads a row of qBeat; the lease is empty where the worker has none.
func (p *pulse) scan(r pgx.CollectableRow) (l foundLease, err error) {
	var group, owner *string
	var topic *[16]byte
	var part *int32
	var epoch, commits *int64
	if err := r.Scan(&p.token, &p.timeline, &group, &topic, &part, &owner, &epoch, &commits); err != nil || group == nil {
		return l, err
	}
	l.Fence = ledger.Fence{Key: ledger.Key{Group: *group, TopicID: *topic, Partition: *part}, Owner: *owner, Epoch: *epoch}
	l.commits = *commits
	return l, nil
}

// live compares a heartbeat's pulse with what was remembered before it, and notes it.
func (db *DB) live(ctx context.Context, c *pgx.Conn, known remembered, p pulse) error {
	if p.token < known.token {
		p.back = errBack("its token is %d and was %d", p.token, known.token)
	}
	if p.back != nil {
		return db.memory.lose(p.back)
	}
	db.memory.keepToken(p.token)
	if db.memory.gone() == nil && p.timeline == db.timeline.Load() {
		return nil
	}
	if err := db.recognize(ctx, c); err != nil {
		return err
	}
	return db.memory.gone()
}

// recognize notes which server the ledger lives on now, and warns where that is another than before.
func (db *DB) recognize(ctx context.Context, c *pgx.Conn) error {
	var system, now string
	if err := c.QueryRow(ctx, qSystem).Scan(&system); err != nil && code(err) != "42501" {
		return err
	}
	var token int64
	var since *int64
	var wasSystem, was *string
	if err := c.QueryRow(ctx, db.sql[qLastLife]).Scan(&token, &now, &since, &wasSystem, &was); err != nil {
		return err
	}
	db.memory.keepToken(token)
	db.timeline.Store(now)
	if was != nil && *was == now && (*wasSystem == system || *wasSystem == "" || system == "") {
		return nil
	}
	if was != nil {
		db.log.Warn("the ledger lives on another server or timeline than before: PostgreSQL failed over, or a backup was restored; "+
			"unless the one before lost nothing, stop all workers and run swarmlog recover --swarm FILE",
			"system", system, "timeline", now, "system_before", *wasSystem, "timeline_before", *was)
	}
	_, err := c.Exec(ctx, db.sql[qNewLife], system, now)
	return err
}
