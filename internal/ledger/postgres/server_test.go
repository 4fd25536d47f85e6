package postgres

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/internal/devservices"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/ledger"
)

// ownServer starts a server that nobody else uses, so that it may be let down.
func ownServer(t *testing.T) string {
	t.Helper()
	given.Postgres(t)
	o := devservices.Options{Cache: t.TempDir(), Logf: t.Logf, Getenv: func(name string) string {
		if name == devservices.EnvPostgres {
			return ""
		}
		return os.Getenv(name)
	}}
	r, err := devservices.Start(t.Context(), o, devservices.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := devservices.Stop(context.Background(), o); err != nil {
			t.Error(err)
		}
	})
	switch {
	case len(r.Missing) == 0:
	case devservices.InCI():
		t.Fatalf("this test needs a PostgreSQL of its own: %v", r.Missing[0].Err)
	default:
		t.Skipf("NOT RUN: this test needs a PostgreSQL of its own: %v", r.Missing[0].Err)
	}
	return r.Postgres
}

// crash lets the server lose all its sessions and its memory at once, and recover from its log, as after
// pg_ctl restart -m immediate: it does so when one of its processes is killed.
func crash(dsn string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err // it isn't back from the last one
	}
	defer c.Close(ctx)
	_, _ = c.Exec(ctx, "COPY (SELECT 1) TO PROGRAM 'kill -9 $PPID'") // the shell's parent is the session's process
	return nil
}

// The server crashes again and again while two partitions commit without a pause. Afterwards each event has one
// effect, and the counters account for each.
func TestServerCrashesInTheMiddle(t *testing.T) {
	t.Parallel()
	dsn := ownServer(t)
	r := roomOn(t, dsn)
	db := r.open(t, func(o *Options) { o.EffectTimeout = 2 * time.Second })
	setup(t, db, effectTable)
	const batches, size, crashes = 400, 10, 4
	reached := make(chan int, 2*batches)
	done := make(chan error, 2)
	for p := range int32(2) {
		f := acquire(t, db, p)
		go func() {
			for i := range int64(batches) {
				b := &ledger.Batch{}
				for n := range int64(size) {
					s := oneStep(f, i*size+n)
					s.Emits = []ledger.Outgoing{{Topic: "out"}}
					b.Steps = append(b.Steps, s)
				}
				if _, err := commit(t.Context(), db, b); err != nil {
					done <- err
					return
				}
				reached <- int(i)
			}
			done <- nil
		}()
	}
	crashed := 0
	for running := 2; running > 0; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			running--
		case i := <-reached:
			if crashed < crashes && i == (crashed+1)*batches/(crashes+1) {
				if err := crash(dsn); err == nil {
					crashed++
				}
			}
		}
	}
	if crashed < 2 {
		t.Errorf("the server crashed %d times only", crashed)
	}
	wantOnce(t, db, 2*batches*size)
	for p := range int32(2) {
		l := lease(t, db, leaseKey(p))
		rows, err := db.Outbox(t.Context(), l.Fence, 0, 2*batches*size)
		if err != nil || len(rows) != batches*size || l.Next != batches*size || l.Counters != (ledger.Counters{Applied: batches * size}) {
			t.Errorf("partition %d: %d rows in the outbox (%v), lease %+v", p, len(rows), err, l)
		}
	}
}
