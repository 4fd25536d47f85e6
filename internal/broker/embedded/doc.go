// Package embedded runs a Kafka broker inside this process, for a laptop: one
// node, on loopback, with its log in a folder or in memory. It is franz-go's
// kfake under rules that make it safe to rest on, and it owns that folder.
// Nothing here reads or writes records: package kafka does, over the protocol.
//
// # What survives
//
// Every record that was acknowledged, through a kill of the process and through
// Close: writes are synchronous. After a kill, and only then, a producer that
// sends again may leave a copy of its records, or copies behind later ones,
// since the window that tells copies is saved by Close alone. Transactions are
// not atomic across a kill. A power failure is survived as far as the file
// system keeps what was synced.
//
// # Rules
//
// They are kept by the broker itself, so that they hold for every client:
//
//   - Topics are created through CreateTopics alone, never by being asked for.
//   - cleanup.policy is delete; compaction is refused.
//   - Nothing is ever removed from a log: retention settings of new topics are
//     ignored, later changes and DeleteRecords are refused. A log that emptied
//     would start again at offset 0, and readers would skip what follows.
//   - Share groups aren't offered.
//   - One server per folder: the folder is locked.
//   - Below Options.MinFree new topics are refused. Below a quarter of it records
//     are, with an error that producers retry until there's room.
//   - A request of a size or kind that no client sends ends its connection.
//
// What it can't do: quotas aren't enforced, there is one replica,
// min.insync.replicas isn't checked.
package embedded
