//go:build sabotage

package sqlite

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/internal/sabotage"
)

// Each fault of the ledger must be caught by the conformance suite, by name, and by the model too.
func TestSuiteCatchesFaults(t *testing.T) {
	if os.Getenv(sabotage.Variable) != "" {
		return // a run with a fault, whose failures are for another to judge
	}
	for fault, tests := range map[sabotage.Name][]string{
		"":                            nil,
		sabotage.NoFence:              {"Lease/StaleOwnerChangesNothing", "Lease/SameOwnerOfAnOlderEpochIsFenced", "Model/"},
		sabotage.ProgressBeforeEffect: {"Commit/FailingStepLeavesNothing", "Model/"},
		sabotage.SeenKept:             {"Commit/FailingStepLeavesNothing", "Model/"},
	} {
		t.Run(string(fault), func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestConformance$", "-rapid.nofailfile")
			cmd.Env = append(os.Environ(), sabotage.Variable+"="+string(fault))
			out, err := cmd.CombinedOutput()
			if (err != nil) != (len(tests) > 0) {
				t.Fatalf("the suite ended with %v:\n%s", err, out)
			}
			for _, name := range tests {
				if !strings.Contains(string(out), "--- FAIL: TestConformance/"+name) {
					t.Errorf("%s doesn't catch it:\n%s", name, out)
				}
			}
		})
	}
}
