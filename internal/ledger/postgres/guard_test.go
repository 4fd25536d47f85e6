package postgres

import (
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
)

func TestGuardRefuses(t *testing.T) {
	for _, sql := range []string{
		"COMMIT", " commit ;", "/* a /* b */ */ COMMIT", "-- x\nCOMMIT", "END", "ABORT", "ROLLBACK TO s", "START TRANSACTION", "SAVEPOINT s",
		"RELEASE SAVEPOINT s", "PREPARE TRANSACTION 'x'", "COMMIT PREPARED 'x'", "SELECT 1; COMMIT", "SELECT ';'; COMMIT; SELECT $$;$$",
		"SELECT E'\\''; COMMIT --'", "SELECT 'a''b'; COMMIT", `SELECT ";"; COMMIT`, "SELECT $a$ $b$ $a$; COMMIT",
		"CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; END; COMMIT",
		"SET search_path = x", "SET SESSION AUTHORIZATION x", "RESET ALL", "DISCARD ALL", "LISTEN x", "PREPARE p AS SELECT 1", "COPY x FROM STDIN",
		"SET LOCAL search_path = x", "LOAD 'x'",
		"DELETE FROM swarmlog.lease", "delete from \"swarmlog\".lease", "UPDATE swarmlog.seen SET digest = null", "INSERT INTO SwarmLog.lease VALUES (1)",
		"DROP TABLE swarmlog.outbox", "DROP TABLE IF EXISTS swarmlog.outbox", "TRUNCATE swarmlog.outbox", "ALTER TABLE ONLY swarmlog.outbox ADD x int",
		"CREATE INDEX i ON swarmlog.outbox (topic)", "DROP SCHEMA swarmlog CASCADE", "DROP SCHEMA IF EXISTS swarmlog",
		"WITH x AS (DELETE FROM swarmlog.lease RETURNING 1) SELECT * FROM x",
	} {
		if why := refused(sql, inCommit); why == "" {
			t.Errorf("%s: it was let through", sql)
		}
	}
	for _, sql := range []string{
		"", " ; ;", "SELECT 'COMMIT'", "SELECT $$; COMMIT$$", "SELECT $x$; COMMIT; $x$, $1", "SELECT 1 -- ; COMMIT", "SELECT 1 /* ; COMMIT */",
		`SELECT "; COMMIT"`, "SELECT E'\\'; COMMIT'", "SELECT 'it''s; COMMIT'", "UPDATE t SET a = 1", "SELECT a.begin, b.end FROM t",
		"CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END",
		"INSERT INTO mine SELECT id FROM swarmlog.lease", "SELECT * FROM mine JOIN swarmlog.lease l ON l.id = mine.id", "SET CONSTRAINTS ALL IMMEDIATE",
		"SELECT * FROM t WHERE EXISTS (SELECT 1 FROM swarmlog.lease)", "DO $$ BEGIN PERFORM 1; END $$", "NOTIFY x",
	} {
		if why := refused(sql, inCommit); why != "" {
			t.Errorf("%s: refused: %s", sql, why)
		}
	}
	if why := refused("SET LOCAL statement_timeout = 0", inSetup); why != "" {
		t.Errorf("a local setting of a set-up: %s", why)
	}
}

func refused(sql string, p place) string {
	for _, s := range split(sql) {
		if why := refusal(s, p, "swarmlog"); why != "" {
			return why
		}
	}
	return ""
}

func TestGuardIsAsked(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	for _, sql := range []string{"DELETE FROM " + db.opts.Schema + ".lease", "SET search_path = x", "SELECT 1; COMMIT"} {
		wantClass(t, sql, db.Setup(t.Context(), exec(sql)), fault.Fatal)
	}
}

// Whatever the text: the guard ends, loses nothing but white space between statements, and a statement that it found
// is one statement for PostgreSQL too, so split again it's itself.
func FuzzSplit(f *testing.F) {
	for _, sql := range []string{"SELECT 1; COMMIT", "$a$;$a$;;", "/*/**/*/;'", "E'\\';';\"\"", "CREATE x BEGIN ATOMIC;CASE;END;END;COMMIT", "e", "$", "$1", "--", "\x80;\xff"} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		for _, s := range split(sql) {
			if !strings.Contains(sql, s.text) || len(s.words) == 0 {
				t.Fatalf("%q has no statement %q", sql, s.text)
			}
			if again := split(s.text); len(again) != 1 || again[0].text != s.text {
				t.Fatalf("%q was one statement, and then %d: %v", s.text, len(again), again)
			}
		}
	})
}

func FuzzMessage(f *testing.F) {
	f.Add(encodeMessage(event.Message{Key: []byte{}, Value: []byte("v"), Headers: []event.Header{{Key: "a"}, {Key: "b", Value: []byte{}}}}))
	f.Add([]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b)
		if err != nil {
			return
		}
		again, err := decodeMessage(encodeMessage(m))
		if err != nil || string(encodeMessage(again)) != string(encodeMessage(m)) {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}
