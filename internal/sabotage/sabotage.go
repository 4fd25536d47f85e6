// Package sabotage owns the fault switches that show whether the checks catch
// a broken delivery. Only a build with the tag sabotage has them; there the
// environment variable SWARMLOG_SABOTAGE names those that are on, separated by
// commas. In every other build Is is a constant false that the compiler removes
// together with what hangs on it.
//
// It imports nothing of ours and keeps no state.
package sabotage

// Name is the name of one fault.
type Name string

const (
	// ProgressBeforeEffect commits a batch's progress in a transaction of its own, some time before its effects.
	ProgressBeforeEffect Name = "progress-before-effect"
	// NoFence doesn't compare a lease's owner and epoch.
	NoFence Name = "no-fence"
	// SeenKept commits the ids of a batch's events on their own, so that they stay for a step that fails.
	SeenKept Name = "seen-kept"
	// RelayTrailsID reads the outbox by an ever rising number and never looks back.
	RelayTrailsID Name = "relay-trails-id"
	// LaneFreedEarly lets an aggregate's next event start before the commit of the one before it.
	LaneFreedEarly Name = "lane-freed-early"
)

// Names are all faults.
func Names() []Name {
	return []Name{ProgressBeforeEffect, NoFence, SeenKept, RelayTrailsID, LaneFreedEarly}
}

// Variable is the environment variable that names the faults which are on.
const Variable = "SWARMLOG_SABOTAGE"
