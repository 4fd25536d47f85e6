package postgres

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

func wantClass(t *testing.T, what string, err error, c fault.Class) {
	t.Helper()
	if err == nil || fault.ClassOf(err) != c {
		t.Errorf("%s: %v (%v), want a %v error", what, err, fault.ClassOf(err), c)
	}
}

// T1: an effect swallows the error that has failed its transaction. A COMMIT would answer ROLLBACK and look well.
func TestSwallowedErrorIsNotACommit(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	f := acquire(t, db, 0)
	setup(t, db, effectTable, "CREATE TABLE only_one (id int PRIMARY KEY)")
	bad := oneStep(f, 0, func(ctx context.Context, tx ledger.Tx) error {
		for range 2 {
			_, _ = tx.Exec(ctx, "INSERT INTO only_one VALUES (1)")
		}
		return nil
	})
	results := mustCommit(t, db, bad, oneStep(f, 1))
	wantClass(t, "swallowed", results[0].Err, fault.Permanent)
	if code(results[0].Err) != "23505" {
		t.Errorf("error is %v, want its cause", results[0].Err)
	}
	if results[1].Outcome != ledger.Applied {
		t.Errorf("its neighbour: %+v", results[1])
	}
	wantOnce(t, db, 1)
	if l := lease(t, db, f.Key); l.Next != 0 || !l.Finished.Contains(1) {
		t.Errorf("progress is %d and %v", l.Next, l.Finished)
	}
}

// T1: the COMMIT itself is read, too.
func TestCommitThatAnswersRollbackFails(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	l, err := db.take(t.Context(), db.writes)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	defer l.rollback()
	for _, sql := range []string{"BEGIN", "SELECT 1/0"} {
		_, _ = l.conn().Exec(t.Context(), sql)
	}
	if err := db.commit(l.conn()); err == nil {
		t.Error("a failed transaction was committed")
	}
}

// A COMMIT that the guard doesn't see is seen by the transaction's state.
func TestEndBehindTheGuardsBackIsFatal(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	f := acquire(t, db, 0)
	setup(t, db, effectTable)
	for i, goesOn := range []bool{false, true} {
		s := oneStep(f, int64(i), func(ctx context.Context, tx ledger.Tx) error {
			_, _ = tx.(*txn).c.Exec(ctx, "ROLLBACK")
			if goesOn {
				_, _ = tx.Exec(ctx, "INSERT INTO effect VALUES ('alone')")
			}
			return nil
		})
		wantClass(t, "ROLLBACK", mustCommit(t, db, s)[0].Err, fault.Fatal)
	}
	setup(t, db, "CREATE PROCEDURE ends() LANGUAGE plpgsql AS $$ BEGIN COMMIT; END $$")
	wantClass(t, "CALL", mustCommit(t, db, oneStep(f, 5, exec("CALL ends()")))[0].Err, fault.Fatal)
	wantClass(t, "DO", mustCommit(t, db, oneStep(f, 5, exec("DO $$ BEGIN COMMIT; END $$")))[0].Err, fault.Fatal)
	wantOnce(t, db, 1) // 'alone' was a statement of its own by then: that's why it's fatal
}

// T5, P2: one bad value fails its step alone, and its error is the cause and not PostgreSQL's echo.
func TestBadValueFailsItsStepWithItsCause(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	f := acquire(t, db, 0)
	setup(t, db, effectTable, "CREATE TABLE doc (body jsonb, words text)")
	for _, c := range []struct{ column, value, sqlstate string }{
		{"body", `{"a":"x\u0000y"}`, "22P05"},
		{"body", `{"a":"\ud83d"}`, "22P02"},
		{"body", `{"a":"\udc59\ud835\udc5e2"}`, "22P02"},
		{"body", `{"a":`, "22P02"},
		{"words", "x\x00y", "22021"},
		{"words", "caf\xe9", "22021"},
	} {
		first := lease(t, db, f.Key).Counters.Delivered() * 100 // offsets of their own
		var steps []*ledger.Step
		for i := range int64(10) {
			steps = append(steps, oneStep(f, first+i))
		}
		steps[3].Effects = append(steps[3].Effects, func(ctx context.Context, tx ledger.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO doc ("+c.column+") VALUES ($1)", c.value)
			if _, echo := tx.Exec(ctx, "SELECT 1"); echo != nil { // as a retry in the user's code would do
				err = echo
			}
			return err
		})
		results := mustCommit(t, db, steps...)
		for i, r := range results {
			if i == 3 {
				wantClass(t, c.value, r.Err, fault.Permanent)
				if code(r.Err) != c.sqlstate {
					t.Errorf("%s: %v, want SQLSTATE %s", c.value, r.Err, c.sqlstate)
				}
			} else if r.Outcome != ledger.Applied {
				t.Errorf("%s: step %d: %+v", c.value, i, r)
			}
		}
	}
	setup(t, db, `INSERT INTO doc (body) VALUES ('{"a":"x\\u0000y","n":9007199254740993}')`)
	var doc any
	scan(t, db, "SELECT body FROM doc", &doc)
	if m, _ := doc.(map[string]any); m["a"] != `x\u0000y` || stringOf(m["n"]) != "9007199254740993" {
		t.Errorf("read %v", doc)
	}
}

func stringOf(v any) string {
	if s, ok := v.(interface{ String() string }); ok {
		return s.String()
	}
	return ""
}

// A constraint that is checked at the COMMIT fails it for all; the step that is to blame is found.
func TestDeferredConstraintFailsItsStepAlone(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	f := acquire(t, db, 0)
	setup(t, db, effectTable, "CREATE TABLE parent (id int PRIMARY KEY)",
		"CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
	good := oneStep(f, 0, exec("INSERT INTO child VALUES (1)"), exec("INSERT INTO parent VALUES (1)"))
	bad := oneStep(f, 1, exec("INSERT INTO child VALUES (2)"))
	last := oneStep(f, 2, exec("INSERT INTO child VALUES (3)"), exec("INSERT INTO parent VALUES (3)"))
	last.Emits = []ledger.Outgoing{{Topic: "out"}}
	last.Event.Sequence = 1
	results := mustCommit(t, db, good, bad, last)
	wantClass(t, "violation", results[1].Err, fault.Permanent)
	if code(results[1].Err) != "23503" || results[0].Err != nil || results[2].Err != nil || results[2].FirstSeq != 1 {
		t.Errorf("results are %+v", results)
	}
	wantOnce(t, db, 2)
	if rows, err := db.Outbox(t.Context(), f, 0, 10); err != nil || len(rows) != 1 {
		t.Errorf("outbox has %v, %v", rows, err)
	}
}

// Two batches lock the same two rows in opposite orders. PostgreSQL ends one of them; nobody's record is to blame.
func TestDeadlockOfTwoWritersIsRunAgain(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t, func(o *Options) { o.EffectTimeout = 10 * time.Second })
	setup(t, db, effectTable, "CREATE TABLE total (id int PRIMARY KEY, n int)", "INSERT INTO total VALUES (1, 0), (2, 0)")
	fences := []ledger.Fence{acquire(t, db, 0), acquire(t, db, 1)}
	var met sync.WaitGroup
	met.Add(2)
	var wg sync.WaitGroup
	var runs [2]int
	for p := range 2 {
		first, second := 1+p, 2-p
		s := oneStep(fences[p], 0, exec("UPDATE total SET n = n + 1 WHERE id = $1", first), func(context.Context, ledger.Tx) error {
			if runs[p]++; runs[p] == 1 {
				met.Done()
				met.Wait()
			}
			return nil
		}, exec("UPDATE total SET n = n + 1 WHERE id = $1", second))
		wg.Go(func() {
			r, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{s}})
			if err != nil || r[0].Outcome != ledger.Applied {
				t.Errorf("writer %d: %v, %v", p, r, err)
			}
		})
	}
	wg.Wait()
	if runs[0]+runs[1] != 3 {
		t.Errorf("effects ran %v times: there was no deadlock", runs)
	}
	var a, b int
	scan(t, db, "SELECT min(n), max(n) FROM total", &a, &b)
	if a != 2 || b != 2 {
		t.Errorf("totals are %d and %d, want 2", a, b)
	}
	wantOnce(t, db, 2)
}

func raise(sqlstate string) effect {
	return exec("DO $$ BEGIN RAISE EXCEPTION 'as if' USING ERRCODE = '" + sqlstate + "'; END $$")
}

// Errors that are the server's state stop the whole batch, and none of its records is to blame.
func TestOutageIsNobodysFault(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	f := acquire(t, db, 0)
	setup(t, db, effectTable)
	for _, sqlstate := range []string{"40001", "40P01", "53100", "53200", "55P03", "57P03", "08006", "58030"} {
		runs := 0
		s := oneStep(f, 0, func(ctx context.Context, tx ledger.Tx) error { runs++; return raise(sqlstate)(ctx, tx) })
		results, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{oneStep(f, 1), s}})
		if err == nil || results != nil {
			t.Errorf("%s: results %+v and error %v, want the whole batch to fail", sqlstate, results, err)
			continue
		}
		if c := fault.ClassOf(err); c != fault.Transient && c != fault.Unavailable {
			t.Errorf("%s: class is %v", sqlstate, c)
		}
		if again := sqlstate[:2] == "40"; (runs > 1) != again {
			t.Errorf("%s: ran %d times", sqlstate, runs)
		}
	}
	wantOnce(t, db, 0)
	n := 0
	once := oneStep(f, 0, func(ctx context.Context, tx ledger.Tx) error {
		if n++; n == 1 {
			return raise("40001")(ctx, tx)
		}
		return nil
	})
	if r := mustCommit(t, db, once); r[0].Outcome != ledger.Applied || n != 2 {
		t.Errorf("after %d runs: %+v", n, r)
	}
	for sqlstate, class := range map[string]fault.Class{"22012": fault.Permanent, "23514": fault.Permanent, "P0001": fault.Transient, "57014": fault.Transient} {
		wantClass(t, sqlstate, mustCommit(t, db, oneStep(f, 7, raise(sqlstate)))[0].Err, class)
	}
}

// Copies of an event in two partitions meet: the later one waits for the other's commit before its SQL runs, and finds
// itself a copy; its effect never meets the other's key.
func TestCopyInAnotherPartitionWaits(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t, func(o *Options) { o.EffectTimeout = 10 * time.Second })
	setup(t, db, "CREATE TABLE effect (id text PRIMARY KEY)")
	a, b := oneStep(acquire(t, db, 0), 0), oneStep(acquire(t, db, 1), 0)
	b.Event = a.Event
	b.Effects = []effect{exec("INSERT INTO effect VALUES ($1)", a.Event.ID)}
	inEffect, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	a.Effects = append(a.Effects, func(context.Context, ledger.Tx) error {
		once.Do(func() { close(inEffect) })
		<-release
		return nil
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if r, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{a}}); err != nil || r[0].Outcome != ledger.Applied {
			t.Errorf("first: %+v, %v", r, err)
		}
	})
	<-inEffect
	wg.Go(func() {
		if r, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{b}}); err != nil || r[0].Outcome != ledger.Duplicate {
			t.Errorf("copy: %+v, %v", r, err)
		}
	})
	until(t, "the copy waits", func() bool {
		var n int
		scan(t, db, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%"+db.opts.Schema+"%'", &n)
		return n > 0
	})
	// Heartbeats and model calls go on meanwhile, under the very lease that is being committed.
	if held, err := db.Beat(t.Context(), ledger.Worker{ID: "w"}, lasting); err != nil || len(held) != 2 {
		t.Errorf("beat: %v, %v", held, err)
	}
	if _, state, err := db.Recall(t.Context(), ledger.Call{Fence: a.Fence, Source: "test", EventID: "x", Name: "n"}); err != nil || state != ledger.CallNew {
		t.Errorf("recall: %v, %v", state, err)
	}
	close(release)
	wg.Wait()
	wantOnce(t, db, 1)
}

// A query may be left half read while another statement runs.
func TestQueryWithinAnOpenQuery(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	if err := db.Read(t.Context(), func(ctx context.Context, tx ledger.Tx) error {
		outer, err := tx.Query(ctx, "SELECT i, repeat('x', i * 1000) FROM generate_series(1, 30) i")
		if err != nil {
			return err
		}
		sum := 0
		for outer.Next() {
			var inner, n int
			var text string
			if err := tx.QueryRow(ctx, "SELECT count(*) FROM generate_series(1, 3)").Scan(&inner); err != nil {
				return err
			}
			if err := outer.Scan(&n, &text); err != nil { // the row was read before the inner query
				return err
			}
			if len(text) != n*1000 {
				t.Errorf("row %d has %d bytes", n, len(text))
			}
			sum += n * inner
		}
		if sum != 3*465 || outer.Err() != nil {
			t.Errorf("sum is %d, %v", sum, outer.Err())
		}
		return outer.Close()
	}); err != nil {
		t.Fatal(err)
	}
}

// A goroutine that an effect left behind must not hold up the commit, nor write into it.
func TestStatementOfALeakedGoroutineIsCancelled(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t, func(o *Options) { o.EffectTimeout = 10 * time.Second })
	f := acquire(t, db, 0)
	setup(t, db, effectTable)
	leaked := make(chan error, 2)
	s := oneStep(f, 0, func(ctx context.Context, tx ledger.Tx) error {
		go func() {
			_, err := tx.Exec(context.WithoutCancel(ctx), hang)
			leaked <- err
		}()
		until(t, "it runs", func() bool {
			return !tx.(*txn).gate.TryLock() || func() bool { tx.(*txn).gate.Unlock(); return false }()
		})
		return nil
	})
	start := time.Now()
	r := mustCommit(t, db, s, oneStep(f, 1))
	if r[0].Err == nil || r[1].Outcome != ledger.Applied || time.Since(start) > 8*time.Second {
		t.Errorf("after %v: %+v", time.Since(start), r)
	}
	if err := <-leaked; err == nil {
		t.Error("its statement ran to the end")
	}
}

func TestScriptsRunStatementByStatement(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	setup(t, db, `CREATE TABLE a (n int); -- one; and another
		CREATE FUNCTION f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT CASE WHEN true THEN 1 ELSE 2 END; END;
		/* not; here */ INSERT INTO a VALUES (f()), (length(';')), (length($x$;;$x$));`)
	var n int
	scan(t, db, "SELECT sum(n) FROM a;", &n)
	if n != 4 {
		t.Errorf("sum is %d, want 4", n)
	}
	err := db.Setup(t.Context(), exec("INSERT INTO a VALUES ($1); INSERT INTO a VALUES ($1)", 1))
	wantClass(t, "parameters for a script", err, fault.Permanent)
}

func TestErrorsOfTheServerKeepTheirCode(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	err := db.Read(t.Context(), exec("SELECT 1/0"))
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "22012" || !strings.Contains(err.Error(), "SELECT 1/0") {
		t.Errorf("error is %v", err)
	}
}
