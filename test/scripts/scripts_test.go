package scripts

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/swarmlog/swarmlog/internal/cli"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"swarmlog": func() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

func TestScripts(t *testing.T) {
	t.Parallel()
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("EXAMPLES", examples)
			env.Setenv("COLUMNS", "80")
			env.Vars = slices.DeleteFunc(env.Vars, func(v string) bool { return strings.HasPrefix(v, "OPENAI_") })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "await": await, "shape": shape,
		},
	})
}

// exits runs a command that must end with the given code: exits 2 swarmlog bogus.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	if neg || err != nil {
		ts.Fatalf("usage: exits CODE COMMAND ARGS")
	}
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("ended with %d, expected %d", got, want)
	}
}

// await waits for a file.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: await FILE")
	}
	file := ts.MkAbs(args[0])
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, err := os.Stat(file)
		switch {
		case err == nil:
			return
		case !errors.Is(err, fs.ErrNotExist):
			ts.Fatalf("%v", err)
		case time.Now().After(deadline):
			ts.Fatalf("waited in vain for %s", args[0])
		}
	}
}

// What differs from run to run, and stands for itself in shapes.
var (
	folders = regexp.MustCompile(`"[^"]*/documents/`)
	times   = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[0-9:.]+Z"`)
	hashes  = regexp.MustCompile(`"[0-9a-f]{64}"`)
	numbers = regexp.MustCompile(`:-?\d[0-9.e+-]*`)
	states  = regexp.MustCompile(`"state":"(starting|running|idle|draining)"`)
)

// shape compares a file, such as stdout, with one that holds the documented shape: times are "TIME" there, digests
// "SHA256", states STATE, folders of documents "DOCUMENTS/" and numbers N. With -last or -first only that line counts,
// with -rest all lines but the last, each.
func shape(ts *testscript.TestScript, neg bool, args []string) {
	part := ""
	if len(args) == 3 {
		part, args = args[0], args[1:]
	}
	if neg || len(args) != 2 {
		ts.Fatalf("usage: shape [-first|-last|-rest] FILE FILE")
	}
	lines := strings.SplitAfter(strings.TrimSuffix(ts.ReadFile(args[0]), "\n"), "\n")
	want := strings.TrimSuffix(ts.ReadFile(args[1]), "\n")
	last := len(lines) - 1
	switch part {
	case "-first":
		lines = lines[:1]
	case "-last":
		lines = lines[last:]
	case "-rest":
		lines = lines[:last]
		if last == 0 {
			ts.Fatalf("%s has one line only", args[0])
		}
	default:
		lines = []string{strings.Join(lines, "")}
	}
	for _, line := range lines {
		got := folders.ReplaceAllString(strings.TrimSuffix(line, "\n"), `"DOCUMENTS/`)
		got = hashes.ReplaceAllString(times.ReplaceAllString(got, `"TIME"`), `"SHA256"`)
		got = states.ReplaceAllString(got, `"state":STATE`)
		got = numbers.ReplaceAllString(got, ":N")
		if got != want {
			ts.Fatalf("%s has the shape\n%s\nand should have\n%s", args[0], got, want)
		}
	}
}
