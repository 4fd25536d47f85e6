package prove

import (
	"context"
	"fmt"

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

// verdict collects what is found.
type verdict struct {
	Verdict
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
func (p *proof) verify(ctx context.Context) (Verdict, error) {
	db, err := sqlite.OpenReadOnly(p.ledgerPath())
	if err != nil {
		return Verdict{}, err
	}
	defer func() { _ = db.Close() }() // read only
	v := &verdict{Verdict: Verdict{Aggregates: p.Aggregates, Kills: p.kills, Seed: p.Seed, Examples: []string{}},
		accepted: p.accepted.last, applied: map[string]int64{}}
	for _, n := range v.accepted {
		v.Events += n
	}
	if v.Frosts, v.Fenced, err = frosts(p.nodeData()); err != nil {
		return Verdict{}, err
	}
	if p.stuck {
		v.Examples = append(v.Examples, fmt.Sprintf("nothing moved for %s, though not all was settled", stuckAfter))
	}
	v.logged(p.held[topicIn])
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
				v.found(&v.Lost, 1, "log: %s, event %d: accepted, and not in %s", aggregateName(a), n, topicIn)
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
}

func (v *verdict) effects(ctx context.Context, db reader, agent string) error {
	all := make(map[string]*history, len(v.accepted))
	for a, n := range v.accepted {
		all[aggregateName(a)] = &history{times: make([]int32, n+1)}
	}
	epochs := map[int32]int64{}
	err := db.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
		rows, err := tx.Query(ctx, `SELECT aggregate, n, saw, part, epoch FROM proof_effect WHERE agent = $1 ORDER BY id`, agent)
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
			v.effect(e, all[e.aggregate], epochs)
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

// effect judges one effect by those before it. Each is at most one finding.
func (v *verdict) effect(e effect, h *history, epochs map[int32]int64) {
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
	case e.epoch < epochs[e.part]:
		v.found(&v.Disordered, 1, "%s: %s, event %d: committed under epoch %d of partition %d, after %d had begun",
			e.agent, e.aggregate, e.n, e.epoch, e.part, epochs[e.part])
	}
	h.last = max(h.last, e.n)
	epochs[e.part] = max(epochs[e.part], e.epoch)
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
	for _, read := range []struct{ topic, agent string }{{topicIn, agentFirst}, {topicOut, agentSecond}} {
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
