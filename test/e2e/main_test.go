package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// full tells whether the tests run at full scale.
var full = os.Getenv("SWARMLOG_E2E") == "full"

// raced tells that the program is built with the race detector: it's then slow and large.
var raced = os.Getenv("SWARMLOG_E2E_RACE") != ""

// built is the program under test, built once.
var built string

const swarmFolder = "../../examples/papers"

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	scratch, err := os.MkdirTemp("", "swarmlog-e2e-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	// Tests run the program as other accounts too.
	if err := os.Chmod(scratch, 0o755); err != nil {
		return 1, err
	}
	built = filepath.Join(scratch, "swarmlog")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	args := []string{"build", "-buildvcs=false", "-o", built}
	if raced {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(ctx, "go", append(args, "../../cmd/swarmlog")...).CombinedOutput()
	if err != nil {
		return 1, fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// scaled is a number of the short or of the full form.
func scaled(short, long int) int {
	if full {
		return long
	}
	return short
}

// beside lets a test run beside others, but for the full form, whose figures are to be one's own.
func beside(t *testing.T) {
	if !full {
		t.Parallel()
	}
}
