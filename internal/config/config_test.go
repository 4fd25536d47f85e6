package config

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files of this package")

func noEnv(string) (string, bool) { return "", false }

func env(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

// TestErrorTexts compares what is said about each testdata/*.yaml with the .txt beside it.
func TestErrorTexts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("glob of testdata: %d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Parse(filepath.Base(file), data, noEnv)
			if err == nil {
				t.Fatal("no problem was found")
			}
			got, golden := err.Error()+"\n", strings.TrimSuffix(file, ".yaml")+".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
			if strings.Contains(got, "sk-verysecret") {
				t.Error("a secret is shown")
			}
		})
	}
}

const small = `
name: papers
topics: {documents: {partitions: 4}, pages: , notes: {}}
agents:
  finder: {kind: finder, emits: documents, input: [in, /abs], max_document: 1.5MiB}
  splitter:
    kind: splitter
    reads: documents
    emits: [pages]
    on_dead: skip
    limits: {steps: 4, bytes: 128MiB, timeout: 2m, attempts: 3, backoff: 50ms, max_wait: 10s, hops: 9, waiting: 5000, gap_wait: 1h}
  reader: {kind: reader, reads: pages, emits: notes}
  # A cycle of events: notes go back to where pages come from.
  again: {kind: reader, reads: notes, emits: pages}
  embedder: {kind: embedder, reads: pages, emits: notes}
pools: {big: {steps: 8, memory: 4GiB}}
`

func TestSwarmIsReadInOrderWithDefaults(t *testing.T) {
	s, err := Parse("/swarms/x/swarm.yaml", []byte(small), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, a := range s.Agents {
		order = append(order, a.Name)
	}
	if got := strings.Join(order, " "); got != "finder splitter reader again embedder" {
		t.Errorf("agents %s", got)
	}
	if s.Topics[0].Partitions != 4 || s.Topics[1].Partitions != 8 {
		t.Errorf("topics %+v", s.Topics)
	}
	f := s.Agent("finder")
	if fmt.Sprint(f.Input) != "[/swarms/x/in /abs]" || f.MaxDocument != 3<<19 || f.OnDead != "park" {
		t.Errorf("finder %+v", f)
	}
	want := Limits{4, 128 << 20, 2 * time.Minute, 3, 50 * time.Millisecond, 10 * time.Second, 9, 5000, time.Hour}
	if sp := s.Agent("splitter"); sp.Limits != want || sp.OnDead != "skip" || sp.MaxDocument != 64<<20 || sp.PageChars != 3000 {
		t.Errorf("splitter %+v", sp)
	}
	if got := fmt.Sprint(s.BuiltinAgents()); got != "[reader again embedder]" {
		t.Errorf("built-in agents %s", got)
	}
	if p := s.Pools[0]; p.Memory != 4<<30 || p.Steps != 8 {
		t.Errorf("pool %+v", p)
	}
	if l := s.Agent("reader").Limits; l != (Limits{}) {
		t.Errorf("limits of an agent without a pool: %+v", l)
	}
	if err := s.SetInput("/else"); err != nil || s.Agent("finder").Input[0] != "/else" {
		t.Errorf("SetInput: %v, %v", err, s.Agent("finder").Input)
	}
}

func TestEnvironmentSwitchesOpenAIOn(t *testing.T) {
	s, err := Parse("swarm.yaml", []byte(small), env(map[string]string{"OPENAI_BASE_URL": "http://127.0.0.1:1234/v1/", "OPENAI_API_KEY": "sk-verysecret", "OPENAI_MODEL": "m"}))
	if err != nil {
		t.Fatal(err)
	}
	d, e := s.Model("default"), s.Model("embedding")
	if d.Provider != OpenAI || d.BaseURL != "http://127.0.0.1:1234/v1" || d.Model != "m" || d.Key.Env != "OPENAI_API_KEY" {
		t.Errorf("default %+v", d)
	}
	if e.Model != defaultEmbeddingModel || s.Agent("embedder").Model != "embedding" || len(s.BuiltinAgents()) != 0 {
		t.Errorf("embedding %+v, agents %+v", e, s.Agents)
	}
	if strings.Contains(fmt.Sprintf("%+v", s), "verysecret") {
		t.Error("the swarm holds the secret")
	}
	// A local server needs no key; with models of its own the file decides.
	s, err = Parse("swarm.yaml", []byte(small), env(map[string]string{"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}))
	if err != nil || !s.Model("default").Key.IsZero() {
		t.Errorf("without a key: %v", err)
	}
	s, err = Parse("swarm.yaml", []byte(small+"models: {default: {provider: builtin}}\n"), env(map[string]string{"OPENAI_API_KEY": "k"}))
	if err != nil || s.Model("default").Provider != Builtin {
		t.Errorf("models in the file: %v", err)
	}
	_, err = Parse("swarm.yaml", []byte(small), env(map[string]string{"OPENAI_BASE_URL": "http://u:sk-verysecret@h/v1"}))
	if err == nil || strings.Contains(err.Error(), "verysecret") {
		t.Errorf("a bad OPENAI_BASE_URL: %v", err)
	}
}

func TestModelParamsKeepTheirLexemes(t *testing.T) {
	s, err := Parse("swarm.yaml", []byte(small+`models:
  default:
    provider: openai
    model: m
    api_key: {file: key.txt}
    reuse: off
    params: {temperature: 5.0, seed: 9007199254740993, stop: ["a", "1"], top: null, format: {type: text}, yes: "true", on: true}
`), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	m := s.Model("default")
	for name, want := range map[string]string{"temperature": "5.0", "seed": "9007199254740993", "stop": `["a","1"]`,
		"top": "null", "format": `{"type":"text"}`, "yes": `"true"`, "on": "true"} {
		if got := string(m.Params[name]); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if m.Reuse != ReuseOff || !filepath.IsAbs(m.Key.File) || m.BaseURL != DefaultBaseURL {
		t.Errorf("model %+v", m)
	}
}

func TestKeyIsReadLateAndNeverShown(t *testing.T) {
	t.Setenv("SWARM_TEST_KEY", " sk-verysecret\n")
	s, err := Key{Env: "SWARM_TEST_KEY"}.Resolve()
	if err != nil || s.Reveal() != "sk-verysecret" {
		t.Fatalf("resolve: %v", err)
	}
	var out strings.Builder
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "key", s, "in", struct{ K Secret }{s})
	if shown := fmt.Sprintf("%v %+v %#v %s %q", s, s, s, s, s) + out.String(); strings.Contains(shown, "verysecret") {
		t.Errorf("shown: %s", shown)
	}
	if _, err := (Key{Env: "SWARM_TEST_NONE"}).Resolve(); err == nil || !strings.Contains(err.Error(), "SWARM_TEST_NONE") {
		t.Errorf("a missing variable: %v", err)
	}
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("abc\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := (Key{File: file}).Resolve(); err != nil || s.Reveal() != "abc" {
		t.Errorf("from a file: %v", err)
	}
}

func TestLoadNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "swarm.yaml") {
		t.Errorf("an empty folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "swarm.yaml"), []byte(small), 0o644); err != nil {
		t.Fatal(err)
	}
	if s, err := Load(dir); err != nil || s.File != filepath.Join(dir, "swarm.yaml") {
		t.Errorf("a folder: %v", err)
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]int64{"1": 1, "64KiB": 65536, "64 KiB": 65536, "2KB": 2000, "1.5GiB": 3 << 29, "0B": 0} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%s is %d, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "-1", "1.5", "64kb", "64Mib", "9223372036854775807KiB", "9999999.9TiB", "1e3"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("%q is %d", in, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(0, 1<<50).Draw(t, "n")
		if got, err := ParseSize(FormatSize(n)); err != nil || got != n {
			t.Fatalf("%d is written %s and read %d, %v", n, FormatSize(n), got, err)
		}
	})
}

func TestNearest(t *testing.T) {
	for in, want := range map[string]string{"raeds": "reads", "emit": "emits", "kinds": "kind", "zzz": "", "on-dead": "on_dead"} {
		if got := nearest(in, []string{"reads", "emits", "kind", "on_dead"}); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(small))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Parse("swarm.yaml", data, noEnv)
		if (s == nil) == (err == nil) {
			t.Fatal("neither or both of swarm and problems")
		}
		var problems Problems
		if err != nil && (!errors.As(err, &problems) || len(problems) == 0) {
			t.Fatalf("not problems: %v", err)
		}
		for _, p := range problems {
			if p.Line < 1 || p.Col < 1 || p.Found == "" || p.Instead == "" {
				t.Fatalf("an incomplete problem: %+v", p)
			}
		}
	})
}
