// Package pair runs workers of the built program, swarmlog run, on real Kafka
// and PostgreSQL, as operators do: several processes, killed and cut off, and
// looks from outside at what they did. Each test has a database and topics of
// its own. It must not import what it tests.
package pair
