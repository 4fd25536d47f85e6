package postgres

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// watched is what the goroutine that runs an attempt and the one that watches it share.
//
// An effect that doesn't return is dealt with in this order, so that the connection never has two users:
//  1. The watcher sees under mu that the effect has run too long, and marks the attempt abandoned.
//  2. It ends ctx and revokes the handle: a running statement is cancelled; later ones are refused.
//  3. From then on the connection is the watcher's. It rolls back and runs the batch again without the step.
//  4. The effect returns at some time; its goroutine finds the attempt abandoned, and ends there.
type watched struct {
	ctx    context.Context // of the effects
	cancel context.CancelFunc

	mu        sync.Mutex
	current   *txn // of the effect that runs; nil between effects
	running   int  // the step whose effect runs
	started   time.Time
	abandoned bool
}

var errAbandoned = errors.New("given up: an effect ran over its time")

// supervise runs the attempt; it returns once the connection is free.
func (a *attempt) supervise(limit time.Duration) error {
	effects := false
	for i, s := range a.batch.Steps {
		effects = effects || (len(s.Effects) > 0 && a.failed[i] == nil)
	}
	if !effects {
		return a.run()
	}
	done := make(chan error, 1)
	go a.runWatched(done)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-timer.C:
			left, step, t := a.overrun(limit)
			if t == nil {
				timer.Reset(left)
				continue
			}
			a.cancel()
			t.revoke()
			s := a.batch.Steps[step]
			a.db.log.Warn("an effect ran over its time; its goroutine is left behind until it returns",
				"group", s.Fence.Group, "partition", s.Fence.Partition, "offset", s.Offset, "limit", limit)
			return &stepFailure{step, fmt.Errorf("effect ran over its limit of %s: %w", limit, context.DeadlineExceeded)}
		}
	}
}

func (a *attempt) runWatched(done chan<- error) {
	returned := false
	defer func() {
		if !returned { // runtime.Goexit: panics were caught
			done <- &stepFailure{a.running, fault.Permanentf("effect ended its goroutine with runtime.Goexit, as t.FailNow does")}
		}
	}()
	err := a.run()
	returned = true
	done <- err
}

// overrun tells how long the watcher may wait, or else which effect has run over its time; that one is abandoned.
func (a *attempt) overrun(limit time.Duration) (left time.Duration, step int, t *txn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.current == nil {
		return limit, 0, nil
	}
	if left = limit - time.Since(a.started); left > 0 {
		return left, 0, nil
	}
	a.abandoned = true
	return 0, a.running, a.current
}

// effect runs one effect of a step, with a handle of its own.
func (a *attempt) effect(i int, f func(context.Context, ledger.Tx) error) error {
	t := newTxn(a.ctx, a.db, a.link.conn(), inCommit)
	a.mu.Lock()
	a.current, a.running, a.started = t, i, time.Now()
	a.mu.Unlock()
	err := call(t.ctx, t, f)
	a.mu.Lock()
	if a.abandoned {
		a.mu.Unlock()
		return errAbandoned
	}
	a.current = nil
	a.mu.Unlock()
	err = t.end(err)
	switch {
	case err == nil:
		return nil
	case t.failure != nil && environmental(t.failure):
		return err // the batch's, not the step's
	}
	return &stepFailure{i, err}
}

// end lets go of what the attempt holds.
func (a *attempt) end() {
	a.cancel()
	a.mu.Lock()
	t := a.current
	a.mu.Unlock()
	if t != nil {
		t.revoke() // its goroutine has ended, or was abandoned
	}
}

// call runs a user's function and turns a panic into an error that says where.
func call(ctx context.Context, t *txn, f func(context.Context, ledger.Tx) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fault.Permanentf("effect panicked%s: %v", panicPlace(), r)
		}
	}()
	return f(ctx, t)
}

// panicPlace finds the function that panicked, from a deferred function.
func panicPlace() string {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	panicking := false
	for {
		f, more := frames.Next()
		inRuntime := strings.HasPrefix(f.Function, "runtime.")
		if panicking && !inRuntime {
			return fmt.Sprintf(" at %s:%d", f.File[strings.LastIndexByte(f.File, '/')+1:], f.Line)
		}
		panicking = panicking || f.Function == "runtime.gopanic"
		if !more {
			return ""
		}
	}
}
