package postgres

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

func wantBack(t *testing.T, what string, err error) {
	t.Helper()
	wantClass(t, what, err, fault.Fatal)
	if err != nil && (!strings.Contains(err.Error(), "the database went back") || !strings.Contains(err.Error(), "swarmlog recover")) {
		t.Errorf("%s: %v doesn't say what to do", what, err)
	}
}

// A fail-over to a stand-by that hadn't got the last commits, or a restored backup: whatever is asked next notices it,
// and from then on nothing is committed.
func TestDatabaseThatWentBackIsNoticed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, loss string }{
		{"a commit", "UPDATE %[1]s.lease SET commits = commits - 1, next = next - 1, applied = applied - 1"},
		{"an acquisition", "UPDATE %[1]s.lease SET epoch = epoch - 1"},
		{"all leases", "DELETE FROM %[1]s.lease"},
		{"heartbeats", "UPDATE %[1]s.tide SET token = token - 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRoom(t)
			db := r.open(t)
			setup(t, db, effectTable)
			f := acquire(t, db, 0)
			for n := range int64(3) {
				mustCommit(t, db, oneStep(f, n))
				admin(t, r.dsn, fmt.Sprintf("UPDATE %s.tide SET at = 0", r.schema)) // as if a second had passed
				if _, err := db.Beat(t.Context(), ledger.Worker{ID: "w"}, lasting); err != nil {
					t.Fatal(err)
				}
			}
			admin(t, r.dsn, fmt.Sprintf(c.loss, r.schema))
			if c.name != "heartbeats" { // the worker looks at its leases in their locks
				_, err := db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{oneStep(f, 3)}})
				wantBack(t, "commit", err)
			}
			_, err := db.Beat(t.Context(), ledger.Worker{ID: "w"}, lasting)
			wantBack(t, "beat", err)
			_, err = db.Commit(t.Context(), &ledger.Batch{Steps: []*ledger.Step{oneStep(f, 3)}})
			wantBack(t, "commit afterwards", err)
			_, err = db.Acquire(t.Context(), leaseKey(1), "pages", "w", 0, lasting)
			wantBack(t, "acquire", err)
			wantOnce(t, db, 3) // what is read is read

			fresh := r.open(t) // a process that remembers nothing goes on: a person has said so
			mustCommit(t, fresh, oneStep(acquire(t, fresh, 1), 0))
		})
	}
}

// A heartbeat alone notices it too.
func TestBeatNoticesWhatItsLeasesLost(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	db := r.open(t)
	setup(t, db, effectTable)
	mustCommit(t, db, oneStep(acquire(t, db, 0), 0))
	admin(t, r.dsn, fmt.Sprintf("UPDATE %s.lease SET commits = 0", r.schema))
	_, err := db.Beat(t.Context(), ledger.Worker{ID: "w"}, lasting)
	wantBack(t, "beat", err)
}

// Beats that run beside commits never take a commit that was acknowledged meanwhile for one that was lost.
func TestBeatsBesideCommitsSeeNothingLost(t *testing.T) {
	t.Parallel()
	db := newRoom(t).open(t)
	setup(t, db, effectTable)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for p := range int32(2) {
		wg.Go(func() {
			f := acquire(t, db, p)
			for n := range int64(100) {
				mustCommit(t, db, oneStep(f, n))
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	for {
		if _, err := db.Beat(t.Context(), ledger.Worker{ID: "w"}, lasting); err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
			return
		default:
		}
	}
}

// lines collects what is logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Nobody is left who remembers, and the ledger is on another timeline or server than it was: it says so and goes on,
// since a fail-over loses nothing where the stand-by had everything.
func TestAnotherTimelineIsTold(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	first := r.open(t)
	acquire(t, first, 0)
	for _, change := range []string{"timeline = '000000FF'", "system = '1'"} {
		admin(t, r.dsn, fmt.Sprintf("UPDATE %s.life SET %s", r.schema, change))
		var log lines
		db := r.open(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		if !strings.Contains(log.String(), "another server or timeline") || !strings.Contains(log.String(), "swarmlog recover") {
			t.Errorf("%s: it says %q", change, log.String())
		}
		log.text.Reset()
		r.open(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		db.timeline.Store("000000AA") // it fails over while the process lives
		if _, err := db.Beat(t.Context(), ledger.Worker{ID: "w"}, lasting); err != nil {
			t.Error(err)
		}
		if strings.Contains(log.String(), "another server") {
			t.Errorf("it's told again: %q", log.String())
		}
	}
	s, err := Inspect(t.Context(), Options{DSN: r.dsn, Schema: r.schema})
	if err != nil || len(s.Lives) != 3 {
		t.Errorf("lives are %+v, %v", s.Lives, err)
	}
}

// After a fail-over nobody can tell by a transaction's number what became of it: progress tells, where the lease is the
// same, and else its steps are fenced.
func TestUnknownCommitAfterAFailOver(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		happened bool
		moved    bool
		carried  bool
	}{{"happened", true, false, false}, {"did not", false, false, false}, {"moved on", true, true, false}, {"carried", true, false, true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := newRoom(t).open(t)
			setup(t, db, effectTable)
			f := acquire(t, db, 0)
			s := oneStep(f, 0)
			if c.carried {
				if err := db.Pass(t.Context(), f, "", []ledger.Carried{{Offset: 0}}, lasting); err != nil {
					t.Fatal(err)
				}
				s.Carried = true
			}
			b := &ledger.Batch{Steps: []*ledger.Step{s}}
			failCommit(db, c.happened)
			if _, err := db.Commit(t.Context(), b); !errors.Is(err, ledger.ErrUnknown) {
				t.Fatalf("commit: %v, want ErrUnknown", err)
			}
			db.unknown[b].timeline = "000000FF"
			if c.moved {
				mustCommit(t, db, oneStep(acquire(t, db, 0), 5))
			}
			results, committed, err := db.Resolve(t.Context(), b)
			if err != nil {
				t.Fatal(err)
			}
			switch fenced := c.moved || c.carried; {
			case fenced && (!committed || !errors.Is(results[0].Err, ledger.ErrFenced)):
				t.Errorf("%v, %+v, want it fenced", committed, results)
			case !fenced && committed != c.happened:
				t.Errorf("committed is %v, want %v", committed, c.happened)
			}
		})
	}
}
