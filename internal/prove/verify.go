package prove

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/ledger"
)

const maxExamples = 20

// createTables makes the tables that the agents' own SQL writes.
func createTables(ctx context.Context, tx ledger.Tx) error {
	for _, statement := range []string{
		`CREATE TABLE IF NOT EXISTS proof_effect (id INTEGER PRIMARY KEY AUTOINCREMENT, agent TEXT NOT NULL, aggregate TEXT NOT NULL,
			n INTEGER NOT NULL, saw INTEGER NOT NULL, part INTEGER NOT NULL, epoch INTEGER NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS proof_last (agent TEXT NOT NULL, aggregate TEXT NOT NULL, n INTEGER NOT NULL,
			PRIMARY KEY (agent, aggregate)) WITHOUT ROWID`,
	} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func writeEffect(ctx context.Context, tx ledger.Tx, agent, aggregate string, n, saw int64, part int32, epoch int64) error {
	if _, err := tx.Exec(ctx, `INSERT INTO proof_effect (agent, aggregate, n, saw, part, epoch) VALUES ($1, $2, $3, $4, $5, $6)`,
		agent, aggregate, n, saw, part, epoch); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO proof_last (agent, aggregate, n) VALUES ($1, $2, $3)
		ON CONFLICT (agent, aggregate) DO UPDATE SET n = excluded.n`, agent, aggregate, n)
	return err
}

// ends is how much each topic holds at the end, and how often leases were let run out.
type ends struct {
	Topics map[string]int64 `json:"topics"`
}

func endsPath(data string) string { return filepath.Join(data, "ends.json") }

// writeEnds leaves what only the broker knows for the verdict.
func (n Node) writeEnds(ctx context.Context, a *app.App) error {
	e := ends{Topics: map[string]int64{}}
	for _, t := range []string{topicIn, topicOut} {
		records, err := a.Size(ctx, t)
		if err != nil {
			return err
		}
		e.Topics[t] = records
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return os.WriteFile(endsPath(n.Data), b, 0o600)
}

// verdict collects what is found.
type verdict struct {
	Verdict
}

func (v *verdict) found(counter *int64, n int64, format string, args ...any) {
	*counter += n
	if len(v.Examples) < maxExamples {
		v.Examples = append(v.Examples, fmt.Sprintf(format, args...))
	}
}

// verify reads effects, in the order of their commits, and counters, and holds them against what was accepted.
func verify(ctx context.Context, c Config) (Verdict, error) {
	db, err := sqlite.OpenReadOnly(c.ledgerPath())
	if err != nil {
		return Verdict{}, err
	}
	defer func() { _ = db.Close() }() // read only
	v := &verdict{Verdict{Events: int64(c.Events), Examples: []string{}}}
	for _, agent := range []string{agentFirst, agentSecond} {
		if err := v.effects(ctx, db, c, agent); err != nil {
			return Verdict{}, err
		}
	}
	if err := v.accounts(ctx, db, c); err != nil {
		return Verdict{}, err
	}
	return v.Verdict, nil
}

// reader is what is asked of a ledger at the end.
type reader interface {
	Read(ctx context.Context, f func(context.Context, ledger.Tx) error) error
	Totals(ctx context.Context) (ledger.Totals, error)
}

func (v *verdict) effects(ctx context.Context, db reader, c Config, agent string) error {
	times := make(map[string][]int32, c.Aggregates) // how often each number was applied
	for a := range c.Aggregates {
		times[aggregateName(a)] = make([]int32, c.events(a)+1)
	}
	last := map[string]int64{}
	epochs := map[int32]int64{}
	err := db.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
		rows, err := tx.Query(ctx, `SELECT aggregate, n, saw, part, epoch FROM proof_effect WHERE agent = $1 ORDER BY id`, agent)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var aggregate string
			var n, saw, epoch int64
			var part int32
			if err := rows.Scan(&aggregate, &n, &saw, &part, &epoch); err != nil {
				return err
			}
			v.Effects++
			if n < 1 || n >= int64(len(times[aggregate])) {
				v.found(&v.Unaccounted, 1, "%s: %s has an effect of event %d, which nobody published", agent, aggregate, n)
				continue
			}
			switch times[aggregate][n]++; {
			case times[aggregate][n] > 1:
				v.found(&v.Doubled, 1, "%s: %s, event %d: applied %d times", agent, aggregate, n, times[aggregate][n])
			case n < last[aggregate]:
				v.found(&v.Disordered, 1, "%s: %s, event %d: applied after %d", agent, aggregate, n, last[aggregate])
			case saw != last[aggregate]:
				v.found(&v.Disordered, 1, "%s: %s, event %d: its step saw %d as the last one, and %d was", agent, aggregate, n, saw, last[aggregate])
			case epoch < epochs[part]:
				v.found(&v.Disordered, 1, "%s: %s, event %d: committed under epoch %d of partition %d, after %d had begun", agent, aggregate, n, epoch, part, epochs[part])
			}
			last[aggregate] = max(last[aggregate], n)
			epochs[part] = max(epochs[part], epoch)
		}
		return rows.Err()
	})
	if err != nil {
		return fmt.Errorf("read effects of %s: %w", agent, err)
	}
	for a := range c.Aggregates {
		for n, count := range times[aggregateName(a)] {
			if n > 0 && count == 0 {
				v.found(&v.Lost, 1, "%s: %s, event %d: accepted, and has no effect", agent, aggregateName(a), n)
			}
		}
	}
	return nil
}

// accounts holds the counters of leases against what the topics hold.
func (v *verdict) accounts(ctx context.Context, db reader, c Config) error {
	b, err := os.ReadFile(endsPath(filepath.Join(c.Data, "node")))
	if err != nil {
		return fmt.Errorf("read what the topics hold: %w", err)
	}
	var e ends
	if err := json.Unmarshal(b, &e); err != nil {
		return fmt.Errorf("read what the topics hold: %w", err)
	}
	totals, err := db.Totals(ctx)
	if err != nil {
		return err
	}
	counted := map[string]int64{}
	var dead, waiting int64
	for _, l := range totals.Leases {
		counted[l.Topic] += l.Counters.Delivered()
		v.Duplicates += l.Counters.Duplicate
		dead += l.Counters.Dead
		waiting += l.Counters.Waiting
	}
	for topic, held := range e.Topics {
		if n := held - counted[topic]; n != 0 {
			v.found(&v.Unaccounted, max(n, -n), "%s holds %d records and %d are counted under an outcome", topic, held, counted[topic])
		}
	}
	if dead+waiting > 0 {
		v.found(&v.Unaccounted, dead+waiting, "%d records are dead and %d wait, though none should", dead, waiting)
	}
	return nil
}
