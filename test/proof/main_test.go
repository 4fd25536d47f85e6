package proof

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

// The programs under test, built once: the product, and the build whose faults can be switched on.
var product, breakable string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "proof:", err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	scratch, err := os.MkdirTemp("", "swarmlog-proof-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	product, breakable = filepath.Join(scratch, "swarmlog"), filepath.Join(scratch, "breakable")
	for program, tags := range map[string]string{product: "", breakable: "sabotage"} {
		cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-tags", tags, "-o", program, "../../cmd/swarmlog")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build the program: %w\n%s", err, out)
		}
	}
	return m.Run(), nil
}
