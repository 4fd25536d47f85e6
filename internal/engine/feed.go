package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// Feed is where a Source offers what it finds.
type Feed struct {
	source *source
	ctx    context.Context // ends when the source's lease is lost
	fence  ledger.Fence

	mu   sync.Mutex
	next int64   // the next number of an offer
	free []int64 // numbers whose offers failed, to be used again
}

// Offer commits one found thing: h runs as a step of e, whose Source and ID (both required) decide whether it was
// committed before; then it's a duplicate and nothing is done. It returns when the commit is durable. After an error it
// may be offered again; only where that error is a context's may it have been committed nevertheless, and then it's a
// duplicate. Safe for concurrent use: offers that wait at the same time share a commit.
func (f *Feed) Offer(ctx context.Context, e event.Event, h Handler) (ledger.Outcome, error) {
	s := f.source
	if e.ID == "" || e.Source == "" {
		return 0, fmt.Errorf("source %s offers %s without a source or an id", s.spec.Name, e.Type)
	}
	id := ledger.Identity{Source: e.Source, ID: e.ID, Subject: e.Subject}
	seen, err := s.eng.opts.Ledger.Seen(ctx, s.spec.Name, []ledger.Identity{id})
	if err != nil {
		return 0, err
	}
	if seen[0] != nil {
		return ledger.Duplicate, nil
	}
	step := &Step{agent: s.spec.Name, targets: s.spec.Emits, infer: s.eng.opts.Inferrer, attempt: 1,
		call: Call{Fence: f.fence, Source: e.Source, EventID: e.ID, Agent: s.spec.Name}}
	if err := safely(func() error { return h(ctx, e, step) }); err != nil {
		return 0, err
	}
	if step.err != nil {
		return 0, step.err
	}
	if step.outcome != 0 {
		return f.commit(ctx, &ledger.Step{Fence: f.fence, LogTime: time.Now(), Event: id, Outcome: step.outcome})
	}
	emits, err := s.eng.outgoing(s.spec.Name, e, step.emits)
	if err != nil {
		return 0, err
	}
	id.Digest = e.Digest()
	return f.commit(ctx, &ledger.Step{Fence: f.fence, LogTime: time.Now(), Event: id, Outcome: ledger.Applied,
		Effects: step.effects, Emits: emits})
}

// commit numbers the offer and waits for it to be durable.
func (f *Feed) commit(ctx context.Context, step *ledger.Step) (ledger.Outcome, error) {
	f.mu.Lock()
	n := f.next
	if k := len(f.free); k > 0 {
		n, f.free = f.free[k-1], f.free[:k-1]
	} else {
		f.next++
	}
	f.mu.Unlock()
	step.From, step.Offset = n, n
	done := make(chan ledger.Result, 1)
	f.source.eng.commits.add(finish{step: step, done: func(r ledger.Result) {
		if r.Err == nil && r.Outcome == ledger.Applied && len(step.Emits) > 0 {
			for i := range step.Emits {
				step.Emits[i].Seq = r.FirstSeq + int64(i)
			}
			f.source.eng.relay.add(f.fence, step.Emits)
		}
		done <- r
	}})
	select {
	case r := <-done:
		if r.Err != nil {
			f.mu.Lock()
			f.free = append(f.free, n)
			f.mu.Unlock()
			if errors.Is(r.Err, ledger.ErrFenced) {
				f.source.lost(f.fence)
			}
			return 0, r.Err
		}
		return r.Outcome, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-f.ctx.Done():
		return 0, ledger.ErrFenced
	}
}

// Idle tells whether the source has, for now, offered all that there is.
func (f *Feed) Idle(idle bool) {
	f.source.mu.Lock()
	defer f.source.mu.Unlock()
	f.source.idle = idle
}

// source runs one Source while this worker holds its lease. A source reads no topic: its lease is of partition 0
// of no topic, and its offsets number its offers.
type source struct {
	eng  *Engine
	spec Source
	log  *slog.Logger
	wake chan struct{} // a lease was granted

	mu      sync.Mutex
	lease   ledger.Lease // Epoch 0: not held
	end     context.CancelFunc
	running chan struct{} // closed when the function has returned; nil: it never ran
	idle    bool
	stopped bool
	paused  paused
	failed  error
}

func newSource(e *Engine, spec Source) *source {
	return &source{eng: e, spec: spec, log: e.log.With("agent", spec.Name), wake: make(chan struct{}, 1)}
}

// run runs the source each time its lease is granted, until ctx ends.
func (s *source) run(ctx context.Context) {
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		lease, run, ok := s.begin(ctx)
		if !ok {
			continue
		}
		err := s.runOnce(run, lease)
		lost := run.Err() != nil
		s.lost(lease.Fence)
		if ctx.Err() != nil || s.isStopped() {
			return
		}
		if lost && err == nil {
			continue
		}
		if err == nil {
			err = errors.New("it ended by itself")
		}
		if class := fault.ClassOf(err); class == fault.Fatal || class == fault.Permanent {
			s.fail(err)
			return
		}
		failures++
		s.log.Warn("source failed; it starts again", "error", err, "failures", failures)
		if !sleep(ctx, backoff(failures, time.Second, 30*time.Second, s.eng.opts.Rand)) {
			return
		}
	}
}

// begin makes the context of a run under the lease that is held now, if one is.
func (s *source) begin(ctx context.Context) (ledger.Lease, context.Context, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused.is {
		s.lease.Epoch = 0 // the next round gives it back
	}
	if s.stopped || s.lease.Epoch == 0 {
		return ledger.Lease{}, nil, false
	}
	run, end := context.WithCancel(ctx)
	s.end, s.running = end, make(chan struct{})
	return s.lease, run, true
}

// runOnce runs the source's function under one lease. One that goes on after it was told to end is left behind, and
// the source with it.
func (s *source) runOnce(ctx context.Context, lease ledger.Lease) error {
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	f := &Feed{source: s, ctx: ctx, fence: lease.Fence, next: lease.Next}
	if n := len(lease.Finished); n > 0 {
		// Offers that never came left holes. They are numbers, nothing is missing.
		f.next = lease.Finished[n-1].To + 1
		if _, err := s.eng.opts.Ledger.Skip(ctx, lease.Fence, f.next); err != nil {
			close(running)
			return fmt.Errorf("move past numbers that were never used: %w", err)
		}
	}
	s.eng.relay.adopt(lease.Fence, lease.Seq)
	defer s.eng.relay.leave(lease.Fence)
	done := make(chan error, 1)
	go func() {
		defer close(running)
		done <- safely(func() error { return s.spec.Run(ctx, f) })
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case <-done: //nolint:errcheck // how it ends once it was told to doesn't matter
		return nil
	case <-time.After(s.eng.opts.Drain):
		return fault.Fatalf("it was told to end and hasn't in %s", s.eng.opts.Drain)
	}
}

func (s *source) fail(err error) {
	s.mu.Lock()
	s.failed = err
	s.mu.Unlock()
	s.log.Error("source stopped", "error", err)
	s.eng.opts.Notify(Notice{Time: time.Now(), Kind: NoticeFailed, Agent: s.spec.Name, Text: err.Error()})
}

func (s *source) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// key is the lease of a source.
func (s *source) key() ledger.Key { return ledger.Key{Group: s.spec.Name} }

// take acquires the source's lease unless it's held.
func (s *source) take(ctx context.Context, leases []ledger.Lease) {
	for _, l := range leases {
		if l.Key == s.key() && l.Held && l.Owner != s.eng.opts.Worker {
			return
		}
	}
	s.mu.Lock()
	wanted := s.lease.Epoch == 0 && s.failed == nil && !s.stopped && !s.paused.is && mayRun(s.spec.Pool, s.eng.opts.Pool)
	s.mu.Unlock()
	if !wanted {
		return
	}
	lease, err := s.eng.opts.Ledger.Acquire(ctx, s.key(), "", s.eng.opts.Worker, 0, s.eng.opts.LeaseTime)
	if err != nil {
		if !errors.Is(err, ledger.ErrHeld) && ctx.Err() == nil {
			s.log.Warn("lease can't be taken", "error", err)
		}
		return
	}
	s.mu.Lock()
	s.lease = lease
	s.mu.Unlock()
	signal(s.wake)
}

// lost ends the source's run under a lease: someone else has it, or the run is over.
func (s *source) lost(f ledger.Fence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease.Epoch != f.Epoch {
		return
	}
	s.lease.Epoch, s.idle = 0, false
	if s.end != nil {
		s.end()
	}
}

func (s *source) keepOnly(held map[ledger.Key]int64) {
	s.mu.Lock()
	f := s.lease.Fence
	s.mu.Unlock()
	if f.Epoch != 0 && held[f.Key] != f.Epoch {
		s.lost(f)
	}
}

// stop ends the source for good.
func (s *source) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	if s.end != nil {
		s.end()
	}
}

func (s *source) isStopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped
}

// awaitStopped waits until the source's function has returned, at most until ctx ends.
func (s *source) awaitStopped(ctx context.Context) {
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	if running == nil {
		return
	}
	select {
	case <-running:
	case <-ctx.Done():
		s.log.Warn("source didn't stop in time")
	}
}

func (s *source) fences() []ledger.Fence {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lease.Epoch == 0 {
		return nil
	}
	return []ledger.Fence{s.lease.Fence}
}

// settled tells whether the source has offered all that there is: this worker's, or, where another one has its lease,
// as far as can be told.
func (s *source) settled(leases []ledger.Lease) bool {
	s.mu.Lock()
	paused := s.paused.is
	s.mu.Unlock()
	if paused || s.failure() != nil || s.isIdle() {
		return true
	}
	for _, l := range leases {
		if l.Key == s.key() && l.Held && l.Owner != s.eng.opts.Worker {
			return true
		}
	}
	return false
}

func (s *source) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle
}
