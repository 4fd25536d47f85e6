package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/ledger/ledgertest"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const effectTimeout = 300 * time.Millisecond

// hang runs for minutes and can be cancelled.
const hang = "SELECT pg_sleep(600)"

// room is a schema for a ledger and one for users' tables, which go with the test. A database for each would take ten
// times as long.
type room struct {
	dsn    string // its search path is the users' schema
	schema string // the ledger's
}

func newRoom(t testing.TB) room {
	t.Helper()
	return roomOn(t, given.Postgres(t))
}

func roomOn(t testing.TB, server string) room {
	t.Helper()
	name := "t" + strings.ToLower(rand.Text()[:12])
	admin(t, server, "CREATE SCHEMA "+name+"_user")
	t.Cleanup(func() {
		admin(t, server, "DROP SCHEMA IF EXISTS "+name+" CASCADE", "DROP SCHEMA "+name+"_user CASCADE")
	})
	return room{dsn: with(t, server, "search_path", name+"_user"), schema: name}
}

// with adds a parameter to a connection URL.
func with(t testing.TB, dsn, key, value string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the server's address isn't a URL")
	}
	q := u.Query()
	q.Set(key, value)
	u.RawQuery = q.Encode()
	return u.String()
}

// connect opens a connection that has nothing to do with a ledger.
func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

func admin(t testing.TB, dsn string, statements ...string) {
	t.Helper()
	c, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close(context.Background())
	for _, s := range statements {
		if _, err := c.Exec(context.Background(), s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
}

// open opens a ledger in a room; change may change its options.
func (r room) open(t testing.TB, change ...func(*Options)) *DB {
	t.Helper()
	o := Options{DSN: r.dsn, Schema: r.schema, EffectTimeout: effectTimeout}
	for _, f := range change {
		f(&o)
	}
	db, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestConformance(t *testing.T) {
	given.Postgres(t)
	ledgertest.Run(t, func(t *testing.T) ledger.Ledger { return newRoom(t).open(t) }, ledgertest.Features{
		FailCommit: failCommit, Hang: hang, Bytes: "BYTEA",
	})
}

// failCommit lets the next COMMIT lose its answer.
func failCommit(l ledger.Ledger, committed bool) {
	db := l.(*DB)
	db.endTx = func(c *pgx.Conn) error {
		db.endTx = db.commit
		var err error
		if committed {
			err = db.commit(c)
		} else {
			_, err = c.Exec(context.Background(), "ROLLBACK")
		}
		return errors.Join(fmt.Errorf("the answer was lost"), err)
	}
}
