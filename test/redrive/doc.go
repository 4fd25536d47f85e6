// Package redrive holds the test of what waits: an aggregate dies, ten thousand
// more of its events and a million of others follow, it's let go on while new
// ones come and leases move. It runs on the embedded pair and on real Kafka with
// a real PostgreSQL, small; at its full size where SWARMLOG_REDRIVE is full
// (make redrive-full).
package redrive
