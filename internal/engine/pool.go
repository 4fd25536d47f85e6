package engine

import (
	"slices"

	"github.com/swarmlog/swarmlog/ledger"
)

// mayRun tells whether a worker of a pool may run an agent: one that names no pool runs anywhere, one that does only
// there. Every worker knows all agents, so that any of them can tell whether all is done.
func mayRun(agentPool, workerPool string) bool { return agentPool == "" || agentPool == workerPool }

// able are the workers that may run an agent.
func able(agentPool string, workers []ledger.Worker) []ledger.Worker {
	return slices.DeleteFunc(slices.Clone(workers), func(w ledger.Worker) bool { return !mayRun(agentPool, w.Pool) })
}
