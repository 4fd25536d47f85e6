// Package letters owns what people do with dead letters: list them, show one,
// have them handled again (redrive), pass over them (skip) and export them. It
// works over the interfaces of broker and ledger, reads topics, and never
// publishes to one: what a person decides is noted in the ledger, and the owner
// of the partition does it.
//
// A letter is read from a dead-letter topic; whether it still waits for a
// person, and what waits behind it, is the ledger's to say. An aggregate that
// is parked behind a record whose letter isn't in the topic (not published yet,
// or beyond the topic's retention) is listed from the backlog's row.
//
// # Memory
//
// Topics are streamed twice: first to learn which letter of a record is the
// last one, since a record that was redriven may die again and a crash may make
// copies, then to look at the letters. What is held meanwhile is 16 bytes for
// each record that died, less where they're neighbours, and about 100 bytes for
// each parked aggregate.
//
// # Crashes
//
// Nothing is kept here. Each act is one transaction of the ledger and harmless
// when done twice, so an interrupted run is continued by running it again.
package letters
