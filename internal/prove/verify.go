package prove

import (
	"context"
	"fmt"

	"github.com/swarmlog/swarmlog/ledger"
)

const maxExamples = 20

// tables are what the agents' own SQL writes. The clock of an effect is the database's, in seconds; SQLite's has none.
func (n names) tables(dialect string) []string {
	if dialect == "postgres" {
		return []string{
			`CREATE TABLE IF NOT EXISTS ` + n.effect + ` (id BIGSERIAL PRIMARY KEY, agent TEXT NOT NULL, aggregate TEXT NOT NULL,
				n BIGINT NOT NULL, saw BIGINT NOT NULL, part INTEGER NOT NULL, epoch BIGINT NOT NULL,
				at DOUBLE PRECISION NOT NULL DEFAULT extract(epoch FROM clock_timestamp()))`,
			`CREATE TABLE IF NOT EXISTS ` + n.last + ` (agent TEXT NOT NULL, aggregate TEXT NOT NULL, n BIGINT NOT NULL,
				PRIMARY KEY (agent, aggregate))`,
		}
	}
	return []string{
		`CREATE TABLE IF NOT EXISTS ` + n.effect + ` (id INTEGER PRIMARY KEY AUTOINCREMENT, agent TEXT NOT NULL, aggregate TEXT NOT NULL,
			n INTEGER NOT NULL, saw INTEGER NOT NULL, part INTEGER NOT NULL, epoch INTEGER NOT NULL)`,
		`CREATE TABLE IF NOT EXISTS ` + n.last + ` (agent TEXT NOT NULL, aggregate TEXT NOT NULL, n INTEGER NOT NULL,
			PRIMARY KEY (agent, aggregate)) WITHOUT ROWID`,
	}
}

func (n names) create(ctx context.Context, tx ledger.Tx) error {
	for _, statement := range n.tables(tx.Dialect()) {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (n names) write(ctx context.Context, tx ledger.Tx, e effect) error {
	if _, err := tx.Exec(ctx, `INSERT INTO `+n.effect+` (agent, aggregate, n, saw, part, epoch) VALUES ($1, $2, $3, $4, $5, $6)`,
		e.agent, e.aggregate, e.n, e.saw, e.part, e.epoch); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO `+n.last+` (agent, aggregate, n) VALUES ($1, $2, $3)
		ON CONFLICT (agent, aggregate) DO UPDATE SET n = excluded.n`, e.agent, e.aggregate, e.n)
	return err
}

// verdict collects what is found.
type verdict struct {
	Verdict
	names    names
	accepted []int64          // by aggregate, how many of its events were acknowledged
	applied  map[string]int64 // by agent, its effects
}

func (v *verdict) found(counter *int64, n int64, format string, args ...any) {
	*counter += n
	if len(v.Examples) < maxExamples {
		v.Examples = append(v.Examples, fmt.Sprintf(format, args...))
	}
}

// verify reads effects, in the order of their commits, and counters, and holds them against what was accepted and what
// the topics hold.
func (p *proof) verify(ctx context.Context, db reader) (Verdict, error) {
	v := &verdict{Verdict: Verdict{Aggregates: p.Aggregates, Kills: p.kills, Seed: p.Seed, Examples: []string{}},
		names: p.names, accepted: p.accepted.last, applied: map[string]int64{}}
	for _, n := range v.accepted {
		v.Events += n
	}
	for _, folder := range p.folders() {
		frozen, fenced, err := frosts(folder)
		if err != nil {
			return Verdict{}, err
		}
		v.Frosts, v.Fenced = v.Frosts+frozen, v.Fenced+fenced
	}
	if p.stuck {
		v.Examples = append(v.Examples, fmt.Sprintf("nothing moved for %s, though not all was settled", stuckAfter))
	}
	v.logged(p.held[p.names.in])
	for _, agent := range []string{agentFirst, agentSecond} {
		if err := v.effects(ctx, db, agent); err != nil {
			return Verdict{}, err
		}
	}
	if err := v.accounts(ctx, db, p.held); err != nil {
		return Verdict{}, err
	}
	return v.Verdict, nil
}

// logged looks for accepted events that the log no longer holds.
func (v *verdict) logged(h holding) {
	for a, accepted := range v.accepted {
		for n := int64(1); n <= accepted; n++ {
			if !h.distinct[aggregateName(a)][n] {
				v.found(&v.Lost, 1, "log: %s, event %d: accepted, and not in %s", aggregateName(a), n, v.names.in)
			}
		}
	}
}

// reader is what is asked of a ledger at the end.
type reader interface {
	Read(ctx context.Context, f func(context.Context, ledger.Tx) error) error
	Totals(ctx context.Context) (ledger.Totals, error)
}

// history is what is known of the effects of one aggregate at one agent.
type history struct {
	times []int32 // how often each number was applied
	last  int64   // the highest number so far
	epoch int64   // the highest epoch so far
}

func (v *verdict) effects(ctx context.Context, db reader, agent string) error {
	all := make(map[string]*history, len(v.accepted))
	for a, n := range v.accepted {
		all[aggregateName(a)] = &history{times: make([]int32, n+1)}
	}
	err := db.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
		rows, err := tx.Query(ctx, `SELECT aggregate, n, saw, part, epoch FROM `+v.names.effect+` WHERE agent = $1 ORDER BY id`, agent)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			e := effect{agent: agent}
			if err := rows.Scan(&e.aggregate, &e.n, &e.saw, &e.part, &e.epoch); err != nil {
				return err
			}
			v.Effects++
			v.applied[agent]++
			v.effect(e, all[e.aggregate])
		}
		return rows.Err()
	})
	if err != nil {
		return fmt.Errorf("read effects of %s: %w", agent, err)
	}
	for a := range v.accepted {
		for n, count := range all[aggregateName(a)].times {
			if n > 0 && count == 0 {
				v.found(&v.Lost, 1, "%s: %s, event %d: accepted, and has no effect", agent, aggregateName(a), n)
			}
		}
	}
	return nil
}

// effect is a row that an agent's own SQL wrote.
type effect struct {
	agent, aggregate string
	n, saw           int64 // its number, and the one that its step saw as the last
	part             int32
	epoch            int64
}

// effect judges one effect by those before it. Each is at most one finding. Epochs are compared within an aggregate: a
// step that was carried over a hand-over commits under the epoch that it was begun under, and its aggregate waits for it.
func (v *verdict) effect(e effect, h *history) {
	if h == nil || e.n < 1 || e.n >= int64(len(h.times)) {
		v.found(&v.Unaccounted, 1, "%s: %s has an effect of event %d, which nobody published", e.agent, e.aggregate, e.n)
		return
	}
	h.times[e.n]++
	switch {
	case h.times[e.n] > 1:
		v.found(&v.Doubled, 1, "%s: %s, event %d: applied %d times", e.agent, e.aggregate, e.n, h.times[e.n])
	case e.n < h.last:
		v.found(&v.Disordered, 1, "%s: %s, event %d: applied after %d", e.agent, e.aggregate, e.n, h.last)
	case e.saw != h.last:
		v.found(&v.Disordered, 1, "%s: %s, event %d: its step saw %d as the last one, and %d was", e.agent, e.aggregate, e.n, e.saw, h.last)
	case e.epoch < h.epoch:
		v.found(&v.Disordered, 1, "%s: %s, event %d: committed under epoch %d of partition %d, after one under %d",
			e.agent, e.aggregate, e.n, e.epoch, e.part, h.epoch)
	}
	h.last = max(h.last, e.n)
	h.epoch = max(h.epoch, e.epoch)
}

// accounts holds the counters of leases against what the topics hold and what has effects.
func (v *verdict) accounts(ctx context.Context, db reader, held map[string]holding) error {
	totals, err := db.Totals(ctx)
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	counted := map[string]ledger.Counters{}
	for _, l := range totals.Leases {
		c := counted[l.Topic]
		c.Add(l.Counters)
		counted[l.Topic] = c
	}
	for _, read := range []struct{ topic, agent string }{{v.names.in, agentFirst}, {v.names.out, agentSecond}} {
		c, records := counted[read.topic], held[read.topic].records
		v.Duplicates += c.Duplicate
		if n := records - c.Delivered(); n != 0 {
			v.found(&v.Unaccounted, max(n, -n), "%s holds %d records, and %d are counted under an outcome", read.topic, records, c.Delivered())
		}
		if n := c.Applied - v.applied[read.agent]; n != 0 {
			v.found(&v.Unaccounted, max(n, -n), "%s: %d records are counted as applied, and there are %d effects", read.agent, c.Applied, v.applied[read.agent])
		}
		if n := c.Delivered() - c.Applied - c.Duplicate; n != 0 {
			v.found(&v.Unaccounted, n, "%s: %d records are dead, wait, or were passed over, though none should: %+v", read.agent, n, c)
		}
	}
	return nil
}
