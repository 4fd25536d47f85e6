package proof

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/devservices/given"
)

// A short proof on real Kafka and PostgreSQL; make prove-pair is the long one.
func TestPairIsClean(t *testing.T) {
	t.Parallel()
	brokers, dsn := given.Kafka(t), given.Postgres(t)
	for _, membership := range []string{"leases", "kafka"} {
		t.Run(membership, func(t *testing.T) {
			t.Parallel()
			const events = 6000
			cmd := exec.CommandContext(t.Context(), product, "prove", "--json", "--data", t.TempDir(), "--brokers", strings.Join(brokers, ","),
				"--membership", membership, "--events", "6000", "--aggregates", "120", "--workers", "3", "--lease-time", "2s", "--every", "3s", "--duration", "30s")
			cmd.Env = append(os.Environ(), "SWARMLOG_LEDGER="+dsn)
			cmd.WaitDelay = 10 * time.Second
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Fatal(err)
			}
			var v struct {
				verdict
				Pair struct {
					Membership           string
					Kills, Pauses, Moves int
				}
			}
			if err := json.Unmarshal(stdout.Bytes(), &v); err != nil {
				t.Fatalf("no verdict (code %d): %v\n%s\n%s", cmd.ProcessState.ExitCode(), err, stdout.Bytes(), stderr.Bytes())
			}
			t.Logf("%s", bytes.TrimSpace(stdout.Bytes()))
			if cmd.ProcessState.ExitCode() != 0 || !v.clean() || v.Events != events || v.Effects != 2*events {
				t.Errorf("code %d, %d events, %d effects", cmd.ProcessState.ExitCode(), v.Events, v.Effects)
			}
			if v.Pair.Membership != membership || v.Pair.Kills == 0 || v.Pair.Pauses == 0 || v.Pair.Moves == 0 {
				t.Errorf("not every fault happened: %+v", v.Pair)
			}
			if bytes.Contains(stderr.Bytes(), []byte(dsn)) {
				t.Error("the connection string is printed")
			}
		})
	}
}
