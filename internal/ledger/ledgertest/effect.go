package ledgertest

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// amongGood commits a step with these effects between two good ones, which must commit, and returns its result. It
// fails where anything of a failed step stayed.
func (k *kit) amongGood(effects ...effect) ledger.Result {
	k.Helper()
	before, bad, after := k.step(0), k.step(1), k.step(2)
	bad.Effects = append(bad.Effects, effects...)
	results := k.commit(before, bad, after)
	k.want(results[0], ledger.Applied, nil)
	k.want(results[2], ledger.Applied, nil)
	if results[1].Err == nil {
		k.wantEffects(before, bad, after)
		k.wantProgress(3, 3)
	} else {
		k.wantEffects(before, after)
		k.wantProgress(1, 2, ledger.Span{From: 2, To: 2})
	}
	return results[1]
}

func (k *kit) wantClass(err error, c fault.Class) {
	k.Helper()
	if err == nil || fault.ClassOf(err) != c {
		k.Errorf("error is %v (%v), want a %v one", err, fault.ClassOf(err), c)
	}
}

func exec(query string, args ...any) effect {
	return func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, query, args...)
		return err
	}
}

// swallow hides an effect's error, as careless code does.
func swallow(f effect) effect {
	return func(ctx context.Context, tx ledger.Tx) error {
		_ = f(ctx, tx)
		return nil
	}
}

const twice = "INSERT INTO only_one (id) VALUES ('a')"

var effectTests = []test{
	{"RunInOrderOnOneTransaction", func(k *kit) {
		s := k.step(0)
		s.Effects = append(s.Effects, exec("UPDATE effect SET n = 7 WHERE id = $1", s.Event.ID), func(ctx context.Context, tx ledger.Tx) error {
			var n int
			if err := tx.QueryRow(ctx, "SELECT n FROM effect WHERE id = $1", s.Event.ID).Scan(&n); err != nil {
				return err
			}
			if n != 7 {
				return fault.Permanentf("read %d", n)
			}
			changed, err := tx.Exec(ctx, "DELETE FROM effect WHERE id = $1", "nobody")
			if err == nil && changed != 0 {
				err = fault.Permanentf("a DELETE of nothing changed %d rows", changed)
			}
			return err
		})
		k.want(k.commit(s)[0], ledger.Applied, nil)
		k.wantEffects(s)
	}},
	{"ViolatedConstraintIsPermanent", func(k *kit) {
		r := k.amongGood(exec(twice), exec(twice))
		k.wantClass(r.Err, fault.Permanent)
		if !strings.Contains(strings.ToLower(r.Err.Error()), "unique") {
			k.Errorf("%q doesn't tell the cause", r.Err)
		}
	}},
	{"WrongStatementIsPermanent", func(k *kit) {
		k.wantClass(k.amongGood(exec("INSERT INTO nowhere VALUES (1)")).Err, fault.Permanent)
	}},
	{"OwnClassIsKept", func(k *kit) {
		k.wantClass(k.amongGood(fails(fault.As(fault.Unavailable, errors.New("down")))).Err, fault.Unavailable)
	}},
	{"SwallowedErrorLosesNothingByHalves", func(k *kit) { // T1
		r := k.amongGood(exec(twice), swallow(exec(twice)))
		if r.Err != nil { // where a failed statement ends the transaction
			k.wantClass(r.Err, fault.Permanent)
		}
	}},
	{"EndOfTransactionIsFatal", func(k *kit) { // T1
		var effects []effect
		for _, sql := range []string{"COMMIT", "commit", "/* so */ COMMIT", "END", "ROLLBACK", "BEGIN", "SAVEPOINT s", "ROLLBACK TO s", "RELEASE s"} {
			effects = append(effects, exec(sql), swallow(exec(sql)))
		}
		var steps []*ledger.Step
		good := k.step(99)
		for i, e := range effects {
			s := k.step(int64(i))
			s.Effects = append(s.Effects, e)
			steps = append(steps, s)
		}
		results := k.commit(append(steps, good)...)
		for i, r := range results[:len(steps)] {
			if r.Err == nil || fault.ClassOf(r.Err) != fault.Fatal {
				k.Errorf("effect %d: %v with error %v, want a fatal error", i, r.Outcome, r.Err)
			}
		}
		k.want(results[len(steps)], ledger.Applied, nil)
		k.wantEffects(good)
	}},
	{"EndHiddenInAScriptDoesNothing", func(k *kit) {
		r := k.amongGood(swallow(exec("INSERT INTO only_one (id) VALUES ('x'); COMMIT; INSERT INTO only_one (id) VALUES ('y')")))
		if r.Err == nil {
			k.Error("a script with a COMMIT succeeded")
		}
		k.wantCount("SELECT count(*) FROM only_one", 0)
	}},
	{"HangingQueryIsInterrupted", func(k *kit) {
		r := k.amongGood(exec(k.f.Hang))
		if !errors.Is(r.Err, context.DeadlineExceeded) {
			k.Errorf("error is %v, want that the time was over", r.Err)
		}
		k.wantClass(r.Err, fault.Transient)
	}},
	{"HangingQueryWithoutContextIsInterrupted", func(k *kit) {
		r := k.amongGood(swallow(func(_ context.Context, tx ledger.Tx) error {
			_, err := tx.Exec(context.Background(), k.f.Hang) //nolint:usetesting // a context that never ends is the case
			return err
		}))
		if !errors.Is(r.Err, context.DeadlineExceeded) {
			k.Errorf("error is %v, want that the time was over", r.Err)
		}
	}},
	{"OwnDeadlineInterruptsToo", func(k *kit) {
		r := k.amongGood(func(ctx context.Context, tx ledger.Tx) error {
			ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			_, err := tx.Exec(ctx, k.f.Hang)
			return err
		})
		if !errors.Is(r.Err, context.DeadlineExceeded) || strings.Contains(r.Err.Error(), "limit") {
			k.Errorf("error is %v, want that of the effect's own context", r.Err)
		}
	}},
	{"HangingGoCodeIsLeftBehind", func(k *kit) {
		release, returned := make(chan struct{}), make(chan error, 1)
		r := k.amongGood(func(ctx context.Context, tx ledger.Tx) error {
			<-release
			err := insert("late")(context.WithoutCancel(ctx), tx)
			returned <- err
			return err
		})
		if !errors.Is(r.Err, context.DeadlineExceeded) {
			k.Errorf("error is %v, want that the time was over", r.Err)
		}
		close(release)
		if err := <-returned; err == nil {
			k.Error("an effect that had lost its time could still write")
		}
		k.wantCount("SELECT count(*) FROM effect WHERE id = 'late'", 0)
	}},
	{"ContextEndsWithTheTime", func(k *kit) {
		r := k.amongGood(func(ctx context.Context, _ ledger.Tx) error {
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(r.Err, context.DeadlineExceeded) {
			k.Errorf("error is %v, want that the time was over", r.Err)
		}
	}},
	{"PanicIsPermanent", func(k *kit) {
		r := k.amongGood(func(context.Context, ledger.Tx) error { panic("boom") })
		k.wantClass(r.Err, fault.Permanent)
		if !strings.Contains(r.Err.Error(), "boom") || !strings.Contains(r.Err.Error(), "effect.go") {
			k.Errorf("%q doesn't tell what panicked where", r.Err)
		}
	}},
	{"EndedGoroutineIsPermanent", func(k *kit) {
		k.wantClass(k.amongGood(func(context.Context, ledger.Tx) error { runtime.Goexit(); return nil }).Err, fault.Permanent)
	}},
	{"KeptHandleIsRefused", func(k *kit) {
		var kept ledger.Tx
		var rows ledger.Rows
		s := k.step(0)
		s.Effects = append(s.Effects, func(ctx context.Context, tx ledger.Tx) (err error) {
			kept = tx
			rows, err = tx.Query(ctx, "SELECT id FROM effect")
			return err
		})
		k.want(k.commit(s)[0], ledger.Applied, nil)
		k.wantClass(insert("late")(k.ctx, kept), fault.Permanent)
		if err := kept.QueryRow(k.ctx, "SELECT 1").Scan(new(int)); err == nil {
			k.Error("a kept handle could still read")
		}
		if rows.Next() || rows.Err() == nil {
			k.Error("kept rows could still be read, or ended as if complete")
		}
		k.must(rows.Close())
		k.wantEffects(s)
	}},
	{"QueryWithinAQuery", func(k *kit) {
		s := k.step(0)
		s.Effects = append(s.Effects, insert("x"), insert("y"), func(ctx context.Context, tx ledger.Tx) error {
			outer, err := tx.Query(ctx, "SELECT id FROM effect ORDER BY id")
			if err != nil {
				return err
			}
			var ids []string
			for outer.Next() {
				var id string
				if err := outer.Scan(&id); err != nil {
					return err
				}
				ids = append(ids, id)
			}
			if err := outer.Close(); err != nil {
				return err
			}
			if len(ids) != 3 {
				return fault.Permanentf("read %v", ids)
			}
			_, err = tx.Exec(ctx, "DELETE FROM effect WHERE id IN ($1, $2)", "x", "y")
			return err
		})
		k.want(k.commit(s)[0], ledger.Applied, nil)
		k.wantEffects(s)
	}},
	{"PlaceholdersGoByNumber", func(k *kit) {
		k.must(k.l.Read(k.ctx, func(ctx context.Context, tx ledger.Tx) error {
			var a, b, c string
			if err := tx.QueryRow(ctx, "SELECT CAST($2 AS TEXT), CAST($1 AS TEXT), CAST($2 AS TEXT)", "one", "two").Scan(&a, &b, &c); err != nil {
				return err
			}
			if a != "two" || b != "one" || c != "two" {
				k.Errorf("read %s, %s, %s", a, b, c)
			}
			return nil
		}))
	}},
	{"NoRows", func(k *kit) {
		k.must(k.l.Read(k.ctx, func(ctx context.Context, tx ledger.Tx) error {
			if err := tx.QueryRow(ctx, "SELECT id FROM effect").Scan(new(string)); !errors.Is(err, ledger.ErrNoRows) {
				k.Errorf("scan of no rows: %v, want ErrNoRows", err)
			}
			return nil
		}))
	}},
	{"TextThatPostgreSQLRefusesIsPermanent", func(k *kit) { // P2
		for i, bad := range []string{"x\x00y", "caf\xe9", "\xff\xfe", "\xed\xa0\xbd"} {
			s, good := k.step(int64(10+2*i)), k.step(int64(11+2*i))
			s.Effects = append(s.Effects, exec("INSERT INTO effect (id, body) VALUES ('bad', $1)", bad))
			results := k.commit(s, good)
			k.wantClass(results[0].Err, fault.Permanent)
			k.want(results[1], ledger.Applied, nil)
		}
		k.wantCount("SELECT count(*) FROM effect WHERE id = 'bad'", 0)
	}},
	{"EscapedSurrogatesAndNulsAreTextAsTheyAre", func(k *kit) { // P2
		for i, text := range []string{`{"a":"\ud83d"}`, `{"a":"\udc59\ud835\udc5e2"}`, `{"a":"x\\u0000y"}`} {
			s := k.step(int64(i))
			s.Effects = []effect{exec("INSERT INTO effect (id, body) VALUES ($1, $2)", s.Event.ID, json.RawMessage(text))}
			k.want(k.commit(s)[0], ledger.Applied, nil)
			var got string
			k.scan("SELECT body FROM effect WHERE id = $1", []any{s.Event.ID}, &got)
			if got != text {
				k.Errorf("stored %q, read %q", text, got)
			}
		}
	}},
	{"BytesStayAsTheyAre", func(k *kit) { // P1, P7
		for i, b := range [][]byte{{0x7b, 0x22, 0x61, 0x22, 0x3a, 0x22, 0xff, 0xfe, 0x22, 0x7d}, []byte("{\"a\":\"caf\xe9\"}"), {0}, {}, nil} {
			s := k.step(int64(i))
			s.Effects = []effect{exec("INSERT INTO effect (id, raw) VALUES ($1, $2)", s.Event.ID, b)}
			k.want(k.commit(s)[0], ledger.Applied, nil)
			var got []byte
			k.scan("SELECT raw FROM effect WHERE id = $1", []any{s.Event.ID}, &got)
			if !bytes.Equal(got, b) || (got == nil) != (b == nil) {
				k.Errorf("stored %x (null: %v), read %x (null: %v)", b, b == nil, got, got == nil)
			}
		}
	}},
	{"IntegersStayExact", func(k *kit) { // P4
		for i, n := range []int64{9007199254740993, 9007199254740992, -9223372036854775808, 9223372036854775807} {
			s := k.step(int64(i))
			s.Effects = []effect{exec("INSERT INTO effect (id, n) VALUES ($1, $2)", s.Event.ID, n)}
			k.want(k.commit(s)[0], ledger.Applied, nil)
			var got int64
			k.scan("SELECT n FROM effect WHERE id = $1", []any{s.Event.ID}, &got)
			if got != n {
				k.Errorf("stored %d, read %d", n, got)
			}
		}
		s := k.step(4)
		s.Effects = []effect{exec("INSERT INTO effect (id, n) VALUES ($1, $2)", s.Event.ID, uint64(1)<<63)}
		k.wantClass(k.commit(s)[0].Err, fault.Permanent)
	}},
	{"NullsAndNamedTypes", func(k *kit) {
		type name string
		type count int32
		s := k.step(0)
		s.Effects = []effect{exec("INSERT INTO effect (id, n, body) VALUES ($1, $2, $3)", name("x"), count(5), nil)}
		k.want(k.commit(s)[0], ledger.Applied, nil)
		var (
			id   name
			n    count
			body *string
			null sql.NullString
			p    *int64
		)
		k.scan("SELECT id, n, body, body, n FROM effect", nil, &id, &n, &body, &null, &p)
		if id != "x" || n != 5 || body != nil || null.Valid || p == nil || *p != 5 {
			k.Errorf("read %v, %v, %v, %v, %v", id, n, body, null, p)
		}
		k.must(k.l.Read(k.ctx, func(ctx context.Context, tx ledger.Tx) error {
			k.wantClass(tx.QueryRow(ctx, "SELECT body FROM effect").Scan(new(string)), fault.Permanent)
			return nil
		}))
	}},
	{"ReadDoesNotWrite", func(k *kit) {
		err := k.l.Read(k.ctx, insert("x"))
		if err == nil {
			k.Error("Read could write")
		}
		k.wantEffects()
	}},
	{"ReadSeesOneStateAndHoldsNobodyUp", func(k *kit) {
		s := k.step(0)
		k.must(k.l.Read(k.ctx, func(ctx context.Context, tx ledger.Tx) error {
			count := func() (n int) {
				k.must(tx.QueryRow(ctx, "SELECT count(*) FROM effect").Scan(&n))
				return n
			}
			before := count()
			k.want(k.commit(s)[0], ledger.Applied, nil)
			if after := count(); after != before {
				k.Errorf("one read saw %d rows and then %d", before, after)
			}
			return nil
		}))
		k.wantEffects(s)
	}},
	{"ReadDoesNotSeeWhatIsNotCommitted", func(k *kit) {
		s := k.step(0)
		s.Effects = append(s.Effects, func(context.Context, ledger.Tx) error {
			if n := k.effects()[s.Event.ID]; n != 0 {
				return fault.Permanentf("read an uncommitted row")
			}
			return nil
		})
		k.want(k.commit(s)[0], ledger.Applied, nil)
	}},
	{"ReadEndsWithItsContext", func(k *kit) {
		ctx, cancel := context.WithTimeout(k.ctx, 20*time.Millisecond)
		defer cancel()
		err := k.l.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
			return tx.QueryRow(ctx, k.f.Hang).Scan(new(any))
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			k.Errorf("read: %v, want the context's error", err)
		}
		k.wantEffects() // and others can still read
	}},
	{"SetupIsOneTransaction", func(k *kit) {
		broken := errors.New("broken")
		err := k.l.Setup(k.ctx, func(ctx context.Context, tx ledger.Tx) error {
			if _, err := tx.Exec(ctx, "CREATE TABLE half (id TEXT)"); err != nil {
				return err
			}
			return broken
		})
		if !errors.Is(err, broken) {
			k.Fatalf("setup: %v, want its own error", err)
		}
		k.setup("CREATE TABLE half (id TEXT)") // it isn't there yet
		k.wantClass(k.l.Setup(k.ctx, exec("COMMIT")), fault.Fatal)
	}},
}

func (k *kit) scan(query string, args []any, dest ...any) {
	k.Helper()
	k.must(k.l.Read(k.ctx, func(ctx context.Context, tx ledger.Tx) error {
		return tx.QueryRow(ctx, query, args...).Scan(dest...)
	}))
}

func (k *kit) wantCount(query string, want int) {
	k.Helper()
	var n int
	k.scan(query, nil, &n)
	if n != want {
		k.Errorf("%s is %d, want %d", query, n, want)
	}
}
