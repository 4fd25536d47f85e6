package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/swarmlog/swarmlog/internal/devservices"
)

// The browser stands for any service here, since its path can be given without starting something.
func TestRunCommandBesideServices(t *testing.T) {
	sh := "/bin/sh"
	for _, c := range []struct {
		name, chrome, ci, script string
		want                     int
		runs                     bool
	}{
		{"the command's exit code is passed on", sh, "true", "exit 7", 7, true},
		{"the environment names the service", sh, "true", `test "$CHROME" = /bin/sh`, 0, true},
		{"without the service the rest runs", "/nowhere/browser", "", "exit 0", 0, true},
		{"without the service CI fails", "/nowhere/browser", "true", "exit 0", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(devservices.EnvCache, t.TempDir())
			t.Setenv(devservices.EnvChrome, c.chrome)
			t.Setenv("CI", c.ci)
			ran := filepath.Join(t.TempDir(), "ran")
			got := run(context.Background(), []string{"run", "chromium", "--", sh, "-c", ": > '" + ran + "'; " + c.script})
			if got != c.want {
				t.Errorf("exit code %d, want %d", got, c.want)
			}
			if _, err := os.Stat(ran); (err == nil) != c.runs {
				t.Errorf("the command ran: %v, want %v", err == nil, c.runs)
			}
		})
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"begin"}, {"run", "kafka"}, {"run", "--"}} {
		if got := run(context.Background(), args); got != 2 {
			t.Errorf("services %v: exit code %d, want 2", args, got)
		}
	}
}

func TestQuote(t *testing.T) {
	t.Parallel()
	got := quote([]string{"A=b'c d", "P=postgres://u:p@h/d?x=y"})
	if got[0] != `A='b'\''c d'` || got[1] != "P='postgres://u:p@h/d?x=y'" {
		t.Errorf("quoted %q", got)
	}
}
