package cli

import (
	"os"
	"runtime/debug"
)

// memoryGoal is the heap from which on the collector works harder rather than let it grow: a run stays under 1 GiB
// as long as what it holds does. Queues and documents are bounded by weight, but the collector lets garbage take as
// much again.
const memoryGoal = 640 << 20

// boundMemory sets the goal for this process, unless its environment has one.
func boundMemory() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryGoal)
	}
}
