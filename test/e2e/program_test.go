package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// summary is the last line of a run with --json.
type summary struct {
	Documents int64            `json:"documents"`
	Pages     int64            `json:"pages"`
	Records   map[string]int64 `json:"records"`
	Inference struct {
		Calls, Reused int64
		InDoubt       int64 `json:"in_doubt"`
	} `json:"inference"`
	Warnings []string `json:"warnings"`
	Elapsed  float64  `json:"elapsed_seconds"`
}

// result is how a command ended.
type result struct {
	code     int
	out, err string
	elapsed  time.Duration
	peak     int64 // most memory at once, in bytes; 0 where the system doesn't tell
}

// program is a command of swarmlog in a process of its own.
type program struct {
	*exec.Cmd
	t        testing.TB
	out, err output
	begun    time.Time
	peak     *peak
	ended    bool
}

// swarmlog starts a command.
func swarmlog(t testing.TB, change func(*exec.Cmd), args ...string) *program {
	t.Helper()
	p := &program{Cmd: exec.CommandContext(t.Context(), built, args...), t: t, begun: time.Now()}
	p.Stdout, p.Stderr = &p.out, &p.err
	p.Cancel = func() error { return p.Process.Kill() }
	p.WaitDelay = 10 * time.Second
	if change != nil {
		change(p.Cmd)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	p.peak = watchPeak(p.Process.Pid)
	t.Cleanup(func() {
		if !p.ended {
			_ = p.Process.Kill()
			p.wait(time.Minute)
		}
	})
	return p
}

// wait waits for the process to end; one that doesn't in time is killed, and its test fails.
func (p *program) wait(limit time.Duration) result {
	p.t.Helper()
	timer := time.AfterFunc(limit, func() {
		_ = p.Process.Signal(syscall.SIGQUIT) // for the stacks
	})
	err := p.Wait()
	p.ended = true
	late := !timer.Stop()
	r := result{code: p.ProcessState.ExitCode(), out: p.out.String(), err: p.err.String(), elapsed: time.Since(p.begun), peak: p.peak.stop()}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && p.t.Context().Err() == nil {
		p.t.Errorf("%s: %v", strings.Join(p.Args, " "), err)
	}
	if late {
		p.t.Fatalf("%s didn't end within %s\n%s", strings.Join(p.Args[1:], " "), limit, tail(r.err, 16<<10))
	}
	return r
}

// command runs a command to its end and wants exit code 0.
func command(t testing.TB, args ...string) string {
	t.Helper()
	r := swarmlog(t, nil, args...).wait(time.Minute)
	if r.code != 0 {
		t.Fatalf("swarmlog %s ended with %d: %s", strings.Join(args, " "), r.code, r.err)
	}
	return r.out
}

// upArgs run the documents swarm on free ports.
func upArgs(data string, inputs []string, more ...string) []string {
	args := []string{"up", swarmFolder, "--data", data, "--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0"}
	for _, i := range inputs {
		args = append(args, "--input", i)
	}
	return append(args, more...)
}

// summary is the summary that a run printed.
func (r result) summary(t testing.TB) summary {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	var s summary
	d := json.NewDecoder(strings.NewReader(lines[len(lines)-1]))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		t.Fatalf("the last line is no summary: %v\n%s\n%s", err, tail(r.out, 2000), tail(r.err, 4000))
	}
	return s
}

// page is a line of `swarmlog pages --json`.
type page struct {
	Document string `json:"document"`
	Path     string `json:"path"`
	Page     int    `json:"page"`
	Part     int    `json:"part"`
	SHA256   string `json:"sha256"`
	Summary  string `json:"summary"`
	Steps    int64  `json:"steps"`
}

// place is what names a page and its text.
type place struct {
	document   string
	page, part int
	sha256     string
}

func (p page) place() place { return place{p.Document, p.Page, p.Part, p.SHA256} }

func pagesOf(t testing.TB, data string) []page {
	t.Helper()
	return decodeLines[page](t, command(t, "pages", "--json", "--data", data))
}

// hit is a line of `swarmlog search --json`.
type hit struct {
	Document string  `json:"document"`
	Path     string  `json:"path"`
	Page     int     `json:"page"`
	Part     int     `json:"part"`
	Excerpt  string  `json:"excerpt"`
	Score    float64 `json:"score"`
}

func search(t testing.TB, data, words string) []hit {
	t.Helper()
	return decodeLines[hit](t, command(t, "search", words, "--json", "--data", data))
}

// finds tells whether a search has a document with these words, and no other as good.
func finds(hits []hit, document, word string) bool {
	return len(hits) > 0 && hits[0].Document == document && strings.Contains(hits[0].Excerpt, word)
}

func decodeLines[T any](t testing.TB, text string) []T {
	t.Helper()
	var all []T
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v T
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&v); err != nil {
			t.Fatalf("a line isn't what is documented: %v: %s", err, lines.Text())
		}
		all = append(all, v)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// address is where a running swarm is reached, once it is.
func address(t testing.TB, data string, p *program) string {
	t.Helper()
	var a struct{ HTTP string }
	eventually(t, time.Minute, "the address file of "+data, func() bool {
		if p.Process != nil && syscall.Kill(p.Process.Pid, 0) != nil {
			t.Fatalf("the swarm has ended: %s", p.err.String())
		}
		b, err := os.ReadFile(filepath.Join(data, "address.json"))
		return err == nil && json.Unmarshal(b, &a) == nil && a.HTTP != ""
	})
	return a.HTTP
}

// eventually polls a condition that other processes bring about.
func eventually(t testing.TB, limit time.Duration, what string, met func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// output takes what a process writes, and may be read meanwhile.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }
