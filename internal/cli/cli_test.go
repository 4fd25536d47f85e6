package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/prove"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestErrorsHaveTheirKinds(t *testing.T) {
	t.Parallel()
	problem := config.Problems{{File: "f", Line: 1, Col: 2, Found: "x", Instead: "y"}}
	for _, c := range []struct {
		err  error
		want kind
	}{
		{errors.New("disk is full"), failed},
		{usage(errors.New("x")), badUsage},
		{usage(problem), badSwarm},
		{fmt.Errorf("read: %w", problem), badSwarm},
		{fmt.Errorf("open: %w", opened(os.ErrNotExist)), noData},
		{opened(errors.New("disk is full")), failed},
		{fmt.Errorf("folder: %w", ledger.ErrInUse), inUse},
		{fmt.Errorf("listen: %w", httpapi.ErrPortTaken), inUse},
		{fmt.Errorf("prove: %w", prove.ErrConfig), badUsage},
		{fmt.Errorf("prove: %w", errNotClean), notClean},
	} {
		if got := kindOf(c.err); got != c.want {
			t.Errorf("%v is %v, expected %v", c.err, got, c.want)
		}
	}
}

func TestSay(t *testing.T) {
	t.Parallel()
	problem := usage(config.Problems{{File: "f", Line: 1, Col: 2, Found: "x", Instead: "y"}})
	for _, c := range []struct {
		err          error
		people, json string
	}{
		{errors.New("<x>"), "swarmlog: <x>\n", `{"error":{"code":"failed","message":"<x>"}}` + "\n"},
		{problem, "f:1:2: x: y\n", `{"error":{"code":"bad_swarm","message":"f:1:2: x: y","problems":[{"file":"f","line":1,"column":2,"found":"x","instead":"y"}]}}` + "\n"},
		{usage(errSaid), "", ""},
	} {
		for asJSON, want := range map[bool]string{false: c.people, true: c.json} {
			var b bytes.Buffer
			if say(&b, asJSON, c.err); b.String() != want {
				t.Errorf("%v (JSON %v) is said as %q, expected %q", c.err, asJSON, b.String(), want)
			}
		}
	}
}

// The page about the command line names every command with its flags, and every kind of error with its exit code.
func TestDocumentationIsComplete(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	parser, err := kong.New(&command{}, kong.Name("swarmlog"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range parser.Model.Children {
		if c.Hidden {
			continue
		}
		_, section, ok := strings.Cut(string(page), "\n## swarmlog "+c.Name)
		if !ok {
			t.Errorf("docs/cli.md has no section about swarmlog %s", c.Name)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		for _, command := range append([]*kong.Node{c}, c.Children...) {
			if command != c && !strings.Contains(section, "swarmlog "+c.Name+" "+command.Name) {
				t.Errorf("docs/cli.md doesn't say what %s %s does", c.Name, command.Name)
			}
			for _, flag := range command.Flags {
				if !strings.Contains(section, "`--"+flag.Name) {
					t.Errorf("docs/cli.md doesn't say what --%s of %s is", flag.Name, command.Name)
				}
			}
		}
	}
	for _, k := range []kind{failed, notClean, badUsage, badSwarm, noData, inUse} {
		if !strings.Contains(string(page), fmt.Sprintf("| `%s` | %d |", k.code, k.exit)) {
			t.Errorf("docs/cli.md doesn't say that an error %s ends with %d", k.code, k.exit)
		}
	}
}
