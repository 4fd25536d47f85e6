package prove

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ground is a proof that has been run: two aggregates of four events each, all applied by both agents, and one copy
// that was recognised.
type ground struct {
	*proof
	t      *testing.T
	ledger *sqlite.DB
	leases map[string]ledger.Lease // by agent
	offset map[string]int64
}

const (
	groundAggregates = 2
	groundEvents     = 4
)

func newGround(t *testing.T) *ground {
	t.Helper()
	g := &ground{t: t, leases: map[string]ledger.Lease{}, offset: map[string]int64{}, proof: &proof{
		Config: Config{Events: groundAggregates * groundEvents, Aggregates: groundAggregates, Data: t.TempDir()},
		names:  plainNames, accepted: newTally(groundAggregates),
		held: map[string]holding{plainNames.in: {distinct: map[string]map[int64]bool{}}, plainNames.out: {distinct: map[string]map[int64]bool{}}},
	}}
	f, err := newFrost(1, false, frostPath(g.nodeData()))
	g.must(err)
	g.must(f.close())
	g.ledger, err = sqlite.Open(t.Context(), g.ledgerPath(), sqlite.Options{})
	g.must(err)
	g.must(g.ledger.Setup(t.Context(), plainNames.create))
	for agent, topic := range map[string]string{agentFirst: plainNames.in, agentSecond: plainNames.out} {
		g.leases[agent], err = g.ledger.Acquire(t.Context(), ledger.Key{Group: agent, TopicID: [16]byte{1}}, topic, "w", 0, time.Minute)
		g.must(err)
		for n := int64(1); n <= groundEvents; n++ {
			for a := range groundAggregates {
				g.accepted.accept(publication{aggregate: a, n: n})
				g.step(agent, topic, a, n, ledger.Applied)
			}
		}
	}
	g.step(agentFirst, plainNames.in, 0, 1, ledger.Duplicate)
	return g
}

func (g *ground) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// step lets the topic hold one more record, and an agent have handled it.
func (g *ground) step(agent, topic string, aggregate int, n int64, outcome ledger.Outcome) {
	g.t.Helper()
	h := g.held[topic]
	name := aggregateName(aggregate)
	if h.distinct[name] == nil {
		h.distinct[name] = map[int64]bool{}
	}
	h.distinct[name][n] = true
	h.records++
	g.held[topic] = h
	offset := g.offset[agent]
	g.offset[agent]++
	s := &ledger.Step{Fence: g.leases[agent].Fence, From: offset, Offset: offset, Outcome: outcome, LogTime: time.Now(),
		Event: ledger.Identity{Source: "//prove", ID: name + string(rune('0'+n)), Subject: name}}
	if outcome == ledger.Applied {
		s.Effects = append(s.Effects, func(ctx context.Context, tx ledger.Tx) error {
			return plainNames.write(ctx, tx, effect{agent, name, n, n - 1, 0, g.leases[agent].Epoch})
		})
	}
	results, err := g.ledger.Commit(g.t.Context(), &ledger.Batch{Steps: []*ledger.Step{s}})
	g.must(err)
	if results[0].Err != nil || results[0].Outcome != outcome {
		g.t.Fatalf("step: %+v", results[0])
	}
}

// edit changes the tables behind the ledger's back.
func (g *ground) edit(sql string) {
	g.t.Helper()
	g.must(g.ledger.Setup(g.t.Context(), func(ctx context.Context, tx ledger.Tx) error {
		n, err := tx.Exec(ctx, sql)
		if err == nil && n == 0 {
			g.t.Errorf("%s changed nothing", sql)
		}
		return err
	}))
}

func (g *ground) judge() Verdict {
	g.t.Helper()
	g.must(g.ledger.Close())
	db, err := sqlite.OpenReadOnly(g.ledgerPath())
	g.must(err)
	defer db.Close()
	v, err := g.verify(g.t.Context(), db)
	g.must(err)
	return v
}

// Each kind of fault, planted in what a clean proof has left, is found and counted exactly.
func TestVerifyFindsPlantedFaults(t *testing.T) {
	t.Parallel()
	const row = `agent = 'first' AND aggregate = 'aggregate-000000' AND `
	for _, c := range []struct {
		name  string
		plant func(g *ground)
		want  [4]int64 // lost, doubled, disordered, unaccounted
		says  string
	}{
		{"nothing", func(*ground) {}, [4]int64{}, ""},
		{"an effect is missing, though counted", func(g *ground) { g.edit(`DELETE FROM proof_effect WHERE ` + row + `n = 4`) },
			[4]int64{1, 0, 0, 1}, "first: aggregate-000000, event 4: accepted, and has no effect"},
		{"an effect in the middle is missing, and its successor says that it saw it", func(g *ground) { g.edit(`DELETE FROM proof_effect WHERE ` + row + `n = 2`) },
			[4]int64{1, 0, 1, 1}, "event 2: accepted, and has no effect"},
		{"an accepted event never came to an agent", func(g *ground) { g.accepted.accept(publication{aggregate: 1, n: 5}) },
			[4]int64{3, 0, 0, 0}, "log: aggregate-000001, event 5: accepted, and not in proof.in"},
		{"the log lost a record after it was handled", func(g *ground) {
			h := g.held[plainNames.in]
			delete(h.distinct["aggregate-000001"], 3)
			h.records--
			g.held[plainNames.in] = h
		}, [4]int64{1, 0, 0, 1}, "not in proof.in"},
		{"effects twice", func(g *ground) {
			g.edit(`INSERT INTO proof_effect (agent, aggregate, n, saw, part, epoch) SELECT agent, aggregate, n, saw, part, epoch FROM proof_effect WHERE agent = 'second' AND n = 2`)
		}, [4]int64{0, 2, 0, 2}, "second: aggregate-000000, event 2: applied 2 times"},
		{"an effect three times", func(g *ground) {
			for range 2 {
				g.edit(`INSERT INTO proof_effect (agent, aggregate, n, saw, part, epoch) VALUES ('first', 'aggregate-000000', 4, 3, 0, 1)`)
			}
		}, [4]int64{0, 2, 0, 2}, "applied 3 times"},
		{"two effects changed places", func(g *ground) {
			g.edit(`UPDATE proof_effect SET n = 5 - n, saw = 4 - n WHERE ` + row + `n IN (2, 3)`)
		}, [4]int64{0, 0, 2, 0}, "event 2: applied after 3"},
		{"a step ran before its predecessor's commit", func(g *ground) { g.edit(`UPDATE proof_effect SET saw = 1 WHERE ` + row + `n = 3`) },
			[4]int64{0, 0, 1, 0}, "its step saw 1 as the last one, and 2 was"},
		{"a step was committed under an epoch that had passed", func(g *ground) { g.edit(`UPDATE proof_effect SET epoch = 7 WHERE agent = 'second' AND n = 3`) },
			[4]int64{0, 0, 2, 0}, "committed under epoch 1 of partition 0, after one under 7"},
		{"an effect of an event that nobody published", func(g *ground) {
			g.edit(`INSERT INTO proof_effect (agent, aggregate, n, saw, part, epoch) VALUES ('first', 'aggregate-000000', 9, 4, 0, 1), ('first', 'nobody', 1, 0, 0, 1)`)
		}, [4]int64{0, 0, 0, 4}, "which nobody published"},
		{"records that no outcome counts", func(g *ground) {
			h := g.held[plainNames.out]
			h.records += 3
			g.held[plainNames.out] = h
		}, [4]int64{0, 0, 0, 3}, "proof.out holds 11 records, and 8 are counted"},
		{"records that are counted and not there", func(g *ground) {
			h := g.held[plainNames.in]
			h.records -= 2
			g.held[plainNames.in] = h
		}, [4]int64{0, 0, 0, 2}, "proof.in holds 7 records, and 9 are counted"},
		{"a copy passed over", func(g *ground) { g.step(agentFirst, plainNames.in, 0, 2, ledger.Skipped) },
			[4]int64{0, 0, 0, 1}, "passed over, though none should"},
		{"an event counted as applied without an effect of its own", func(g *ground) {
			g.edit(`UPDATE proof_effect SET agent = 'third' WHERE ` + row + `n = 4`)
		}, [4]int64{1, 0, 0, 1}, "8 records are counted as applied, and there are 7 effects"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newGround(t)
			c.plant(g)
			v := g.judge()
			if got := [4]int64{v.Lost, v.Doubled, v.Disordered, v.Unaccounted}; got != c.want {
				t.Errorf("lost, doubled, disordered, unaccounted: %v, expected %v; examples %q", got, c.want, v.Examples)
			}
			if v.Clean() != (c.want == [4]int64{}) {
				t.Errorf("clean: %v", v.Clean())
			}
			if !strings.Contains(strings.Join(v.Examples, "\n"), c.says) {
				t.Errorf("no example says %q: %q", c.says, v.Examples)
			}
		})
	}
}

func TestVerdictOfACleanProof(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	g.kills, g.Seed, g.stuck = 3, 7, true
	g.must(os.WriteFile(frostPath(g.nodeData()), []byte("frozen\nfenced\nfenced\nfrozen\nfen"), 0o600))
	v := g.judge()
	if v.Events != 8 || v.Aggregates != 2 || v.Effects != 16 || v.Duplicates != 1 || v.Kills != 3 || v.Seed != 7 || v.Frosts != 2 || v.Fenced != 2 {
		t.Errorf("verdict: %+v", v)
	}
	if len(v.Examples) != 1 || !strings.Contains(v.Examples[0], "nothing moved") {
		t.Errorf("nobody is told that the run stood still: %q", v.Examples)
	}
}

func TestExamplesAreBounded(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	for n := int64(groundEvents + 1); n < 100; n++ {
		g.accepted.accept(publication{aggregate: 0, n: n})
	}
	if v := g.judge(); len(v.Examples) != maxExamples || v.Lost != 3*95 {
		t.Errorf("%d examples, %d lost", len(v.Examples), v.Lost)
	}
}

// Only what was acknowledged counts, once, and without holes.
func TestTally(t *testing.T) {
	t.Parallel()
	tally := newTally(2)
	for _, p := range []publication{{aggregate: 0, n: 1}, {aggregate: 0, n: 1}, {aggregate: 0, n: 2}, {aggregate: 0, n: 1}, {aggregate: 1, n: 2}} {
		tally.accept(p)
	}
	if tally.value() != 2 || tally.last[0] != 2 || tally.last[1] != 0 {
		t.Errorf("%+v", tally)
	}
}

func TestConfigIsRefused(t *testing.T) {
	t.Parallel()
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]Config{
		"at least one event": {Events: 1, Aggregates: 2, Data: t.TempDir()},
		"0 events":           {Aggregates: 2, Data: t.TempDir()},
		"-1 kills":           {Events: 2, Aggregates: 2, Kills: -1, Data: t.TempDir()},
		"it isn't empty":     {Events: 2, Aggregates: 2, Data: full},
	} {
		if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; expected %q", c, err, want)
		}
	}
}
