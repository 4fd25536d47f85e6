package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

func path(t testing.TB) string { return filepath.Join(t.TempDir(), "ledger #1?.db") }

func TestHandle(t *testing.T) {
	c, err := openConn(fileURI(path(t), "rwc") + pragmas())
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if !c.autocommit() {
		t.Error("a new connection is in a transaction")
	}
	if err := c.begin(qBeginWrite); err != nil || c.autocommit() {
		t.Errorf("after BEGIN (%v), autocommit is %v", err, c.autocommit())
	}
	if err := c.rollback(); err != nil || !c.autocommit() {
		t.Errorf("after ROLLBACK (%v), autocommit is %v", err, c.autocommit())
	}
}

func TestSettingsThatCommitsRestOn(t *testing.T) {
	db := open(t, path(t))
	w := <-db.writer
	defer func() { db.writer <- w }()
	for pragma, want := range map[string]driver.Value{"journal_mode": "wal", "synchronous": int64(2), "wal_autocheckpoint": int64(checkpointPages)} {
		st, err := w.prepare("PRAGMA " + pragma)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := st.QueryContext(background, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]driver.Value, 1)
		if err := rows.Next(got); err != nil || got[0] != want {
			t.Errorf("%s is %v (%v), want %v", pragma, got[0], err, want)
		}
		_ = rows.Close()
		_ = st.Close()
	}
}

func TestOneProcessAtATime(t *testing.T) {
	p := path(t)
	db := open(t, p)
	if _, err := Open(t.Context(), p, Options{}); !errors.Is(err, ledger.ErrInUse) {
		t.Fatalf("opened twice: %v, want ErrInUse", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	open(t, p)
}

func TestSurvivesReopening(t *testing.T) {
	p := path(t)
	db := open(t, p)
	s := oneStep(acquire(t, db), 0)
	s.Emits = []ledger.Outgoing{{Topic: "out"}}
	commitOne(t, db, s)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open(t, p)
	l := acquireLease(t, db)
	if l.Next != 1 || l.Epoch != 2 || l.Seq != 1 {
		t.Errorf("lease is %+v", l)
	}
	if _, err := os.Stat(p); err != nil {
		t.Errorf("the file has another name: %v", err)
	}
}

func TestReadOnly(t *testing.T) {
	p := path(t)
	if _, err := OpenReadOnly(p); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "swarmlog up") {
		t.Fatalf("missing file: %v", err)
	}
	if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal("opening for reading made the file")
	}
	db := open(t, p)
	commitOne(t, db, oneStep(acquire(t, db), 0))
	for _, running := range []bool{true, false} {
		if !running {
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
		r, err := OpenReadOnly(p)
		if err != nil {
			t.Fatalf("running %v: %v", running, err)
		}
		totals, err := r.Totals(t.Context())
		if err != nil || len(totals.Leases) != 1 || totals.Leases[0].Next != 1 {
			t.Errorf("running %v: totals are %+v, %v", running, totals, err)
		}
		if _, err := r.Beat(t.Context(), ledger.Worker{ID: "w"}, time.Second); !errors.Is(err, errReadOnly) {
			t.Errorf("running %v: Beat: %v", running, err)
		}
		if _, err := r.Commit(t.Context(), &ledger.Batch{}); !errors.Is(err, errReadOnly) {
			t.Errorf("running %v: Commit: %v", running, err)
		}
		if !running {
			again := open(t, p) // a reader keeps nobody out
			commitOne(t, again, oneStep(acquire(t, again), 1))
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestForeignAndNewerFilesAreRefused(t *testing.T) {
	for what, sql := range map[string]string{
		"database of something else": "CREATE TABLE t (x)",
		"newer Swarmlog":             "PRAGMA application_id = 1398230087; PRAGMA user_version = 99",
		"file is not a database":     "",
	} {
		p := path(t)
		if sql == "" {
			if err := os.WriteFile(p, []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
				t.Fatal(err)
			}
		} else {
			c, err := openConn(fileURI(p, "rwc") + pragmas())
			if err != nil {
				t.Fatal(err)
			}
			st, err := c.prepare(sql)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := st.ExecContext(background, nil); err != nil {
				t.Fatal(err)
			}
			_ = st.Close()
			_ = c.close()
		}
		db, err := Open(t.Context(), p, Options{})
		if err == nil {
			_ = db.Close()
		}
		if err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A file of the first version goes on where it stood: what was recorded, what was in doubt and what waits.
func TestFileOfTheFirstVersionIsBroughtUpToDate(t *testing.T) {
	p := path(t)
	c, err := openConn(fileURI(p, "rwc") + pragmas())
	if err != nil {
		t.Fatal(err)
	}
	if err := migrateTo(c, 1, migrationFiles()[0]); err != nil {
		t.Fatal(err)
	}
	called, _ := eventKey(nil, "test", "e1")
	third := event.New("PageReadEvent", "history", nil)
	third.ID, third.Source = "e3", "test"
	third.SetSequence(3)
	inHistory, err := third.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"INSERT INTO swarmlog_group VALUES (1, 'reader')",
		"INSERT INTO swarmlog_lease VALUES (1, 1, x'01000000000000000000000000000000', 0, 'pages', 'w1', 4, 0, 7, NULL, 0, 5, 0, 0, 0, 0, 2, 0, 0, 0, 3)",
		"INSERT INTO swarmlog_backlog VALUES (1, 1, 5, 'doc', 0, 'parked: offset 5 died', 1, x'" + fmt.Sprintf("%x", encodeMessage(parked)) + "')",
		"INSERT INTO swarmlog_backlog VALUES (2, 1, 6, 'history', 3, 'parked: offset 6 died', 1, x'" + fmt.Sprintf("%x", encodeMessage(inHistory)) + "')",
		"INSERT INTO swarmlog_cursor VALUES (1, 'test', 'history', 2)",
		"INSERT INTO swarmlog_recorded VALUES (1, x'" + fmt.Sprintf("%x", called[:16]) + "', 'notes', zeroblob(32), 1, 'key', NULL, 1)",
	} {
		st, err := c.prepare(sql)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.ExecContext(background, nil); err != nil {
			t.Fatal(err)
		}
		_ = st.Close()
	}
	_ = c.close()

	db := open(t, p)
	l, err := db.Acquire(t.Context(), ledger.Key{Group: "reader", TopicID: [16]byte{1}}, "pages", "w2", 0, time.Minute)
	if err != nil || l.Epoch != 5 || l.Next != 7 || l.Counters.Applied != 5 {
		t.Fatalf("lease %+v, %v", l, err)
	}
	rows, err := db.Backlog(t.Context(), l.Fence, "doc", 10)
	if err != nil || len(rows) != 1 || !rows[0].Dead || string(rows[0].Message.Value) != string(parked.Value) {
		t.Errorf("backlog %+v, %v", rows, err)
	}
	if dead, err := db.Dead(t.Context(), l.Key, []int64{5}); err != nil || !dead[0] {
		t.Errorf("dead %v, %v", dead, err)
	}
	if waits, err := db.Waits(t.Context(), ledger.WaitQuery{DeadOnly: true}); err != nil || len(waits) != 2 || !waits[0].Arrived.IsZero() {
		t.Errorf("waits %+v, %v", waits, err)
	}
	for _, id := range []string{"e2", "e1"} { // of another event, and of the one that had begun
		call := ledger.Call{Fence: l.Fence, Source: "test", EventID: id, Name: "notes", Reuse: true, Key: "key"}
		if _, state, err := db.Recall(t.Context(), call); err != nil || state != ledger.CallInDoubt {
			t.Errorf("call of %s: state %d, %v", id, state, err)
		}
	}
	for _, subject := range []string{"doc", "history"} {
		if done, err := db.Discard(t.Context(), l.Key, subject, -1); !done || err != nil {
			t.Errorf("discarded %v, %v", done, err)
		}
	}
	fourth := &ledger.Step{Fence: l.Fence, From: 7, Offset: 7, Outcome: ledger.Applied, Wait: &ledger.Wait{Subject: "history"},
		Event: ledger.Identity{Source: "test", ID: "e4", Subject: "history", Sequence: 4}}
	results, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{fourth}})
	if err != nil || results[0].Err != nil || results[0].Outcome != ledger.Applied {
		t.Errorf("the event after the discarded one: %+v, %v", results, err)
	}
}

var parked = event.Message{Key: []byte("doc"), Value: []byte("what waits"), Time: time.UnixMilli(1_700_000_000_000).UTC()}

func TestClosedLedger(t *testing.T) {
	db := open(t, Memory)
	temp := db.temp
	f := acquire(t, db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(temp); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there", temp)
	}
	if _, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{oneStep(f, 0)}}); !errors.Is(err, errClosed) {
		t.Errorf("Commit: %v", err)
	}
	if err := db.Release(t.Context(), f); !errors.Is(err, errClosed) {
		t.Errorf("Release: %v", err)
	}
	if _, err := db.Totals(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("Totals: %v", err)
	}
}

// Small writes that wait while somebody writes must share a transaction, and a wait that's given up must leave
// nothing.
func TestSmallWritesShareACommit(t *testing.T) {
	db := open(t, Memory)
	f := acquire(t, db)
	const n = 50
	w := <-db.writer
	changes := dataVersion(t, db)
	var wg sync.WaitGroup
	errs := make([]error, n)
	ctx, cancel := context.WithCancel(t.Context())
	for i := range n {
		wg.Go(func() {
			c := ledger.Call{Fence: f, Source: "s", EventID: string(rune('A' + i))}
			mine := t.Context()
			if i%2 == 0 {
				mine = ctx
			}
			_, _, errs[i] = db.Recall(mine, c)
		})
	}
	until(t, func() bool { return waiting(db) == n })
	cancel()
	until(t, func() bool { return waiting(db) == n/2 })
	db.writer <- w
	wg.Wait()
	for i, err := range errs {
		if (err != nil) != (i%2 == 0) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	totals, err := db.Totals(t.Context())
	if err != nil || totals.Inference.Calls != n/2 {
		t.Errorf("totals are %+v, %v", totals.Inference, err)
	}
	if d := dataVersion(t, db) - changes; d != 1 {
		t.Errorf("%d transactions, want 1", d)
	}
}

func waiting(db *DB) int {
	db.queue.mu.Lock()
	defer db.queue.mu.Unlock()
	return len(db.queue.waiting)
}

// dataVersion rises with each commit that a reader sees.
func dataVersion(t *testing.T, db *DB) (n int64) {
	t.Helper()
	for range db.opts.Readers { // always the same connection
		r, err := db.reader(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer db.giveBack(r, nil)
		if n == 0 {
			if _, err := r.first(qDataVersion, func(r row) { n = r.int(0) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

var qDataVersion = define("PRAGMA data_version")

func until(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited too long")
		}
	}
}

func TestFullDiskBlamesNobody(t *testing.T) {
	db := open(t, path(t))
	f := acquire(t, db)
	setup(t, db, "CREATE TABLE big (b BLOB)")
	pragma(t, db, "PRAGMA max_page_count = 60")
	good, big := oneStep(f, 0), oneStep(f, 1)
	big.Effects = []func(context.Context, ledger.Tx) error{func(ctx context.Context, tx ledger.Tx) error {
		_, _ = tx.Exec(ctx, "INSERT INTO big VALUES (zeroblob(1000000))")
		return nil // and hides it
	}}
	b := &ledger.Batch{Steps: []*ledger.Step{good, big}}
	_, err := db.Commit(t.Context(), b)
	if err == nil || errors.Is(err, ledger.ErrUnknown) || fault.ClassOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "free some space") {
		t.Fatalf("commit on a full disk: %v (%v)", err, fault.ClassOf(err))
	}
	if l := lease(t, db); l.Next != 0 {
		t.Errorf("lease is %+v", l)
	}
	pragma(t, db, "PRAGMA max_page_count = 100000")
	results, err := db.Commit(t.Context(), b)
	if err != nil || results[0].Outcome != ledger.Applied || results[1].Outcome != ledger.Applied {
		t.Errorf("with space again: %v, %v", results, err)
	}
}

func TestBusyFileBlamesNobody(t *testing.T) {
	p := path(t)
	db := open(t, p)
	f := acquire(t, db)
	pragma(t, db, "PRAGMA busy_timeout = 1")
	other, err := openConn(fileURI(p, "rw") + pragmas())
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	if err := other.begin(qBeginWrite); err != nil {
		t.Fatal(err)
	}
	b := &ledger.Batch{Steps: []*ledger.Step{oneStep(f, 0)}}
	if _, err := db.Commit(t.Context(), b); err == nil || fault.ClassOf(err) != fault.Transient {
		t.Fatalf("commit while another writes: %v", err)
	}
	if err := other.rollback(); err != nil {
		t.Fatal(err)
	}
	if r, err := db.Commit(t.Context(), b); err != nil || r[0].Outcome != ledger.Applied {
		t.Errorf("afterwards: %v, %v", r, err)
	}
}

// A COMMIT that returns an error is asked after at once: where the file can be read, nothing stays unknown.
func TestFailedCommitIsAskedAfter(t *testing.T) {
	for _, happened := range []bool{true, false} {
		db := open(t, Memory)
		f := acquire(t, db)
		db.endTx = func(c *conn) error {
			db.endTx = (*conn).commit
			if happened {
				_ = c.commit()
			}
			return errors.New("disk I/O error")
		}
		b := &ledger.Batch{Steps: []*ledger.Step{oneStep(f, 0)}}
		r, err := db.Commit(t.Context(), b)
		if happened && (err != nil || r[0].Outcome != ledger.Applied) {
			t.Errorf("it happened: %v, %v", r, err)
		}
		if !happened {
			if err == nil || errors.Is(err, ledger.ErrUnknown) {
				t.Errorf("it didn't happen: %v", err)
			}
			if r, err = db.Commit(t.Context(), b); err != nil || r[0].Outcome != ledger.Applied {
				t.Errorf("again: %v, %v", r, err)
			}
		}
		if l := lease(t, db); l.Counters.Applied != 1 {
			t.Errorf("counters are %+v", l.Counters)
		}
	}
}

var testKey = ledger.Key{Group: "g", TopicID: [16]byte{1}}

func acquireLease(t testing.TB, db *DB) ledger.Lease {
	t.Helper()
	l, err := db.Acquire(t.Context(), testKey, "topic", "w", 0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func acquire(t testing.TB, db *DB) ledger.Fence {
	t.Helper()
	return acquireLease(t, db).Fence
}

func lease(t testing.TB, db *DB) ledger.Lease {
	t.Helper()
	leases, err := db.Leases(t.Context(), testKey.Group)
	if err != nil || len(leases) != 1 {
		t.Fatalf("leases: %v, %v", leases, err)
	}
	return leases[0]
}

func oneStep(f ledger.Fence, offset int64) *ledger.Step {
	return &ledger.Step{Fence: f, From: offset, Offset: offset, Outcome: ledger.Applied, LogTime: time.UnixMilli(1_700_000_000_000 + offset),
		Event: ledger.Identity{Source: "s", ID: time.Duration(offset).String(), Subject: "x"}}
}

func commitOne(t testing.TB, db *DB, s *ledger.Step) {
	t.Helper()
	if r, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{s}}); err != nil || r[0].Outcome != s.Outcome {
		t.Fatalf("commit: %v, %v", r, err)
	}
}

func setup(t testing.TB, db *DB, statements ...string) {
	t.Helper()
	if err := db.Setup(t.Context(), func(ctx context.Context, tx ledger.Tx) error {
		for _, s := range statements {
			if _, err := tx.Exec(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// pragma sets something on the writer, past the guard.
func pragma(t *testing.T, db *DB, sql string) {
	t.Helper()
	w := <-db.writer
	defer func() { db.writer <- w }()
	st, err := w.prepare(sql)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if _, err := st.ExecContext(background, nil); err != nil {
		t.Fatal(err)
	}
}
