package status

import (
	"context"
	"time"
)

// Cached asks source at most once per age, however many look at once: the
// others get the same answer. Errors aren't kept. The answer is shared, so its
// lists are to be read only. now is the clock, such as time.Now.
func Cached(source Source, age time.Duration, now func() time.Time) Source {
	c := &cache{source: source, age: age, now: now, turn: make(chan struct{}, 1)}
	return c
}

type cache struct {
	source Source
	age    time.Duration
	now    func() time.Time
	turn   chan struct{} // holds one token while somebody reads or fills the rest

	at   time.Time
	last Status
}

func (c *cache) Status(ctx context.Context) (Status, error) {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return Status{}, ctx.Err()
	}
	now := c.now()
	if !c.at.IsZero() && now.Sub(c.at) < c.age {
		return c.last, nil
	}
	s, err := c.source.Status(ctx)
	if err != nil {
		return Status{}, err
	}
	s.Complete()
	c.last, c.at = s, now
	return s, nil
}
