package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// killVariable tells a copy of this test binary to commit until it's killed.
const killVariable = "SWARMLOG_TEST_LEDGER_TO_KILL"

// TestSurvivesKills kills a process that commits, with SIGKILL, and looks at what it left: all that it was told to
// be committed is there, and each finished offset has its effect once.
func TestSurvivesKills(t *testing.T) {
	if p := os.Getenv(killVariable); p != "" {
		commitForever(t, p)
		return
	}
	p := path(t)
	const kills = 6
	for kill := range kills {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSurvivesKills$")
		cmd.Env = append(os.Environ(), killVariable+"="+p)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last := int64(-1)
		lines := bufio.NewScanner(out)
		deadline := time.Now().Add(time.Duration(20+rand.IntN(150)) * time.Millisecond)
		for lines.Scan() {
			n, err := strconv.ParseInt(lines.Text(), 10, 64)
			if err != nil {
				t.Fatalf("the committing process said %q", lines.Text())
			}
			last = n
			if time.Now().After(deadline) {
				break
			}
		}
		_ = cmd.Process.Kill()
		for lines.Scan() {
			if n, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
				last = n // said before the kill
			}
		}
		_ = cmd.Wait()
		db := open(t, p)
		l := lease(t, db)
		if last < 0 || l.Next <= last || l.Counters.Applied != l.Next {
			t.Errorf("kill %d: committed up to %d, and the lease has %d with %+v", kill, last, l.Next, l.Counters)
		}
		if err := db.Read(t.Context(), func(ctx context.Context, tx ledger.Tx) error {
			var rows, distinct, outbox int64
			if err := tx.QueryRow(ctx, "SELECT count(*), count(DISTINCT n) FROM mine").Scan(&rows, &distinct); err != nil {
				return err
			}
			if err := tx.QueryRow(ctx, "SELECT count(*) FROM swarmlog_outbox").Scan(&outbox); err != nil {
				return err
			}
			if rows != l.Next || distinct != l.Next || outbox != l.Next || l.Seq != l.Next {
				t.Errorf("kill %d: %d effects of %d records, %d in the outbox (number %d), and %d finished", kill, rows, distinct, outbox, l.Seq, l.Next)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func commitForever(t *testing.T, p string) {
	db := open(t, p)
	setup(t, db, "CREATE TABLE IF NOT EXISTS mine (n INTEGER)")
	l := acquireLease(t, db)
	for n := l.Next; ; n += 20 {
		b := &ledger.Batch{}
		for i := n; i < n+20; i++ {
			s := oneStep(l.Fence, i)
			s.Effects = []func(context.Context, ledger.Tx) error{sqlEffect("INSERT INTO mine VALUES ($1)", i)}
			s.Emits = []ledger.Outgoing{{Topic: "out"}}
			b.Steps = append(b.Steps, s)
		}
		r, err := db.Commit(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range r {
			if r.Err != nil || r.Outcome != ledger.Applied {
				t.Fatalf("result is %+v", r)
			}
		}
		fmt.Println(n + 19)
	}
}
