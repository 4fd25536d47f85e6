package proof

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/sabotage"
)

// verdict is what scripts read; its fields stand in docs/cli.md.
type verdict struct {
	Lost        int64    `json:"lost"`
	Doubled     int64    `json:"doubled"`
	Disordered  int64    `json:"disordered"`
	Unaccounted int64    `json:"unaccounted"`
	Events      int64    `json:"events"`
	Aggregates  int64    `json:"aggregates"`
	Effects     int64    `json:"effects"`
	Duplicates  int64    `json:"duplicates"`
	Kills       int64    `json:"kills"`
	Frosts      int64    `json:"frosts"`
	Fenced      int64    `json:"fenced"`
	Seed        uint64   `json:"seed"`
	Elapsed     float64  `json:"elapsed_seconds"`
	Examples    []string `json:"examples"`
}

func (v verdict) clean() bool { return v.Lost+v.Doubled+v.Disordered+v.Unaccounted == 0 }

// prove runs a proof in a process of its own, with a fault or without.
func prove(t *testing.T, program string, fault sabotage.Name, events, aggregates, kills int) (v verdict, out string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, "prove", "--json", "--data", t.TempDir(),
		"--events", strconv.Itoa(events), "--aggregates", strconv.Itoa(aggregates), "--kills", strconv.Itoa(kills))
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, sabotage.Variable+"=") })
	if fault != "" {
		cmd.Env = append(cmd.Env, sabotage.Variable+"="+string(fault))
	}
	cmd.WaitDelay = 10 * time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(stdout.Bytes(), &v); err != nil {
		t.Fatalf("no verdict (code %d): %v\n%s\n%s", cmd.ProcessState.ExitCode(), err, stdout.Bytes(), stderr.Bytes())
	}
	t.Logf("%s", bytes.TrimSpace(stdout.Bytes()))
	return v, stdout.String(), cmd.ProcessState.ExitCode()
}

// shape is a verdict with its figures taken out: its fields, their order and the kinds of their values.
const shape = `{"lost":N,"doubled":N,"disordered":N,"unaccounted":N,"events":N,"aggregates":N,"effects":N,"duplicates":N,` +
	`"kills":N,"frosts":N,"fenced":N,"seed":N,"elapsed_seconds":N,"examples":[]}` + "\n"

func TestProductIsClean(t *testing.T) {
	t.Parallel()
	const events, aggregates, kills = 20000, 200, 4
	// A proof says something only about what it exercised. Where kills fall so that no lease ran out under a worker for
	// long enough, it's run again; but each must be clean.
	for range tries {
		v, out, code := prove(t, product, "", events, aggregates, kills)
		if code != 0 || !v.clean() || len(v.Examples) > 0 {
			t.Fatalf("code %d, verdict %+v", code, v)
		}
		if v.Events != events || v.Aggregates != aggregates || v.Effects != 2*events || v.Kills != kills {
			t.Errorf("another proof was asked for: %+v", v)
		}
		if got := regexp.MustCompile(`:[0-9.e+-]+`).ReplaceAllString(out, ":N"); got != shape {
			t.Errorf("shape of the verdict:\n%sdocumented is\n%s", got, shape)
		}
		if v.Duplicates > 0 && v.Frosts > 0 && v.Fenced > 0 {
			return
		}
	}
	t.Errorf("in %d proofs no copy came, or no lease ran out under a worker", tries)
}

// tries bounds how often a proof is run again; above all how often a broken build may come away clean. Kills fall at random moments, and some faults do harm only
// where one falls into a gap of milliseconds: a run in which none did had nothing to be caught, so it's run again with
// another seed. That can't make up a finding: the control, the same build without a fault, must be clean at its one try.
const tries = 3

func TestBrokenBuildsAreCaught(t *testing.T) {
	if testing.Short() && os.Getenv("CI") != "true" {
		t.Skip("NOT RUN: six proofs take a minute or two, and -short leaves them out")
	}
	// What each must be found by, in the words of the verdict.
	finds := map[sabotage.Name]struct {
		count func(verdict) int64
		says  string
	}{
		sabotage.ProgressBeforeEffect: {func(v verdict) int64 { return v.Lost }, `accepted, and has no effect`},
		sabotage.NoFence:              {func(v verdict) int64 { return v.Disordered }, `committed under epoch \d+ of partition \d+, after one under \d+`},
		sabotage.SeenKept:             {func(v verdict) int64 { return v.Lost }, `accepted, and has no effect`},
		sabotage.RelayTrailsID:        {func(v verdict) int64 { return v.Lost }, `second: .*accepted, and has no effect`},
		sabotage.LaneFreedEarly:       {func(v verdict) int64 { return v.Disordered }, `its step saw \d+ as the last one, and \d+ was`},
	}
	for _, fault := range sabotage.Names() {
		find, ok := finds[fault]
		if !ok {
			t.Errorf("nobody says what %s is found by", fault)
			continue
		}
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			for range tries {
				v, _, code := prove(t, breakable, fault, 8000, 80, 3)
				if code == 0 && v.clean() {
					continue
				}
				if code != 1 || v.clean() {
					t.Errorf("code %d with the verdict %+v", code, v)
				}
				if find.count(v) == 0 || !regexp.MustCompile(find.says).MatchString(strings.Join(v.Examples, "\n")) {
					t.Errorf("something was found, but not what is broken: %+v", v)
				}
				return
			}
			t.Errorf("came away clean %d times", tries)
		})
	}
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		if v, _, code := prove(t, breakable, "", 8000, 80, 3); code != 0 || !v.clean() {
			t.Errorf("code %d, verdict %+v", code, v)
		}
	})
}
