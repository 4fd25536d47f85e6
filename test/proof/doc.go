// Package proof owns the tests of the proof itself, from outside: that swarmlog
// prove is clean on the product, that its verdict keeps its shape, and that each
// of the broken builds is caught. Nothing imports it.
package proof
