//go:build unix

package postgres

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// Variables that tell a copy of this test binary to be the owner that is stopped.
const (
	stoppedDSN    = "SWARMLOG_TEST_LEDGER_OF_STOPPED"
	stoppedSchema = "SWARMLOG_TEST_SCHEMA_OF_STOPPED"
)

// R6, as it comes: SIGSTOP stops a process in the middle of its transaction, with its lease's row and a row of the
// user's locked. Another partition gets to the user's row within the session's time-outs, another worker gets the
// lease within the lease time and a second, and what the process does when it goes on is refused.
func TestStoppedProcessHoldsNobodyUp(t *testing.T) {
	if dsn := os.Getenv(stoppedDSN); dsn != "" {
		beStopped(t, room{dsn, os.Getenv(stoppedSchema)}.open(t, briefEffects))
		return
	}
	t.Parallel()
	r := newRoom(t)
	other := r.open(t, briefEffects)
	setup(t, other, effectTable, "CREATE TABLE total (n int)", "INSERT INTO total VALUES (0)")
	neighbour := acquire(t, other, 1)
	cmd := osexec.Command(os.Args[0], "-test.run=^TestStoppedProcessHoldsNobodyUp$")
	cmd.Env = append(os.Environ(), stoppedDSN+"="+r.dsn, stoppedSchema+"="+r.schema)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	said := bufio.NewScanner(out)
	if !said.Scan() || said.Text() != "locked" {
		t.Fatalf("the process said %q (%v)", said.Text(), said.Err())
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	reached := make(chan time.Duration, 1)
	go func() {
		s := oneStep(neighbour, 0, exec("UPDATE total SET n = n + 1"))
		if r, err := commit(context.WithoutCancel(t.Context()), other, &ledger.Batch{Steps: []*ledger.Step{s}}); err != nil || r[0].Outcome != ledger.Applied {
			t.Errorf("the neighbour: %+v, %v", r, err)
		}
		reached <- time.Since(stopped)
	}()
	var now ledger.Lease
	until(t, "another has the lease", func() bool {
		now, err = other.Acquire(t.Context(), leaseKey(0), "pages", "other", 0, lasting)
		return err == nil
	})
	if took := time.Since(stopped); took > other.opts.LeaseTime+time.Second {
		t.Errorf("the take-over took %v, want the lease time of %v and a second at most", took, other.opts.LeaseTime)
	}
	if r := mustCommit(t, other, oneStep(now.Fence, 0, exec("UPDATE total SET n = n + 1"))); r[0].Outcome != ledger.Applied {
		t.Fatalf("the new owner: %+v", r)
	}
	if took := <-reached; took > other.idle+other.lock+time.Second {
		t.Errorf("the neighbour waited for %v, want the session's time of %v and a second at most", took, other.idle+other.lock)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if !said.Scan() || said.Text() != "fenced" {
		t.Errorf("the process that went on said %q, want it fenced", said.Text())
	}
	var n int
	scan(t, other, "SELECT n FROM total", &n)
	if n != 2 {
		t.Errorf("the user's row was changed %d times, want 2", n)
	}
	wantOnce(t, other, 2)
}

// beStopped locks rows, says so, and says how its commit ended.
func beStopped(t *testing.T, db *DB) {
	l, err := db.Acquire(t.Context(), leaseKey(0), "pages", "old", 0, db.opts.LeaseTime)
	if err != nil {
		t.Fatal(err)
	}
	first := true
	s := oneStep(l.Fence, 0, exec("UPDATE total SET n = n + 1"), func(ctx context.Context, _ ledger.Tx) error {
		if first {
			first = false
			fmt.Println("locked")
			<-ctx.Done() // for the time of an effect, in which it's stopped
		}
		return nil
	})
	for {
		results, err := commit(t.Context(), db, &ledger.Batch{Steps: []*ledger.Step{s}})
		if err != nil {
			t.Fatal(err)
		}
		switch r := results[0]; {
		case errors.Is(r.Err, ledger.ErrFenced):
			fmt.Println("fenced")
			return
		case errors.Is(r.Err, context.DeadlineExceeded): // it ran over its time: it tries again
		default:
			t.Fatalf("it was not fenced: %+v", r)
		}
	}
}

// briefEffects lets an effect wait for a lock longer than a session does.
func briefEffects(o *Options) {
	o.LeaseTime, o.EffectTimeout = 1500*time.Millisecond, 900*time.Millisecond
}
