package engine

import "time"

// backoff is the wait after the nth failed attempt, counted from 1: exponential with full jitter, which is a random
// part of a bound that doubles up to a limit, so that many who failed together don't come back together (Brooker,
// "Exponential Backoff And Jitter", 2015).
func backoff(attempt int, first, limit time.Duration, rand func() float64) time.Duration {
	bound := limit
	if attempt < 32 && first<<(attempt-1) > 0 {
		bound = min(first<<(attempt-1), limit)
	}
	return max(time.Duration(rand()*float64(bound)), time.Millisecond)
}
