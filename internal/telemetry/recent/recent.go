// Package recent owns the recent happenings of a run: a bounded ring in memory
// of what a person would want to see go by, such as dead letters, retries and
// leases that moved. Readers follow it by number; one that is too slow misses
// the oldest and learns how many, and nobody ever waits for a reader. Nothing
// of it survives a crash: the log and the ledger hold what matters.
package recent

import (
	"context"
	"sync"
	"time"
)

// Level says how much a happening asks for attention.
type Level string

const (
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Happening is one thing that happened. What doesn't apply stays empty.
type Happening struct {
	ID      uint64    `json:"id" doc:"Counts from 1 in this process"`
	Time    time.Time `json:"time"`
	Level   Level     `json:"level" enum:"info,warn,error"`
	Kind    string    `json:"kind" doc:"What happened, such as document, dead, retry, lease, waiting or warning"`
	Agent   string    `json:"agent"`
	Subject string    `json:"subject" doc:"What it is about, such as a document's name"`
	Text    string    `json:"text" doc:"What happened, in words"`

	Topic     string `json:"topic" doc:"Where it happened; empty where it is about no record, and partition and offset say nothing then"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
}

// Ring holds the last happenings. All methods are safe for concurrent use.
type Ring struct {
	now func() time.Time

	mu     sync.Mutex
	items  []Happening // a ring: the happening with number n is at (n-1) % len
	last   uint64      // number of the newest, 0 before the first
	wakeup chan struct{}
}

// New makes a ring of size happenings (at least 1). now is the clock.
func New(size int, now func() time.Time) *Ring {
	return &Ring{now: now, items: make([]Happening, max(size, 1))}
}

// Add notes a happening; its number is given, and its time where it has none.
// It never waits. It isn't meant for each step: thousands a second would hide
// what matters.
func (r *Ring) Add(h Happening) {
	if h.Time.IsZero() {
		h.Time = r.now()
	}
	if h.Level == "" {
		h.Level = Info
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	h.ID = r.last
	r.items[(r.last-1)%uint64(len(r.items))] = h
	if r.wakeup != nil {
		close(r.wakeup)
		r.wakeup = nil
	}
}

// After returns the happenings with numbers above after, oldest first, and how
// many of those are gone from the ring. A number that was never given (a reader
// of an earlier process) counts as 0.
func (r *Ring) After(after uint64) (items []Happening, missed uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if after > r.last {
		after = 0
	}
	first := after + 1
	if size := uint64(len(r.items)); r.last >= size && first < r.last-size+1 {
		first = r.last - size + 1
		missed = first - after - 1
	}
	if first > r.last {
		return nil, 0
	}
	items = make([]Happening, 0, r.last-first+1)
	for n := first; n <= r.last; n++ {
		items = append(items, r.items[(n-1)%uint64(len(r.items))])
	}
	return items, missed
}

// Wait returns when there is a happening with a number above after, or with the
// context's error.
func (r *Ring) Wait(ctx context.Context, after uint64) error {
	for {
		r.mu.Lock()
		if r.last > after {
			r.mu.Unlock()
			return nil
		}
		if r.wakeup == nil {
			r.wakeup = make(chan struct{})
		}
		wakeup := r.wakeup
		r.mu.Unlock()
		select {
		case <-wakeup:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Last is the number of the newest happening, 0 before the first.
func (r *Ring) Last() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}
