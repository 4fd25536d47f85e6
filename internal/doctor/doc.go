// Package doctor owns what a live cluster and database can break of the
// promises: a table of checks, each a small function over a Snapshot that says
// line by line what breaks which promise, and the command that mends it.
//
// It is pure: no I/O, no clock, no goroutine. Package app takes the Snapshot. Of
// ours it imports route alone, and it keeps no state.
//
// A check's name is stable: people accept a risk by it, and docs/doctor.md
// describes it.
package doctor
