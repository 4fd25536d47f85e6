package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
	"modernc.org/sqlite"

	"github.com/swarmlog/swarmlog/ledger"
)

// Options are the settings of a ledger. The zero value of a field means its default.
type Options struct {
	Logger *slog.Logger // default: nothing is logged
	// Now is the clock of leases and heartbeats; default time.Now. There's one process, so its clock is the database's.
	Now func() time.Time
	// EffectTimeout bounds one effect of a step; default 10 s.
	EffectTimeout time.Duration
	// Readers is how many reads run at once; default 4.
	Readers int
}

// Memory is the path of a ledger that is gone when it's closed, for tests: a file in a folder of its own, so that it
// behaves as any other, but is never synced.
const Memory = ":memory:"

// closePatience bounds, with the time of an effect, how long Close waits for those who still read or write.
const closePatience = 10 * time.Second

const (
	// applicationID marks the file as ours ("SWLG").
	applicationID = 0x53574c47
	// checkpointPages is how long the write-ahead log grows, in pages of 4 KiB, before it's copied into the
	// database: pages of the big indexes are written once for many batches.
	checkpointPages = 16384
	cacheKiB        = 32 << 10 // of the writer; readers have an eighth each
	busyTimeout     = 5 * time.Second
)

// DB is a ledger in one SQLite file.
type DB struct {
	opts     Options
	log      *slog.Logger
	dsn      string // of a connection, without its pragmas
	readOnly bool
	temp     string // folder to remove at the end
	lock     *flock.Flock

	writing bool       // there's a writing connection
	writer  chan *conn // holds the writing connection while nobody has it
	readers chan *conn // holds Readers connections, nil where not opened yet
	closed  chan struct{}
	closing sync.Once
	closeBy error

	queue queue
	// endTx commits; tests let it fail.
	endTx func(*conn) error

	mu      sync.Mutex
	leases  map[ledger.Key]leaseID
	unknown map[*ledger.Batch]*attempt // batches whose COMMIT has an unknown outcome
}

// leaseID is what a lease's rows are found by; it never changes.
type leaseID struct{ id, group int64 }

var _ ledger.Ledger = (*DB)(nil)

// Open opens the ledger at path, making the file where there's none; its folder must exist. Another process that has
// it open is ledger.ErrInUse.
func Open(ctx context.Context, path string, o Options) (*DB, error) {
	db := newDB(o)
	synchronous := "full"
	if path == Memory {
		temp, err := os.MkdirTemp("", "swarmlog-ledger-")
		if err != nil {
			return nil, fmt.Errorf("open ledger: %w", err)
		}
		db.temp, path, synchronous = temp, filepath.Join(temp, "ledger.db"), "off"
	}
	if err := db.open(ctx, path, synchronous); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func newDB(o Options) *DB {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.EffectTimeout <= 0 {
		o.EffectTimeout = 10 * time.Second
	}
	if o.Readers <= 0 {
		o.Readers = 4
	}
	db := &DB{
		opts: o, log: o.Logger,
		writer: make(chan *conn, 1), readers: make(chan *conn, o.Readers), closed: make(chan struct{}),
		endTx:  (*conn).commit,
		leases: make(map[ledger.Key]leaseID), unknown: make(map[*ledger.Batch]*attempt),
	}
	for range o.Readers {
		db.readers <- nil
	}
	return db
}

func (db *DB) open(ctx context.Context, path, synchronous string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return fmt.Errorf("open ledger %s: %w", path, err)
	}
	db.lock = flock.New(path + ".lock")
	ok, err := db.lock.TryLock()
	if err != nil {
		return fmt.Errorf("open ledger %s: lock %s: %w", path, db.lock.Path(), err)
	}
	if !ok {
		return fmt.Errorf("open ledger %s: %w: stop that process, or use another data folder", path, ledger.ErrInUse)
	}
	// On Linux fdatasync keeps a commit as safe as fsync does and takes half the time; elsewhere it may not exist.
	if _, err := sqlite.Fdatasync(true); err != nil && !errors.Is(err, sqlite.ErrFdatasyncUnavailable) {
		return fmt.Errorf("open ledger %s: %w", path, err)
	}
	db.dsn = fileURI(path, "rwc")
	w, err := openConn(db.dsn + pragmas("journal_mode(wal)", "synchronous("+synchronous+")",
		fmt.Sprintf("wal_autocheckpoint(%d)", checkpointPages), fmt.Sprintf("journal_size_limit(%d)", 4096*checkpointPages),
		fmt.Sprintf("cache_size(-%d)", cacheKiB)))
	if err != nil {
		return fmt.Errorf("open ledger %s: %w", path, err)
	}
	db.writer <- w
	db.writing = true
	if err := migrate(w, path); err != nil {
		return err
	}
	db.dsn = fileURI(path, "rw") // a reader must not make a file anew that was taken away
	return nil
}

// OpenReadOnly opens a ledger that is there already, for reading; it makes nothing, migrates nothing and keeps nobody
// out. All that would write fails.
func OpenReadOnly(path string) (*DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("open ledger %s: %w: nothing has run in this folder yet; start it with swarmlog up", path, fs.ErrNotExist)
		}
		return nil, fmt.Errorf("open ledger %s: %w", path, err)
	}
	db := newDB(Options{})
	db.readOnly = true
	db.dsn = fileURI(path, "ro")
	r, err := db.reader(background)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open ledger %s: %w", path, err), db.Close())
	}
	err = checkVersion(r, path)
	db.giveBack(r, nil)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func fileURI(path, mode string) string {
	slash := filepath.ToSlash(path)
	if !strings.HasPrefix(slash, "/") {
		slash = "/" + slash // file:///C:/…
	}
	return (&url.URL{Scheme: "file", Path: slash}).String() + "?mode=" + mode
}

// pragmas are those of every connection, and more.
func pragmas(more ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "&_defensive=1&_dqs=0&_pragma=busy_timeout(%d)", busyTimeout.Milliseconds())
	for _, p := range more {
		b.WriteString("&_pragma=" + p)
	}
	return b.String()
}

// Close waits for the writer, and for a while for readers, and closes the file. It may be called again.
func (db *DB) Close() error {
	db.closing.Do(func() { db.closeBy = db.close() })
	return db.closeBy
}

func (db *DB) close() error {
	close(db.closed)
	var errs []error
	// Readers go first: the last connection to close copies the write-ahead log into the database.
	patience, cancel := context.WithTimeout(background, closePatience+db.opts.EffectTimeout)
	defer cancel()
	for range cap(db.readers) {
		select {
		case r := <-db.readers:
			if r != nil {
				errs = append(errs, r.close())
			}
		case <-patience.Done():
			errs = append(errs, errors.New("close ledger: somebody still reads"))
		}
	}
	if db.writing {
		select {
		case w := <-db.writer:
			errs = append(errs, w.close())
		case <-patience.Done():
			errs = append(errs, errors.New("close ledger: a commit is still under way"))
		}
	}
	if db.lock != nil {
		errs = append(errs, db.lock.Close())
	}
	if db.temp != "" {
		errs = append(errs, os.RemoveAll(db.temp))
	}
	return errors.Join(errs...)
}
