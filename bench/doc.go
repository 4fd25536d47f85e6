// Package bench owns the benchmarks of the whole path of a record, on the
// embedded pair on disk: steps a second beside loops written by hand, the
// latency that the engine adds, what the ledger keeps, and what idling costs.
// It holds no product code, and nothing of the product may import it. Nothing
// of a run survives it.
//
// Contenders of one figure run in turn within one iteration, so that a busy
// machine slows them all; the figure to look at is their ratio.
// docs/benchmarks.md says how to run them and how to read what they print.
package bench
