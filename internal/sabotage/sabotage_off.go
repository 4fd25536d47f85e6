//go:build !sabotage

package sabotage

// Enabled tells whether this build has the switches.
const Enabled = false

// Is tells whether a fault is on.
func Is(Name) bool { return false }
