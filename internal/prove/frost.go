package prove

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// leaseTime is short, so that leases run out often.
const leaseTime = 600 * time.Millisecond

// frost lets the leases of one worker at a time run out while it goes on working: its heartbeats aren't written, and
// it's told that they were. What a stopped process or a cut network does to one machine of several, this does to one
// engine of a process. The other workers take over, and what the frozen one still commits must be refused.
type frost struct {
	on     bool
	random *rand.Rand

	mu     sync.Mutex
	frozen string
	names  []string
}

func newFrost(seed uint64, on bool) *frost {
	return &frost{on: on, random: rand.New(rand.NewPCG(seed, uint64(time.Now().UnixNano())))}
}

func (f *frost) wrap(worker string, l ledger.Ledger) ledger.Ledger {
	f.names = append(f.names, worker)
	return &frozenLedger{Ledger: l, frost: f, worker: worker}
}

// run freezes workers in turn until ctx ends or the returned function is called.
func (f *frost) run(ctx context.Context) (stop func()) {
	if !f.on {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			pause := time.Duration(f.random.Int64N(int64(leaseTime)))
			if !f.set(ctx, "", pause) || !f.set(ctx, f.names[f.random.IntN(len(f.names))], 3*leaseTime) {
				f.set(context.Background(), "", 0)
				return
			}
		}
	})
	return func() { cancel(); wg.Wait() }
}

func (f *frost) set(ctx context.Context, worker string, d time.Duration) bool {
	f.mu.Lock()
	f.frozen = worker
	f.mu.Unlock()
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

type frozenLedger struct {
	ledger.Ledger
	frost  *frost
	worker string

	mu   sync.Mutex
	held []ledger.Fence
}

func (l *frozenLedger) isFrozen() bool {
	l.frost.mu.Lock()
	defer l.frost.mu.Unlock()
	return l.frost.frozen == l.worker
}

// Beat tells a frozen worker what it held before.
func (l *frozenLedger) Beat(ctx context.Context, w ledger.Worker, ttl time.Duration) ([]ledger.Fence, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isFrozen() {
		return l.held, nil
	}
	held, err := l.Ledger.Beat(ctx, w, ttl)
	if err == nil {
		l.held = held
	}
	return held, err
}

// Acquire keeps a frozen worker from taking its leases back.
func (l *frozenLedger) Acquire(ctx context.Context, k ledger.Key, topic, owner string, start int64, ttl time.Duration) (ledger.Lease, error) {
	if l.isFrozen() {
		return ledger.Lease{}, ledger.ErrHeld
	}
	lease, err := l.Ledger.Acquire(ctx, k, topic, owner, start, ttl)
	if err == nil {
		l.mu.Lock()
		l.held = append(l.held, lease.Fence)
		l.mu.Unlock()
	}
	return lease, err
}
