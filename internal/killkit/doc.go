// Package killkit starts child processes and treats them badly: it kills them
// (SIGKILL), stops and continues them, ends and restarts them, at moments that
// a seed decides. Tests and the checker use it to show what survives. It knows
// nothing of Swarmlog.
//
// A child is the head of a process group of its own, and every signal goes to
// the whole group. None outlives the process that started it: the context, or
// Kill, ends the group; where the starting process is itself killed, Linux kills
// the child (PR_SET_PDEATHSIG), though not the child's own children. A child that
// re-executes the test binary must leave TestMain before it runs tests; see the
// package's own tests for the pattern.
package killkit
