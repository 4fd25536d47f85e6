// Package plan decides which worker each partition is wanted for. It is pure:
// no clock, no I/O, no randomness, and the same answer for the same question,
// in whatever order it is asked.
//
// It imports nothing of ours.
package plan
