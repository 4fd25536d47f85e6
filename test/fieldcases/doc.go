// Package fieldcases owns the field cases as they meet the product from end to
// end: failures that people have reported of consumers, outboxes and event
// stores, as records that a foreign Kafka client writes, and what becomes of
// them. docs/field-cases.md lists every case with all of its tests. Nothing
// imports it.
package fieldcases
