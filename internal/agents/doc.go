// Package agents owns the built-in agents of a document swarm: finder, splitter,
// reader, embedder and indexer, what they tell each other, and the searchable
// index that they leave behind.
//
//	finder ── DocumentFoundEvent ──▶ splitter ── PageSplitEvent ──▶ reader ──── PageReadEvent ────▶ indexer
//	                                                    │     └──▶ embedder ── PageEmbeddedEvent ──▶   │
//	                                                    └──────────────────────────────────────────▶   ▼
//	                                                                                                 index
//
// They are written against package engine as any agent is, and know no broker
// and no database: SQL stands in sqlite.go and postgres.go alone, behind the
// interface of store.go. They import neither implementations nor package app.
//
// A document is its content: its id is the SHA-256 of its bytes. A file is a
// path that holds a document now. So a copy is a second file of one document,
// a changed file leads to another document, and a search goes through the
// files, which is why it never shows what a file no longer holds.
//
// What survives a crash is in the ledger: which files were seen, which documents
// were split, and each part of a page with a count of how often it was applied
// (once). All other state is a short cut to that.
package agents
