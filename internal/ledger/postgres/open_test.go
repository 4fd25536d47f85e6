package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	for _, c := range []struct {
		what, want string
		change     func(*Options)
	}{
		{"synchronous_commit", "synchronous_commit is off", func(o *Options) { o.DSN = with(t, r.dsn, "synchronous_commit", "off") }},
		{"strings", "standard_conforming_strings", func(o *Options) { o.DSN = with(t, r.dsn, "standard_conforming_strings", "off") }},
		{"budget", "connections", func(o *Options) { o.MaxConns = 3 }},
		{"schema", "lower-case", func(o *Options) { o.Schema = `x"; DROP` }},
		{"times", "give effects less time", func(o *Options) { o.EffectTimeout, o.LeaseTime = time.Minute, time.Minute }},
		{"empty", "connection string", func(o *Options) { o.DSN = "" }},
	} {
		o := Options{DSN: r.dsn, Schema: r.schema}
		c.change(&o)
		db, err := Open(t.Context(), o)
		if err == nil {
			_ = db.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || fault.ClassOf(err) != fault.Fatal {
			t.Errorf("%s: %v (%v), want it refused for good with %q", c.what, err, fault.ClassOf(err), c.want)
		}
	}
	accepted := r.open(t, func(o *Options) { o.DSN, o.AcceptLoss = with(t, r.dsn, "synchronous_commit", "off"), true })
	setup(t, accepted, effectTable)
}

// A setting that is turned off later, for new sessions, is turned on in each transaction.
func TestCommitIsSynchronousWhateverTheSessionSays(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	f := acquire(t, db, 0)
	setup(t, db, effectTable)
	l, err := db.take(t.Context(), db.writes)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if _, err := l.conn().Exec(t.Context(), "SET synchronous_commit = off"); err != nil {
		t.Fatal(err)
	}
	var got string
	b := &ledger.Batch{Steps: []*ledger.Step{oneStep(f, 0, func(ctx context.Context, tx ledger.Tx) error {
		return tx.QueryRow(ctx, "SELECT current_setting('synchronous_commit')").Scan(&got)
	})}}
	if _, err := db.insist(t.Context(), l, b, make([]error, 1)); err != nil || got != "on" {
		t.Errorf("synchronous_commit is %q in a commit (%v)", got, err)
	}
}

// No error and no log line has the password, however wrong the connection string is.
func TestPasswordStaysSecret(t *testing.T) {
	t.Parallel()
	dsn := given.Postgres(t)
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the server's address isn't a URL")
	}
	const secret = "hunter2%"
	host := u.Host
	for _, bad := range []string{
		"postgres://swarmlog:" + secret + "@" + host + "/postgres", // % is an escape that isn't one
		"postgres://swarmlog:hunter2%25@" + host + "/postgres?sslmode=disable&connect_timeout=x",
		"postgres://swarmlog:hunter2%25@" + host + "/postgres?sslmode=disable",        // it's the wrong one
		"postgres://swarmlog:hunter2%25@127.0.0.1:1/postgres?sslmode=disable",         // nobody is there
		"host=127.0.0.1 port=x user=swarmlog password='hunter2%' dbname=postgres",     //
		"host=127.0.0.1 user=swarmlog password='hunter2% dbname=postgres",             // an open quote
		"postgres://swarmlog:hunter2%25@" + host + "/nowhere-hunted?sslmode=disable",  //
		"postgres://swarmlog:hunter2%25@" + host + "/postgres?sslmode=hunter2%25-too", //
	} {
		db, err := Open(t.Context(), Options{DSN: bad})
		if err == nil {
			_ = db.Close()
			t.Error("it was opened")
			continue
		}
		if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, errors.Unwrap(err)), "hunter2") {
			t.Errorf("the error tells the password: %v", err)
		}
		if !strings.Contains(err.Error(), ":") || len(err.Error()) < 40 {
			t.Errorf("%v doesn't tell what to do", err)
		}
	}
}

func TestMigrationsRunOnceHoweverManyStart(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			db, err := Open(t.Context(), Options{DSN: r.dsn, Schema: r.schema})
			if err != nil {
				t.Error(err)
				return
			}
			_ = db.Close()
		})
	}
	wg.Wait()
	c := connect(t, r.dsn)
	var n, inPath int
	if err := c.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM "+r.schema+".migration), (SELECT count(*) FROM pg_tables WHERE schemaname = $1)", r.schema+"_user").Scan(&n, &inPath); err != nil {
		t.Fatal(err)
	}
	if n != len(migrationFiles()) || inPath != 0 {
		t.Errorf("%d migrations ran, want %d; the users' schema got %d tables", n, len(migrationFiles()), inPath)
	}
	admin(t, r.dsn, "INSERT INTO "+r.schema+".migration VALUES (99, 'later')")
	if _, err := Open(t.Context(), Options{DSN: r.dsn, Schema: r.schema}); err == nil || !strings.Contains(err.Error(), "newer Swarmlog") {
		t.Errorf("a newer schema: %v", err)
	}
	if _, err := Open(t.Context(), Options{DSN: r.dsn, Schema: "information_schema"}); err == nil || !strings.Contains(err.Error(), "something else") {
		t.Errorf("a schema of something else: %v", err)
	}
}

// Users' names are found in the users' schema, and the ledger's own tables are out of their way.
func TestUsersNamesAreTheirOwn(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	f := acquire(t, db, 0)
	setup(t, db, effectTable, "CREATE TABLE lease (n int)", "CREATE TABLE seen (n int)", "INSERT INTO lease VALUES (7)")
	if r := mustCommit(t, db, oneStep(f, 0, exec("UPDATE lease SET n = n + 1"))); r[0].Outcome != ledger.Applied {
		t.Fatalf("%+v", r)
	}
	var n int
	scan(t, db, "SELECT n FROM lease", &n)
	if n != 8 || lease(t, db, f.Key).Next != 1 {
		t.Errorf("the user's row is %d", n)
	}
}

// However much is asked at once, no more connections are open than the budget says, and heartbeats find one.
func TestConnectionBudget(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	name := "budget-" + r.schema
	db := r.open(t, func(o *Options) { o.DSN, o.MaxConns = with(t, r.dsn, "application_name", name), 4 })
	setup(t, db, effectTable)
	watcher := connect(t, r.dsn)
	fences := make([]ledger.Fence, 8)
	for p := range fences {
		fences[p] = acquire(t, db, int32(p))
	}
	var wg sync.WaitGroup
	for p, f := range fences {
		wg.Go(func() {
			for n := range int64(15) {
				if _, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{oneStep(f, n)}}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range 15 {
				if err := db.Read(t.Context(), exec("SELECT pg_sleep(0.005)")); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for n := range 15 {
				c := ledger.Call{Fence: f, Source: "s", EventID: fmt.Sprint(p, n)}
				if _, _, err := db.Recall(t.Context(), c); err != nil {
					t.Error(err)
				}
				if err := db.Settle(t.Context(), c, ledger.Answer{Model: "m"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	most := 0
	for over := false; !over; {
		select {
		case <-done:
			over = true
		default:
		}
		var n int
		if err := watcher.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", name).Scan(&n); err != nil {
			t.Fatal(err)
		}
		most = max(most, n)
		if _, err := db.Beat(t.Context(), ledger.Worker{ID: "w"}, lasting); err != nil {
			t.Fatal(err)
		}
	}
	if most > 4 || most < 2 {
		t.Errorf("%d connections at most, want the budget of 4", most)
	}
	wantOnce(t, db, 8*15)
}

// Reads that never end leave commits and heartbeats their connections.
func TestReadsDoNotStarveTheRest(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t, func(o *Options) { o.MaxConns = 4 })
	f := acquire(t, db, 0)
	setup(t, db, effectTable)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { _ = db.Read(ctx, exec(hang)) })
	}
	until(t, "reads have their share", func() bool { return len(db.reads) == cap(db.reads) })
	mustCommit(t, db, oneStep(f, 0))
	if _, err := db.Beat(t.Context(), ledger.Worker{ID: "w"}, lasting); err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
	wantOnce(t, db, 1)
}

func TestCloseWaitsAndMayBeCalledAgain(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	for range 2 {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := db.Leases(t.Context(), ""); !errors.Is(err, errClosed) {
		t.Errorf("leases of a closed ledger: %v", err)
	}
	if _, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{oneStep(ledger.Fence{}, 0)}}); !errors.Is(err, errClosed) {
		t.Errorf("commit to a closed ledger: %v", err)
	}
}

// A command that looks at the wrong database leaves nothing in it.
func TestExistingMakesNoLedger(t *testing.T) {
	t.Parallel()
	dsn := given.Database(t)
	if _, err := Open(t.Context(), Options{DSN: dsn, Existing: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("a database without a ledger: %v", err)
	}
	for range 2 { // it was left empty, and is made now, and found
		db, err := Open(t.Context(), Options{DSN: dsn})
		if err == nil {
			err = db.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		if db, err = Open(t.Context(), Options{DSN: dsn, Existing: true}); err == nil {
			err = db.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
