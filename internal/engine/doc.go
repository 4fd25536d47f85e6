// Package engine owns the path of a record through a worker: it takes leases,
// reads the partitions that they name, queues records in the lanes of their
// aggregates, runs handlers, commits what they want done in groups, and
// publishes what was committed.
//
//	fetch ─▶ admit ─▶ lane ─▶ work ─▶ committer ─▶ settle ─▶ next of the lane
//	                                      │
//	                                      └─ outbox ─▶ relay ─▶ topics
//
// group.go reads and admits, lane.go queues, work.go runs handlers, commit.go
// commits, settle.go acts on the results, relay.go publishes. Beside the path:
// lease.go keeps what this worker owns, view.go is what it sees of the others,
// share.go decides what it takes and gives up, planner.go plans for all workers,
// member.go goes by a Kafka group instead, partition.go takes and drops
// partitions, handover.go gives them up in order, carried.go waits for what their
// last owner still carries, quiet.go deals with workers and handlers that aren't
// heard of, journal.go tells what happened,
// backlog.go lets what waits go on, quota.go bounds it, hot.go sends what a hot
// aggregate has too much of there, circuit.go pauses while something is down,
// pause.go and look.go act on what people decide, trouble.go deals with partitions
// that can't be read, dead.go writes dead letters, feed.go serves sources,
// topics.go notices what others do to topics, estate.go publishes what the steps
// of a topic that is gone emitted, misrouted.go passes over and forwards what
// stands where its key doesn't lead, shadow.go runs a version beside an agent.
//
// It sees the ledger, the broker and the models through interfaces and must not
// import an implementation. Nothing here survives a crash, and nothing needs
// to: progress, outbox and backlog are in the ledger, the rest is in the log.
//
// # Lock ordering
//
// group.mu is the only lock held while calling into another part: committer.mu,
// relay.mu, the reader, Notify and Meter come under it, never the other way
// round. None of ours is held during I/O, but for topics.mu, which is for looks to
// take turns, and under which nothing else is taken.
package engine
