// Package topics holds tests of what others do to topics while agents read
// them: they grow, lose records to retention, and are deleted and created anew;
// and of what agents do over several topics: keys that are spread, and versions
// that run beside others. Each runs on the embedded pair and on real Kafka with
// a real PostgreSQL.
package topics
