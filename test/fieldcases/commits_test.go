package fieldcases

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// T1: an effect whose statement ends the transaction, and that swallows the error. What looks like a commit to it is
// none: the step is dead with the cause, and nothing of it stays, nor of what it did afterwards.
func TestT1CommitThatIsARollback(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		agent := engine.Agent{Name: "r", Reads: []string{"in"}, Emits: []string{"out"},
			Setup: func(ctx context.Context, tx ledger.Tx) error {
				if err := notes(ctx, tx); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS only_one (id INTEGER PRIMARY KEY)`)
				return err
			},
			Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
				note(s, e, nil)
				s.Emit(event.New("DoneEvent", e.Subject, nil))
				if e.ID == "003" {
					s.Tx(func(ctx context.Context, tx ledger.Tx) error {
						_, _ = tx.Exec(ctx, `INSERT INTO only_one VALUES (1)`)
						again := `INSERT OR ROLLBACK INTO only_one VALUES (1)` // ends the transaction
						if tx.Dialect() == "postgres" {
							again = `INSERT INTO only_one VALUES (1)` // fails it, and its COMMIT would answer ROLLBACK
						}
						_, _ = tx.Exec(ctx, again)
						_, _ = tx.Exec(ctx, `INSERT INTO note (id, subject) VALUES ('after', 'all')`)
						return nil
					})
				}
				return nil
			}}
		s := start(t, at, map[string]int32{"in": 1, "out": 1}, nil, agent)
		s.produce(records("in", 10)...)
		s.settle()
		if c := s.counters("r"); c != (ledger.Counters{Applied: 9, Dead: 1}) {
			t.Errorf("counters: %+v", c)
		}
		if rows := s.rows(); len(rows) != 9 || strings.Contains(ids(rows), "003") || strings.Contains(ids(rows), "after") {
			t.Errorf("effects: %s", ids(rows))
		}
		if out := s.held("out"); len(out) != 9 {
			t.Errorf("%d events were published", len(out))
		}
		dead := s.dead("in")
		if len(dead) != 1 || header(dead[0], "ce_id") != "003" || !strings.Contains(strings.ToLower(header(dead[0], engine.HeaderDeadReason)), "unique") {
			t.Errorf("dead letters: %v", dead)
		}
	})
}

// T2: transactions that take long beside ones that don't, and ones that are rolled back, all with events to publish. All
// that committed is published, no hole holds the rest up, and each aggregate's events are in the order of its commits.
func TestT2OutboxSkipsNothing(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		const aggregates, each = 12, 25
		agent := func(name string) engine.Agent {
			return engine.Agent{Name: name, Reads: []string{"in"}, Emits: []string{"out"}, Setup: notes,
				Limits: engine.Limits{Backoff: time.Millisecond},
				Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
					for i := range 3 {
						out := event.New("DoneEvent", name+" "+e.Subject, nil)
						out.Source, out.ID = "//done", fmt.Sprintf("%s %s %d", name, e.ID, i)
						s.Emit(out)
					}
					s.Tx(func(ctx context.Context, tx ledger.Tx) error {
						_, err := tx.Exec(ctx, `INSERT INTO note (id, subject) VALUES ($1, $2)`, name+" "+e.ID, name+" "+e.Subject)
						return err
					})
					attempt := s.Attempt()
					s.Tx(func(context.Context, ledger.Tx) error {
						switch {
						case strings.HasSuffix(e.ID, "7") && attempt == 1:
							return errors.New("it's rolled back") // with numbers given out already
						case strings.HasSuffix(e.ID, "5"):
							<-time.After(3 * time.Millisecond) // others are ready meanwhile
						}
						return nil
					})
					return nil
				}}
		}
		s := start(t, at, map[string]int32{"in": 4, "out": 3}, func(c *app.Config) { c.Workers = 2 }, agent("one"), agent("two"))
		var batch []*kgo.Record
		for n := range each {
			for a := range aggregates {
				batch = append(batch, cloudEvent("in", fmt.Sprintf("aggregate-%d", a), fmt.Sprintf("%02d-%03d", a, n), asJSON, []byte(`{}`)))
			}
		}
		s.produce(batch...)
		s.settle()
		// Of each aggregate, in the order of commits, what should be published.
		want := map[string][]string{}
		for _, r := range s.rows() {
			for i := range 3 {
				want[r.subject] = append(want[r.subject], fmt.Sprintf("%s %d", r.id, i))
			}
		}
		if len(want) != 2*aggregates {
			t.Fatalf("%d aggregates have effects", len(want))
		}
		got := map[string][]string{}
		seen := map[string]bool{}
		for _, r := range s.held("out") {
			if id := header(r, "ce_id"); !seen[id] { // where a partition moves there may be copies, which readers absorb
				seen[id] = true
				got[string(r.Key)] = append(got[string(r.Key)], id)
			}
		}
		for subject, ids := range want {
			if len(ids) != 3*each || strings.Join(got[subject], ",") != strings.Join(ids, ",") {
				t.Errorf("%s: published are %d events, committed %d, in this order or another", subject, len(got[subject]), len(ids))
			}
		}
	})
}
