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
// committed before; then it's a duplicate and nothing is done. It returns when the commit is durable. An error says
// that nothing was committed; it may be offered again. Safe for concurrent use: offers that wait at the same time
// share a commit.
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

	mu      sync.Mutex
	fence   ledger.Fence // Epoch 0: not held
	end     context.CancelFunc
	idle    bool
	stopped bool
	failed  error
	granted chan ledger.Lease
	done    sync.WaitGroup
}

func newSource(e *Engine, spec Source) *source {
	return &source{eng: e, spec: spec, log: e.log.With("agent", spec.Name), granted: make(chan ledger.Lease, 1)}
}

// run runs the source each time its lease is granted, until ctx ends.
func (s *source) run(ctx context.Context) {
	for failures := 0; ; {
		var lease ledger.Lease
		select {
		case <-ctx.Done():
			return
		case lease = <-s.granted:
		}
		run, end := context.WithCancel(ctx)
		s.mu.Lock()
		if s.stopped {
			end()
		}
		s.end = end
		s.mu.Unlock()
		s.eng.relay.adopt(lease.Fence, lease.Seq)
		f := &Feed{source: s, ctx: run, fence: lease.Fence, next: lease.Next}
		if n := len(lease.Finished); n > 0 { // offers that never came leave holes; they are numbers, nothing is missing
			f.next = lease.Finished[n-1].To + 1
		}
		s.done.Add(1)
		err := safely(func() error { return s.spec.Run(run, f) })
		s.done.Done()
		ended := run.Err() != nil
		end()
		s.eng.relay.leave(lease.Fence)
		if ctx.Err() != nil || s.isStopped() {
			return
		}
		if ended { // the lease was lost
			continue
		}
		if err == nil {
			err = errors.New("it ended by itself")
		}
		if fault.ClassOf(err) == fault.Fatal || fault.ClassOf(err) == fault.Permanent {
			s.fail(err)
			return
		}
		failures++
		s.log.Warn("source failed; it starts again", "error", err, "failures", failures)
		s.lost(lease.Fence)
		if !sleep(ctx, backoff(failures, time.Second, 30*time.Second, s.eng.opts.Rand)) {
			return
		}
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
func (s *source) take(ctx context.Context) {
	s.mu.Lock()
	wanted := s.fence.Epoch == 0 && s.failed == nil && !s.stopped
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
	s.fence = lease.Fence
	s.mu.Unlock()
	s.granted <- lease
}

// lost ends the running source: someone else has its lease, or it's to be started again.
func (s *source) lost(f ledger.Fence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fence.Epoch != f.Epoch {
		return
	}
	s.fence.Epoch, s.idle = 0, false
	if s.end != nil {
		s.end()
	}
}

func (s *source) keepOnly(held map[ledger.Key]int64) {
	s.mu.Lock()
	f := s.fence
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
	done := make(chan struct{})
	go func() { s.done.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		s.log.Warn("source didn't stop in time")
	}
}

func (s *source) fences() []ledger.Fence {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fence.Epoch == 0 {
		return nil
	}
	return []ledger.Fence{s.fence}
}

func (s *source) isIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle
}
