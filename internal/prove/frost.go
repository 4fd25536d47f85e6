package prove

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// leaseTime is short, so that leases run out often.
const leaseTime = 600 * time.Millisecond

// frost lets the leases of one worker at a time run out while it goes on working: its heartbeats aren't written, and
// it's told that they were. What a stopped process or a cut network does to one machine of several, this does to one
// engine of a process. The other workers take over, and what the frozen one still commits must be refused.
//
// Whether that happened at all is noted in a file, a line each time, which outlives kills: a proof in which no step
// was ever refused says nothing about refusing.
type frost struct {
	on     bool
	random *rand.Rand
	notes  *os.File

	taken chan struct{} // somebody took a lease while another was frozen
	names []string

	mu     sync.Mutex
	frozen string
}

func frostPath(data string) string { return filepath.Join(data, "frost.log") }

// Lines of the notes.
const (
	noteFrozen = "frozen" // a worker's leases begin to run out
	noteFenced = "fenced" // a step was refused, since its lease had another owner by then
)

func newFrost(seed uint64, on bool, path string) (*frost, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("open the frost's notes: %w", err)
	}
	notes, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the frost's notes: %w", err)
	}
	info, err := notes.Stat()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the frost's notes: %w", err), notes.Close())
	}
	// Each life of the node draws from another stream of the seed: what was noted before tells them apart.
	return &frost{on: on, notes: notes, taken: make(chan struct{}, 1), random: rand.New(rand.NewPCG(seed, uint64(info.Size())))}, nil
}

func (f *frost) close() error { return f.notes.Close() }

// note is one write, so that a kill leaves whole lines.
func (f *frost) note(line string) { _, _ = f.notes.WriteString(line + "\n") }

// frosts counts what was noted.
func frosts(data string) (frozen, fenced int64, err error) {
	file, err := os.Open(frostPath(data))
	if err != nil {
		return 0, 0, fmt.Errorf("read the frost's notes: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		switch lines.Text() {
		case noteFrozen:
			frozen++
		case noteFenced:
			fenced++
		}
	}
	return frozen, fenced, lines.Err()
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
		defer f.set("")
		for {
			if !wait(ctx, nil, time.Duration(f.random.Int64N(int64(leaseTime)))) {
				return
			}
			f.set(f.names[f.random.IntN(len(f.names))])
			f.note(noteFrozen)
			// Until someone takes over, which on a busy machine takes a while, and then until that one is at work beside
			// the frozen worker: what it took it reads only once its fetch under way has been answered.
			if !wait(ctx, f.taken, 6*leaseTime) || !wait(ctx, nil, 5*leaseTime/2) {
				return
			}
			f.set("")
		}
	})
	return func() { cancel(); wg.Wait() }
}

// set freezes a worker, or none.
func (f *frost) set(worker string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frozen = worker
	select {
	case <-f.taken:
	default:
	}
}

// wait waits for an event or for a time; false: ctx ended.
func wait(ctx context.Context, event <-chan struct{}, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-event:
	case <-timer.C:
	}
	return true
}

type frozenLedger struct {
	ledger.Ledger
	frost  *frost
	worker string

	mu     sync.Mutex
	held   []ledger.Fence
	leases []ledger.Lease
}

// Leases shows a frozen worker what it saw before: it doesn't notice that others have its partitions.
func (l *frozenLedger) Leases(ctx context.Context, group string) ([]ledger.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isFrozen() && l.leases != nil {
		return l.leases, nil
	}
	leases, err := l.Ledger.Leases(ctx, group)
	if err == nil && group == "" {
		l.leases = leases
	}
	return leases, err
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
		l.frost.took()
	}
	return lease, err
}

// took tells a frost that a lease was taken.
func (f *frost) took() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.frozen == "" {
		return
	}
	select {
	case f.taken <- struct{}{}:
	default:
	}
}

// Commit notes the steps that are refused.
func (l *frozenLedger) Commit(ctx context.Context, b *ledger.Batch) ([]ledger.Result, error) {
	results, err := l.Ledger.Commit(ctx, b)
	for _, r := range results {
		if errors.Is(r.Err, ledger.ErrFenced) {
			l.frost.note(noteFenced)
		}
	}
	return results, err
}
