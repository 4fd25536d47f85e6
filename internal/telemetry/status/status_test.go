package status_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/internal/telemetry/status"
)

func ptr[T any](v T) *T { return &v }

func TestCompleteSumsLagAndKnowsWhatItDoesNotKnow(t *testing.T) {
	s := status.Status{Agents: []status.Agent{
		{Partitions: []status.Partition{{Lag: ptr(int64(3))}, {Lag: ptr(int64(0))}}},
		{Partitions: []status.Partition{{Lag: ptr(int64(4))}}},
	}}
	s.Complete()
	if s.Remaining == nil || *s.Remaining != 7 {
		t.Fatalf("remaining is %v, want 7", s.Remaining)
	}
	s.Agents[0].Partitions[1].Lag = nil
	s.Complete()
	if s.Remaining != nil {
		t.Fatalf("remaining is %d although a partition's lag is unknown", *s.Remaining)
	}
}

func TestJSONHoldsNoNullListAndAtMost100DeadLetters(t *testing.T) {
	s := status.Status{Agents: []status.Agent{{}}, DeadLetters: make([]status.DeadLetter, 250)}
	s.Complete()
	if len(s.DeadLetters) != status.MaxDeadLetters {
		t.Errorf("%d dead letters, want %d", len(s.DeadLetters), status.MaxDeadLetters)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"agents", "warnings", "dead_letters", "health", "partitions", "lanes"} {
		if strings.Contains(string(b), `"`+field+`":null`) || !strings.Contains(string(b), `"`+field+`":[`) {
			t.Errorf("%s isn't a list in %.300s…", field, b)
		}
	}
	if !strings.Contains(string(b), `"time_left_seconds":null`) {
		t.Error("an unknown time left must be null")
	}
}

func TestMeterTellsTheRateOfASteadyStreamAtAnyRhythm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		perSecond := rapid.Int64Range(1, 100_000).Draw(t, "rate")
		gaps := rapid.SliceOfN(rapid.IntRange(1, 30_000), 2, 60).Draw(t, "gaps in ms")
		m := status.NewMeter(10 * time.Second)
		start := time.Unix(1_700_000_000, 0)
		at := start
		m.Observe(at, 0)
		var got float64
		for _, g := range gaps {
			at = at.Add(time.Duration(g) * time.Millisecond)
			got = m.Observe(at, int64(float64(perSecond)*at.Sub(start).Seconds()))
		}
		if at.Sub(start) < time.Second {
			return // whole records over a short time say little
		}
		// A count is whole: over the shortest span that is kept (0.1 s) rounding is worth up to 10 a second.
		if math.Abs(got-float64(perSecond)) > 10+0.01*float64(perSecond) {
			t.Fatalf("rate %f, want %d", got, perSecond)
		}
	})
}

func TestMeterForgetsWhatIsOlderThanItsWindow(t *testing.T) {
	m := status.NewMeter(10 * time.Second)
	at := time.Unix(1_700_000_000, 0)
	for i := range 30 {
		m.Observe(at.Add(time.Duration(i)*time.Second), int64(i)*100)
	}
	at = at.Add(29 * time.Second)
	var rate float64
	for i := 1; i <= 11; i++ {
		rate = m.Observe(at.Add(time.Duration(i)*time.Second), 2900)
	}
	if rate != 0 {
		t.Fatalf("rate is %f after 11 quiet seconds", rate)
	}
	if r := m.Observe(at.Add(12*time.Second), 5); r != 0 {
		t.Fatalf("rate is %f after the total fell", r)
	}
}

func TestTimeLeft(t *testing.T) {
	for _, c := range []struct {
		name      string
		remaining *int64
		rate      float64
		want      *float64
	}{
		{"unknown lag", nil, 10, nil},
		{"nothing remains", ptr(int64(0)), 0, ptr(0.0)},
		{"standing still", ptr(int64(5)), 0, nil},
		{"moving", ptr(int64(50)), 10, ptr(5.0)},
	} {
		got := status.TimeLeft(c.remaining, c.rate)
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestCachedAsksOnceForAllWhoLookAtOnce(t *testing.T) {
	var asked atomic.Int64
	var clock atomic.Int64
	src := status.Cached(status.SourceFunc(func(context.Context) (status.Status, error) {
		asked.Add(1)
		return status.Status{Agents: []status.Agent{{}}}, nil
	}), time.Second, func() time.Time { return time.Unix(1_700_000_000, clock.Load()) })

	look := func() {
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				s, err := src.Status(context.Background())
				if err != nil || s.Agents[0].Lanes == nil {
					t.Errorf("status %v, error %v", s, err)
				}
				s.Complete() // what readers do: it must not write to what they share
			})
		}
		wg.Wait()
	}
	look()
	if n := asked.Load(); n != 1 {
		t.Fatalf("asked %d times, want 1", n)
	}
	clock.Store(int64(time.Second))
	look()
	if n := asked.Load(); n != 2 {
		t.Fatalf("asked %d times, want 2 once the first answer is old", n)
	}
}

func TestCachedKeepsNoErrorAndLeavesWhenAskedTo(t *testing.T) {
	fail := true
	enter, leave := make(chan struct{}), make(chan struct{})
	src := status.Cached(status.SourceFunc(func(context.Context) (status.Status, error) {
		if fail {
			return status.Status{}, errors.New("locked")
		}
		close(enter)
		<-leave
		return status.Status{}, nil
	}), time.Hour, time.Now)
	if _, err := src.Status(context.Background()); err == nil {
		t.Fatal("no error")
	}
	fail = false
	done := make(chan error)
	go func() { _, err := src.Status(context.Background()); done <- err }()
	<-enter
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := src.Status(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("a caller whose context ended got %v while another one was asking", err)
	}
	close(leave)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
