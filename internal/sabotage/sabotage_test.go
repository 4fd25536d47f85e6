package sabotage

import "testing"

// A build that users get must have no switches, whatever the environment says.
func TestSwitchesAreOffInOrdinaryBuilds(t *testing.T) {
	if Enabled {
		t.Setenv(Variable, string(NoFence)+", "+string(SeenKept))
	} else {
		t.Setenv(Variable, "no-fence")
	}
	for _, n := range Names() {
		want := Enabled && (n == NoFence || n == SeenKept)
		if got := Is(n); got != want {
			t.Errorf("Is(%s) = %v, want %v (Enabled %v)", n, got, want, Enabled)
		}
	}
}
