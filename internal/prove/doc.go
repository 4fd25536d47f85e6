// Package prove owns the checker that anyone can run: producers number events
// per aggregate, agents write an effect for each, the process that does all the
// work is killed meanwhile, and afterwards every accepted event must have
// exactly one effect, in order, and every record must be accounted for.
//
//	producers ──▶ proof.in ──▶ agent first ──▶ proof.out ──▶ agent second
//	(here)                     effect + event                effect
//	                └───────────── the node: a child process ─────────────┘
//
// run.go starts, kills and restarts the node and gives the verdict, produce.go
// numbers events, node.go is the child, frost.go lets a worker's leases run out
// under it, verify.go reads what the ledger holds at the end.
//
// The checker rests on nothing that it checks: it knows what was accepted from
// the producers, and reads effects from a table that only the agents' own SQL
// writes.
package prove
