package killkit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"
)

// SeedVar is the environment variable that repeats a schedule.
const SeedVar = "SWARMLOG_SEED"

// Schedule decides by a seed when and to whom things happen. The same seed makes the same decisions; what the
// processes make of them is for the machine to decide. It is safe for concurrent use.
type Schedule struct {
	Seed uint64

	mu  sync.Mutex
	rnd *rand.Rand
}

// NewSchedule makes a schedule and prints its seed with printf (such as t.Logf). Seed 0 takes the seed from
// SWARMLOG_SEED, or a random one.
func NewSchedule(seed uint64, printf func(format string, args ...any)) (*Schedule, error) {
	if v := os.Getenv(SeedVar); seed == 0 && v != "" {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read %s=%q: %w: set it to a number, or not at all", SeedVar, v, err)
		}
		seed = n
	}
	for seed == 0 {
		seed = rand.Uint64()
	}
	printf("schedule of seed %d; to repeat it: %s=%d", seed, SeedVar, seed)
	return &Schedule{Seed: seed, rnd: rand.New(rand.NewPCG(seed, 0))}, nil
}

// Between is a time from least to most.
func (s *Schedule) Between(least, most time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return least + time.Duration(s.rnd.Int64N(int64(most-least)+1))
}

// Pick is a number from 0 to n-1.
func (s *Schedule) Pick(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rnd.IntN(n)
}

// Repeat calls do n times, each after a time from least to most, and stops at its first error.
func (s *Schedule) Repeat(ctx context.Context, n int, least, most time.Duration, do func(i int) error) error {
	for i := range n {
		timer := time.NewTimer(s.Between(least, most))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		if err := do(i); err != nil {
			return err
		}
	}
	return nil
}

// Kill kills and restarts a process n times, each after it has been ready for a time from least to most.
func (s *Schedule) Kill(ctx context.Context, p *Process, n int, least, most time.Duration) error {
	return s.Repeat(ctx, n, least, most, func(int) error { return p.Restart(ctx) })
}
