package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestIdle measures what a swarm costs that has nothing to do.
func TestIdle(t *testing.T) {
	beside(t)
	c := newCorpus(t, scaled(60, 2000), 0, 32<<10)
	data := filepath.Join(t.TempDir(), "data")
	up := swarmlog(t, nil, upArgs(data, []string{c.folder}, "--json")...)
	address := address(t, data, up)
	eventually(t, 5*time.Minute, "it's idle", func() bool { return len(pagesOf(t, data)) > 0 && idle(t, address) })
	<-time.After(time.Duration(scaled(4, 10)) * time.Second) // what follows work, such as writing back, isn't idling
	span := time.Duration(scaled(8, 30)) * time.Second
	before := ticks(t, up.Process.Pid)
	<-time.After(span)
	spent := time.Duration(ticks(t, up.Process.Pid)-before) * 10 * time.Millisecond
	share := spent.Seconds() / span.Seconds()
	t.Logf("idle over %s: %s of processor time, %.2f%% of a core, at most %d MiB", span, spent, 100*share, residentPeak(up.Process.Pid)>>20)
	bound := 0.01
	if !full {
		bound = 0.02 // it's measured beside other tests, whose load makes the same work dearer
	}
	if share >= bound && !raced {
		t.Errorf("an idle swarm uses %.2f%% of a core, want less than %.0f%%", 100*share, 100*bound)
	}
	check(t, up.Process.Signal(os.Interrupt))
	if r := up.wait(30 * time.Second); r.code != 0 {
		t.Errorf("exit code %d", r.code)
	}
}

// idle tells whether a run says that it has nothing to do.
func idle(t *testing.T, address string) bool {
	t.Helper()
	var s struct{ State string }
	if err := json.Unmarshal([]byte(get(t, address+"/api/v1/status")), &s); err != nil {
		t.Fatal(err)
	}
	return s.State == "idle"
}
