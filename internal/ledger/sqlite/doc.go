// Package sqlite owns the embedded ledger: package ledger's interface on one
// SQLite file, in pure Go. Only internal/app, tests and benchmarks import it;
// it imports nothing of ours but ledger, event, fault and sabotage.
//
// # One writer
//
// A file has one process (a lock file beside it says so), the process one
// writing connection, and whoever writes holds it alone:
//
//	Commit, Resolve, Setup ──▶ writer ──▶ BEGIN IMMEDIATE … COMMIT   (WAL, synchronous=FULL)
//	Acquire, Recall, Beat… ──▶ queue ──▶ writer                      (those that wait share a transaction)
//	Read, Seen, Totals…    ──▶ readers                               (snapshots; they hold nobody up)
//
// # A user's effect
//
// The effects of a batch run on a goroutine of their own, on the writer, while
// Commit watches the time. An effect that runs over it is interrupted; where its
// Go code doesn't return either, its handle is taken away and the batch goes on
// without it. An authorizer refuses statements that would end or nest the
// transaction or write to our own tables, and after each statement the ledger
// looks whether the transaction is still open, since SQLite itself ends it for
// some errors.
//
// There are no savepoints: a step that fails takes the transaction with it, and
// the batch runs again without that step.
//
// # Lock order
//
// Writer, then DB.mu; txn.gate, then attempt.mu. Nothing waits for the writer
// while it holds a lock.
//
// # What survives a crash
//
// Whatever a COMMIT that returned nil has written: SQLite has synced its log by
// then. A COMMIT that fails is asked after by reading its leases back, which
// count their commits; only where that fails too is the outcome unknown, and
// then nothing is written until it is known.
package sqlite
