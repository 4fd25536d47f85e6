// Package postgres owns the production ledger: package ledger's interface on
// PostgreSQL 14 or newer. Only internal/app, tests and benchmarks import it; it
// imports nothing of ours but ledger, event, fault and sabotage.
//
// # One commit
//
//	BEGIN, time-outs, leases FOR NO KEY UPDATE in the order of their ids    one round trip
//	seen, histories and backlog rows that the batch asks about              one, none where there's nothing to ask
//	the users' statements, in order                                         one each
//	seen, histories, outbox, backlog, leases                                one
//	COMMIT                                                                  one
//
// Between the first two and the last two, how each record ends is decided in
// memory, step by step. There are no savepoints: PostgreSQL fails a transaction
// with its first failing statement, so a step that fails takes the transaction
// with it, and the batch runs again without that step. Ids go into seen before
// the users' statements run, so that a copy of an event waits for the other
// one's commit instead of breaking a key of the user's.
//
// Other processes commit at the same time. Commits of one lease follow each
// other, by the row's lock across processes and by a turnstile within this one.
// A deadlock or a serialization failure runs the batch again, whole.
//
// # Time-outs
//
// Whoever stops in the middle of a transaction must not hold its rows for longer
// than a lease lasts. So every transaction has an idle time-out and a statement
// time-out below the lease time, set within the transaction: that holds behind a
// pooler too, where session settings belong to nobody. Heartbeats write one row
// of their own and no lease, so a long commit never holds them up.
//
// # Connections
//
// At most Options.MaxConns, of which those who run users' code (commits, reads)
// have a bounded share each, so that heartbeats always find one.
//
// # Lock order
//
// Turnstile, then a share of the connections, then a connection, then DB.mu;
// txn.gate, then attempt.mu. In the database: leases by id, then carried rows and
// seen by key, then whatever the users' statements lock. DB.mu and memory.mu are
// never held over a call.
//
// # What survives a crash
//
// Whatever a COMMIT that returned nil has written: synchronous_commit isn't off.
// A COMMIT whose answer is lost has an unknown outcome, and stays so until
// Resolve has asked, under the locks of its leases and on the primary, what became
// of its transaction's number, and compared how many commits each lease counts.
// Until then nothing else is committed under them by this process. A lease that
// counts fewer than this process remembers is a database that went back.
package postgres
