package postgres

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// mover hands a partition over between two workers again and again, and leaves running steps to the one it leaves.
type mover struct {
	t       *testing.T
	dbs     [2]*DB
	carry   [2]chan *ledger.Step
	offsets int64
}

var moverNames = [2]string{"w0", "w1"}

// insist makes a call until it comes through: the way there breaks all the time.
func (m *mover) insist(what string, call func() error) {
	var err error
	until(m.t, what, func() bool { err = call(); return err == nil })
}

func (m *mover) acquire(owner int, partition int32) (f ledger.Fence) {
	m.insist("the lease is taken", func() error {
		l, err := m.dbs[owner].Acquire(m.t.Context(), leaseKey(partition), "pages", moverNames[owner], 0, lasting)
		f = l.Fence
		return err
	})
	return f
}

// run commits all offsets of a partition, by whoever owns it or carries them.
func (m *mover) run(partition int32) {
	owner := int(partition) % 2
	f := m.acquire(owner, partition)
	for next := int64(0); next < m.offsets; {
		var mine, left []*ledger.Step
		for range min(1+rand.Int64N(4), m.offsets-next) {
			s := oneStep(f, next)
			s.Emits = []ledger.Outgoing{{Topic: "out"}}
			if next++; rand.IntN(3) == 0 {
				left = append(left, s)
			} else {
				mine = append(mine, s)
			}
		}
		m.commit(owner, mine)
		if len(left) == 0 {
			continue
		}
		var carried []ledger.Carried
		for _, s := range left {
			carried = append(carried, ledger.Carried{Offset: s.Offset, Subject: s.Event.Subject})
		}
		m.insist("the lease is passed", func() error { return m.dbs[owner].Pass(m.t.Context(), f, moverNames[1-owner], carried, lasting) })
		for _, s := range left {
			s.Carried = true
			m.carry[owner] <- s
		}
		owner = 1 - owner
		f = m.acquire(owner, partition)
	}
}

func (m *mover) commit(owner int, steps []*ledger.Step) {
	if len(steps) == 0 {
		return
	}
	results, err := commit(m.t.Context(), m.dbs[owner], &ledger.Batch{Steps: steps})
	if err != nil {
		m.t.Error(err)
		return
	}
	for i, r := range results {
		if r.Err != nil || r.Outcome != ledger.Applied {
			m.t.Errorf("offset %d of partition %d, carried %v: %+v", steps[i].Offset, steps[i].Fence.Partition, steps[i].Carried, r)
		}
	}
}

// finish commits what a worker carries, several steps of several partitions at a time.
func (m *mover) finish(owner int) {
	for s := range m.carry[owner] {
		batch := []*ledger.Step{s}
		for more := true; more && len(batch) < 5; {
			select {
			case s, more = <-m.carry[owner]:
				if more {
					batch = append(batch, s)
				}
			default:
				more = false
			}
		}
		m.commit(owner, batch)
	}
}

// Partitions move between two workers all the time while steps of them run, and connections break before and after
// COMMITs. Whoever commits: each event has one effect, and each lease accounts for its records.
func TestHandOversWhileConnectionsBreak(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	const partitions, offsets = 3, 120
	m := &mover{t: t, offsets: offsets}
	var proxies [2]*proxy
	for i := range m.dbs {
		var dsn string
		proxies[i], dsn = newProxy(t, r.dsn)
		m.dbs[i] = room{dsn, r.schema}.open(t, func(o *Options) { o.EffectTimeout = 5 * time.Second })
		m.carry[i] = make(chan *ledger.Step, 16)
	}
	setup(t, m.dbs[0], effectTable)
	breaking, stop := context.WithCancel(t.Context())
	var saboteur, carriers, movers sync.WaitGroup
	saboteur.Go(func() {
		tick := time.NewTicker(15 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-breaking.Done():
				return
			case <-tick.C:
				proxies[rand.IntN(2)].next.Store(rand.Int32N(3)) // straight, before or after
			}
		}
	})
	for i := range m.dbs {
		carriers.Go(func() { m.finish(i) })
	}
	for p := range int32(partitions) {
		movers.Go(func() { m.run(p) })
	}
	movers.Wait()
	for _, c := range m.carry {
		close(c)
	}
	carriers.Wait()
	stop()
	saboteur.Wait()
	for _, p := range proxies {
		p.next.Store(int32(straight))
	}
	if n := proxies[0].broken.Load() + proxies[1].broken.Load(); n < 20 {
		t.Errorf("%d COMMITs were lost only", n)
	}
	db := r.open(t)
	wantOnce(t, db, partitions*offsets)
	for p := range int32(partitions) {
		l := acquireAs(t, db, p, "last")
		rows, err := db.Outbox(t.Context(), l.Fence, 0, 2*offsets)
		if err != nil || len(rows) != offsets || l.Next != offsets || l.Counters != (ledger.Counters{Applied: offsets}) || len(l.Carried) != 0 {
			t.Errorf("partition %d: %d rows in the outbox (%v), lease %+v", p, len(rows), err, l)
		}
	}
}

// acquireAs takes a lease from whoever has it.
func acquireAs(t testing.TB, db *DB, partition int32, owner string) ledger.Lease {
	t.Helper()
	if err := db.Release(t.Context(), lease(t, db, leaseKey(partition)).Fence); err != nil {
		t.Fatal(err)
	}
	l, err := db.Acquire(t.Context(), leaseKey(partition), "pages", owner, 0, lasting)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
