package postgres

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
)

func TestInspect(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	o := Options{DSN: with(t, with(t, r.dsn, "synchronous_commit", "local"), "idle_in_transaction_session_timeout", "1500"), Schema: r.schema}
	before, err := Inspect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if before.SchemaVersion != 0 || before.Bytes != 0 || len(before.Tables) != 0 {
		t.Errorf("no ledger is there, and it says %+v", before)
	}
	db := r.open(t)
	acquire(t, db, 0)
	s, err := Inspect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s.SchemaVersion != len(migrationFiles()) || s.KnownVersion != s.SchemaVersion || s.Bytes == 0 || len(s.Tables) < 5 {
		t.Errorf("the ledger's tables: version %d of %d, %d bytes, %v", s.SchemaVersion, s.KnownVersion, s.Bytes, s.Tables)
	}
	if len(s.Lives) != 1 || s.Lives[0].System != s.System || s.Lives[0].Timeline != s.Timeline || s.Clock.Sub(s.Lives[0].Since) > time.Minute {
		t.Errorf("lives of the ledger: %+v on %s, %s", s.Lives, s.System, s.Timeline)
	}
	if s.SynchronousCommit != (Setting{"local", "client"}) || s.IdleInTransaction != 1500*time.Millisecond {
		t.Errorf("settings of the session: %+v, %v", s.SynchronousCommit, s.IdleInTransaction)
	}
	c := connect(t, r.dsn)
	var number, conns int
	var fsync, pages, level, sums, names string
	if err := c.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int, current_setting('max_connections')::int, current_setting('fsync'), "+
		"current_setting('full_page_writes'), current_setting('wal_level'), current_setting('data_checksums'), current_setting('synchronous_standby_names')").
		Scan(&number, &conns, &fsync, &pages, &level, &sums, &names); err != nil {
		t.Fatal(err)
	}
	if s.Number != number || s.MaxConns >= conns || s.MaxConns < conns/2 || s.Fsync != fsync || s.FullPageWrites != pages || s.WALLevel != level ||
		s.Checksums != sums || s.StandbyNames != names || s.Encoding != "UTF8" || s.Version == "" {
		t.Errorf("settings of the server: %+v", s)
	}
	if s.InUse < 2 || s.InUse > conns || s.OwnLimit != -1 || s.Pooled || s.InRecovery || s.System == "" || len(s.Timeline) != 8 {
		t.Errorf("state of the server: %+v", s)
	}
	if skew := s.Clock.Sub(s.Asked).Abs(); skew > 5*time.Second || s.Trip <= 0 {
		t.Errorf("clocks are %v apart, round trip %v", skew, s.Trip)
	}
	if strings.Contains(fmt.Sprintf("%+v", s), c.Config().Password) {
		t.Error("it tells the password")
	}
}

func TestInspectBehindAPooler(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	_, dsn := newPooler(t, r.dsn, 2)
	s, err := Inspect(t.Context(), Options{DSN: dsn, Schema: r.schema})
	if err != nil || !s.Pooled {
		t.Errorf("pooled is %v, %v", s.Pooled, err)
	}
}

func TestInspectNobodyThere(t *testing.T) {
	t.Parallel()
	_, err := Inspect(t.Context(), Options{DSN: "postgres://u:hunter2@127.0.0.1:1/d?sslmode=disable"})
	wantClass(t, "inspect", err, fault.Unavailable)
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error tells the password: %v", err)
	}
}
