package config

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The operators' page has the table of settings as the program has them.
func TestSettingsAreDocumented(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../../docs/running.md", "<!-- settings -->\n", "<!-- /settings -->"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(page), begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	want := settingsTable()
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != want {
		t.Errorf("%s has another table: run go test ./internal/config -update", file)
	}
}

func settingsTable() string {
	var b strings.Builder
	b.WriteString("\n| in `swarm.yaml` | in the environment | flag of `run` | default | meaning |\n|---|---|---|---|---|\n")
	code := func(s, prefix string) string {
		if s == "" {
			return ""
		}
		return "`" + prefix + s + "`"
	}
	for _, s := range SettingDocs() {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", code(s.Key, ""), code(s.Env, ""), code(s.Flag, "--"), s.Default, s.Doc)
	}
	return b.String() + "\n"
}
