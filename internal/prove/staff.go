package prove

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/internal/killkit"
	"github.com/swarmlog/swarmlog/ledger"
)

// staff are the workers of a proof on a pair, and what happens to them.
type staff struct {
	*proof
	ground   pairGround
	workers  []*killkit.Process
	schedule *killkit.Schedule

	mu    sync.Mutex
	busy  []bool // something happens to the worker
	done  map[Fault]int
	kills []killed
	err   error
}

func (p *proof) startStaff(ctx context.Context, g pairGround) (*staff, error) {
	schedule, err := killkit.NewSchedule(p.Seed, func(string, ...any) {})
	if err != nil {
		return nil, err
	}
	s := &staff{proof: p, ground: g, schedule: schedule, busy: make([]bool, p.Workers), done: map[Fault]int{}}
	for n := range p.Workers {
		w, err := killkit.Start(ctx, p.command(n))
		if err != nil {
			s.killAll()
			return nil, err
		}
		s.workers = append(s.workers, w)
	}
	return s, nil
}

func (s *staff) killAll() {
	for _, w := range s.workers {
		_ = w.Kill() // it has ended by itself where all went well
	}
}

// endAll ends all workers in order.
func (s *staff) endAll() error {
	var errs []error
	for _, w := range s.workers {
		errs = append(errs, w.Terminate(time.Minute))
	}
	return errors.Join(errs...)
}

func (s *staff) faults() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, d := range s.done {
		n += d
	}
	return n
}

// fire lets a fault happen to some worker every so often until ctx ends, and returns once all workers are well. At
// least one worker is always left alone.
func (s *staff) fire(ctx context.Context) error {
	var under sync.WaitGroup
	defer under.Wait()
	for turn := 0; wait(ctx, nil, s.Pair.Every); turn++ {
		s.mu.Lock()
		err := s.err
		s.mu.Unlock()
		if err != nil {
			return err
		}
		n, ok := s.victim()
		if !ok {
			continue
		}
		fault := s.Pair.Faults[turn%len(s.Pair.Faults)]
		under.Go(func() {
			err := s.befall(context.WithoutCancel(ctx), n, fault)
			s.mu.Lock()
			defer s.mu.Unlock()
			s.busy[n] = false
			s.done[fault]++
			if err != nil && s.err == nil {
				s.err = fmt.Errorf("%s worker %d: %w", fault, n+1, err)
			}
		})
	}
	under.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// victim picks a worker that nothing happens to, unless it's the last of those.
func (s *staff) victim() (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var well []int
	for n, busy := range s.busy {
		if !busy {
			well = append(well, n)
		}
	}
	if len(well) < 2 {
		return 0, false
	}
	n := well[s.schedule.Pick(len(well))]
	s.busy[n] = true
	return n, true
}

// befall lets one fault happen, and returns once the worker is at work again.
func (s *staff) befall(ctx context.Context, n int, f Fault) error {
	w := s.workers[n]
	switch f {
	case FaultKill:
		if err := s.noteKill(ctx, n); err != nil {
			return err
		}
		if err := w.Kill(); err != nil {
			return err
		}
		wait(ctx, nil, s.schedule.Between(0, 2*s.Pair.LeaseTime))
		return w.Restart(ctx)
	case FaultPause:
		if err := w.Pause(); err != nil {
			return err
		}
		wait(ctx, nil, s.schedule.Between(s.Pair.LeaseTime/2, 3*s.Pair.LeaseTime))
		return w.Resume()
	default:
		if err := w.Terminate(time.Minute); err != nil {
			return err
		}
		return w.Restart(ctx)
	}
}

// noteKill notes what a worker holds that is about to be killed.
func (s *staff) noteKill(ctx context.Context, n int) error {
	leases, err := s.ground.ledger.Leases(ctx, "")
	if err != nil {
		return err
	}
	k := killed{}
	for _, l := range leases {
		if l.Owner == fmt.Sprintf("w%d", n+1) {
			k.owned = append(k.owned, ledger.Key{Group: l.Group, Partition: l.Partition})
		}
	}
	k.at = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kills = append(s.kills, k)
	return nil
}
