// Package e2e runs the built program as its users do, as a process on real
// folders, and checks from outside what it did: by its commands, its HTTP
// address, its exit codes, and its ledger read-only. It must not import what it
// tests, but for the tables that it reads. Nothing survives a test but what the
// test was told to keep.
//
// The short form runs with all other tests. The full one, thousands of
// documents and twenty kills, is `make e2e-full`.
package e2e
