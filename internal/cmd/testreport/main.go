// Command testreport runs `go test -json` with the given arguments and reports
// it for people: a line a package, the output of what failed, what was skipped
// and why, and at the end `N passed, N failed, N skipped`.
//
// go test itself says nothing of skipped tests unless asked for everything. In
// continuous integration (CI=true) a skipped test is a failure here, since
// what CI doesn't run, nobody does. A fuzz target that skips some of its seeds
// is no skipped test.
//
// Exit code 0: all passed; 1: something failed, or no test ran; 2: usage.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sort"
	"strings"

	"github.com/swarmlog/swarmlog/internal/devservices"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: testreport [go test flags] PACKAGES, such as testreport -race ./...")
		os.Exit(2)
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, os.Args[1:]...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport: run go test:", err)
		os.Exit(1)
	}
	r := newReport(os.Stdout)
	r.read(out)
	failed := cmd.Wait() != nil
	if !r.end(devservices.InCI()) || failed {
		os.Exit(1)
	}
}

// event is one line of go test -json; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build
	Test       string
	Output     string
	Elapsed    float64
}

type test struct{ pkg, name string }

// keep is how much output is kept of one test: its end is what tells.
const keep = 64 << 10

type report struct {
	w       io.Writer
	output  map[test]string
	tests   map[string]int // that ended, by package
	failing map[string]int
	passed  int
	failed  []test
	skipped []string
}

func newReport(w io.Writer) *report {
	return &report{w: w, output: map[test]string{}, tests: map[string]int{}, failing: map[string]int{}}
}

func (r *report) read(in io.Reader) {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) == nil && e.Action != "" {
				r.add(e)
			} else {
				fmt.Fprint(r.w, line) // not an event: shown as it is
			}
		}
		if err != nil {
			return
		}
	}
}

func (r *report) add(e event) {
	t := test{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.w, e.Output)
	case "output":
		s := r.output[t] + e.Output
		r.output[t] = s[max(0, len(s)-keep):]
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(e, t)
		}
	}
}

func (r *report) endTest(e event, t test) {
	r.tests[e.Package]++
	switch e.Action {
	case "pass":
		r.passed++
	case "fail":
		r.failing[e.Package]++
		r.failed = append(r.failed, t)
		fmt.Fprintln(r.w, withoutMarks(r.output[t]))
	case "skip":
		if strings.HasPrefix(e.Test, "Fuzz") && strings.Contains(e.Test, "/") {
			break
		}
		r.skipped = append(r.skipped, fmt.Sprintf("%s %s: %s", e.Package, e.Test, reason(r.output[t])))
	}
	delete(r.output, t)
}

func (r *report) endPackage(e event) {
	t := test{e.Package, ""}
	switch {
	case e.Action == "fail":
		if r.failing[e.Package] == 0 { // did not build, panicked, or failed outside its tests
			r.failed = append(r.failed, t)
			// A test that was running then has the reason in its output.
			for running, out := range r.output {
				if running.pkg == e.Package && running.name != "" {
					fmt.Fprintln(r.w, withoutMarks(out))
				}
			}
			fmt.Fprint(r.w, r.output[t])
		}
		fmt.Fprintf(r.w, "FAIL\t%s\t%.2fs\n", e.Package, e.Elapsed)
	case r.tests[e.Package] > 0:
		cached := ""
		if strings.Contains(r.output[t], "(cached)") {
			cached = " (cached)"
		}
		fmt.Fprintf(r.w, "ok\t%s\t%.2fs\t%d tests%s\n", e.Package, e.Elapsed, r.tests[e.Package], cached)
	}
	for k := range r.output {
		if k.pkg == e.Package {
			delete(r.output, k)
		}
	}
}

// withoutMarks is a test's output without the lines that say when it ran and paused.
func withoutMarks(output string) string {
	var kept strings.Builder
	for line := range strings.Lines(output) {
		if !strings.HasPrefix(line, "=== ") {
			kept.WriteString(line)
		}
	}
	return strings.TrimRight(kept.String(), "\n")
}

// reason is what a skipped test said, without the lines of go test.
func reason(output string) string {
	var said []string
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	return strings.Join(said, " ")
}

// end prints the summary and tells whether all is well.
func (r *report) end(ci bool) bool {
	for _, t := range r.failed {
		fmt.Fprintln(r.w, strings.TrimSpace("failed: "+t.pkg+" "+t.name))
	}
	if len(r.skipped) > 0 {
		fmt.Fprintf(r.w, "\nNOT RUN (%d skipped):\n", len(r.skipped))
		sort.Strings(r.skipped)
		for _, s := range r.skipped {
			fmt.Fprintln(r.w, "  "+s)
		}
		if ci {
			fmt.Fprintln(r.w, "In continuous integration a skipped test is a failure.")
		}
	}
	if r.passed+len(r.failed) == 0 {
		fmt.Fprintln(r.w, "no test ran")
	}
	fmt.Fprintf(r.w, "%d passed, %d failed, %d skipped\n", r.passed, len(r.failed), len(r.skipped))
	return len(r.failed) == 0 && r.passed > 0 && (!ci || len(r.skipped) == 0)
}
