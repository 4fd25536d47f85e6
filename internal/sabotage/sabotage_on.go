//go:build sabotage

package sabotage

import (
	"os"
	"slices"
	"strings"
	"sync"
)

// Enabled tells whether this build has the switches.
const Enabled = true

var on = sync.OnceValue(func() map[Name]bool {
	faults := make(map[Name]bool)
	for name := range strings.SplitSeq(os.Getenv(Variable), ",") {
		name := Name(strings.TrimSpace(name))
		if name == "" {
			continue
		}
		if !slices.Contains(Names(), name) {
			panic("sabotage: " + Variable + " names " + string(name) + ", which is no fault")
		}
		faults[name] = true
	}
	return faults
})

// Is tells whether a fault is on.
func Is(n Name) bool { return on()[n] }
