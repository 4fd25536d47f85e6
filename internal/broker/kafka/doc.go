// Package kafka speaks the Kafka protocol for package broker: to Apache Kafka,
// to Redpanda and to the embedded broker alike. It is the only package that
// imports kgo and kadm, and it imports nothing of ours but broker and event.
//
// It keeps no state that a crash could lose: positions belong to the ledger,
// and a record whose done function was not called with a nil error is, for all
// that its sender knows, not published.
//
// # Lock order
//
// reader.mu and publisher.mu are leaves of ours: kgo is called under them, but
// no callback of kgo takes them, except the producer's promises, which run on
// kgo's own goroutine without any lock of it.
package kafka
