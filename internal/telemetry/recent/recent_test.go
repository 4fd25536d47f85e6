package recent_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/internal/telemetry/recent"
)

// Whoever follows the ring sees each happening once, in order, or is told that it was missed.
func TestFollowingAccountsForEachHappening(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 20).Draw(t, "size")
		r := recent.New(size, time.Now)
		var added, cursor, accounted uint64
		t.Repeat(map[string]func(*rapid.T){
			"add": func(*rapid.T) {
				added++
				r.Add(recent.Happening{Text: fmt.Sprint(added)})
			},
			"read": func(t *rapid.T) {
				items, missed := r.After(cursor)
				accounted += missed
				for _, h := range items {
					accounted++
					if h.ID != accounted || h.Text != fmt.Sprint(accounted) {
						t.Fatalf("got number %d %q as the %d-th", h.ID, h.Text, accounted)
					}
					cursor = h.ID
				}
				if accounted != added {
					t.Fatalf("accounted for %d of %d", accounted, added)
				}
				if len(items) > size {
					t.Fatalf("%d items from a ring of %d", len(items), size)
				}
			},
		})
	})
}

func TestAReaderOfAnEarlierProcessStartsAfresh(t *testing.T) {
	r := recent.New(4, time.Now)
	r.Add(recent.Happening{Text: "a"})
	items, missed := r.After(700)
	if len(items) != 1 || missed != 0 {
		t.Fatalf("%d items, %d missed; want the one that there is", len(items), missed)
	}
}

func TestWaitWakesAllAndEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := recent.New(4, time.Now)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := r.Wait(t.Context(), 0); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		r.Add(recent.Happening{Text: "now"})
		wg.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Wait(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("waiting for what never comes ended with %v", err)
		}
		items, _ := r.After(0)
		if h := items[0]; h.Level != recent.Info || h.Time.IsZero() {
			t.Fatalf("level %q and time %v weren't filled in", h.Level, h.Time)
		}
	})
}

func BenchmarkAdd(b *testing.B) {
	r := recent.New(512, time.Now)
	h := recent.Happening{Kind: "document", Subject: "a.pdf", Text: "read"}
	b.ReportAllocs()
	for b.Loop() {
		r.Add(h)
	}
}
