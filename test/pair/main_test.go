package pair

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/killkit"
)

// built is the program under test, built once.
var built string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pair:", err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	scratch, err := os.MkdirTemp("", "swarmlog-pair-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
	built = filepath.Join(scratch, "swarmlog")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", built, "../../cmd/swarmlog").CombinedOutput()
	if err != nil {
		return 1, fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// swarm is a swarm of documents on servers of its own.
type swarm struct {
	t      *testing.T
	folder string // of swarm.yaml; documents is below it
	env    []string
	dsn    string
}

// The agents of examples/papers, on topics of a test's own.
const papers = `
name: NAME
topics: {NAME-documents: {partitions: 4}, NAME-pages: , NAME-notes: , NAME-vectors: }
agents:
  finder: {kind: finder, emits: NAME-documents}
  splitter: {kind: splitter, reads: NAME-documents, emits: NAME-pages, on_dead: skip}
  reader: {kind: reader, reads: NAME-pages, emits: NAME-notes, on_dead: skip}
  embedder: {kind: embedder, reads: NAME-pages, emits: NAME-vectors, on_dead: skip}
  indexer: {kind: indexer, reads: [NAME-pages, NAME-notes, NAME-vectors], on_dead: skip}
worker: {lease_time: 3s, listen: 127.0.0.1:0}
`

// newSwarm writes the swarm's file and some documents.
func newSwarm(t *testing.T, documents int) *swarm {
	t.Helper()
	s := &swarm{t: t, folder: t.TempDir(), dsn: given.Database(t)}
	name := "pair-" + strings.ToLower(rand.Text()[:12])
	s.write("swarm.yaml", strings.ReplaceAll(papers, "NAME", name))
	s.documents(0, documents)
	s.env = []string{"SWARMLOG_BROKERS=" + strings.Join(given.Kafka(t), ","), "SWARMLOG_LEDGER=" + s.dsn, "SWARMLOG_LEDGER_CONNECTIONS=6"}
	return s
}

// documents writes documents of two pages, each with a word that no other has.
func (s *swarm) documents(from, to int) {
	s.t.Helper()
	for i := from; i < to; i++ {
		s.write(fmt.Sprintf("documents/%03d.txt", i), fmt.Sprintf("%s uniqueword%d\f%s", strings.Repeat("an event is handled once. ", 30), i,
			strings.Repeat("order holds within an aggregate. ", 30)))
	}
}

func (s *swarm) write(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.folder, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		s.t.Fatal(err)
	}
}

// worker is a process of swarmlog run, and the file that takes what it writes.
type worker struct {
	*killkit.Process
	output string
}

// said tells whether the worker has written a text.
func (w worker) said(text string) bool {
	b, err := os.ReadFile(w.output)
	return err == nil && strings.Contains(string(b), text)
}

// worker starts a worker and returns once it's ready. No secret may be in what it writes.
func (s *swarm) worker(id string, args ...string) worker {
	s.t.Helper()
	output := filepath.Join(s.t.TempDir(), "output")
	p, err := killkit.Start(s.t.Context(), killkit.Command{Name: "worker " + id, Path: built, Env: s.env, Output: output, MaxOutput: 16 << 20,
		Args: append([]string{"run", s.folder, "--worker", id, "--log-level", "debug"}, args...), Ready: killkit.Line("ready: worker"), ReadyWait: time.Minute})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := p.Kill(); err != nil && !errors.Is(err, killkit.ErrExited) {
			s.t.Error(err)
		}
		b, err := os.ReadFile(output)
		if err != nil || len(b) == 0 {
			s.t.Errorf("the worker's output: %d bytes, %v", len(b), err)
		}
		s.holdsNoSecret(string(b))
	})
	return worker{p, output}
}

func (s *swarm) holdsNoSecret(text string) {
	s.t.Helper()
	u, err := url.Parse(s.dsn)
	if err != nil {
		s.t.Fatal("the connection URL can't be read")
	}
	if password, ok := u.User.Password(); !ok || strings.Contains(text, password) {
		s.t.Errorf("the password is shown, or there's none (%v)", ok)
	}
}

// command runs a command to its end.
func (s *swarm) command(args ...string) (out string, code int) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), built, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.Env = &stdout, &stderr, append(os.Environ(), s.env...)
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	s.holdsNoSecret(stdout.String() + stderr.String())
	if code = cmd.ProcessState.ExitCode(); code != 0 {
		return stderr.String(), code
	}
	return stdout.String(), 0
}

// page is a line of `swarmlog pages --json`.
type page struct {
	Document string `json:"document"`
	Page     int    `json:"page"`
	Summary  string `json:"summary"`
	Steps    int64  `json:"steps"`
}

// pages are those that were read until now.
func (s *swarm) pages() (all []page) {
	s.t.Helper()
	out, code := s.command("pages", "--json")
	if code != 0 {
		s.t.Fatalf("pages ended with %d: %s", code, out)
	}
	for line := range strings.Lines(out) {
		var p page
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			s.t.Fatalf("%v: %s", err, line)
		}
		all = append(all, p)
	}
	return all
}

// complete wants every page of the documents, each with a summary and one step.
func (s *swarm) complete(documents int) {
	s.t.Helper()
	pages := s.pages()
	if len(pages) != 2*documents {
		s.t.Errorf("%d pages of %d documents", len(pages), documents)
	}
	for _, p := range pages {
		if p.Steps != 1 || p.Summary == "" {
			s.t.Errorf("%s, page %d: %d steps, summary %q", p.Document, p.Page, p.Steps, p.Summary)
		}
	}
}

// eventually polls a condition that other processes bring about.
func (s *swarm) eventually(limit time.Duration, what string, met func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !met() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.t.Fatalf("not within %s: %s", limit, what)
		}
	}
}
