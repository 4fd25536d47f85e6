package test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/swarmlog/swarmlog"

// goFile is one Go file of the module, its package's folder relative to the module, with slashes; "." is the root.
type goFile struct {
	path, folder string
	test         bool
	generated    bool
	lines        int
	text         string
	ast          *ast.File
}

// ours is the folder of an import path of this module; ok is false for others.
func ours(importPath string) (folder string, ok bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

func (f *goFile) imports() []string {
	var paths []string
	for _, i := range f.ast.Imports {
		paths = append(paths, strings.Trim(i.Path.Value, `"`))
	}
	return paths
}

// goFiles reads the module's Go files, a module within it (bench's peers) left out.
func goFiles(t *testing.T) []*goFile {
	t.Helper()
	var files []*goFile
	walk(t, func(name string, d fs.DirEntry) error {
		if d.IsDir() {
			if name != "." && exists(filepath.Join("..", name, "go.mod")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, &goFile{path: name, folder: path.Dir(name), test: strings.HasSuffix(name, "_test.go"),
			generated: ast.IsGenerated(parsed), lines: strings.Count(string(text), "\n"), text: string(text), ast: parsed})
		return nil
	})
	if len(files) < 20 {
		t.Fatalf("only %d Go files found: the walk looks in the wrong place", len(files))
	}
	return files
}

// walk visits the repository's files, by slash path from its root, without what git ignores.
func walk(t *testing.T, visit func(name string, d fs.DirEntry) error) {
	t.Helper()
	ignored := []string{".git", ".swarmlog", ".cache", "bin", "bench/out", "node_modules"}
	err := filepath.WalkDir("..", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel("..", p)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		if d.IsDir() && slices.Contains(ignored, name) {
			return fs.SkipDir
		}
		return visit(name, d)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// under tells whether a folder is one of the given ones or below it.
func under(folder string, parents ...string) bool {
	for _, p := range parents {
		if folder == p || strings.HasPrefix(folder, p+"/") {
			return true
		}
	}
	return false
}

// allowed lists, for packages at the bottom, all of ours that they may import. It's the design's layering: leaf and
// pure packages know nothing above them, the engine knows interfaces.
var allowed = map[string][]string{
	"event":                  {"internal/canonical", "internal/fault"},
	"inference":              {},
	"ledger":                 {"event"},
	"internal/canonical":     {},
	"internal/circuit":       {},
	"internal/fair":          {},
	"internal/fault":         {},
	"internal/plan":          {},
	"internal/route":         {},
	"internal/sketch":        {},
	"internal/salt":          {"internal/route", "internal/sketch"},
	"internal/sabotage":      {},
	"internal/broker":        {"event"},
	"internal/engine":        {"event", "inference", "ledger", "internal/broker", "internal/canonical", "internal/circuit", "internal/fair", "internal/fault", "internal/plan", "internal/route", "internal/sabotage", "internal/salt"},
	"internal/ledger/sqlite": {"event", "ledger", "internal/canonical", "internal/fault", "internal/sabotage"},
}

// implementations are seen by the package that wires them, and by what proves and measures; all others see interfaces.
var implementations = []string{"internal/broker/kafka", "internal/broker/embedded", "internal/ledger/sqlite", "internal/ledger/postgres"}

var wires = []string{"internal/app", "internal/prove", "bench", "test"}

// homes name, for a library, the only packages that import it.
var homes = map[string][]string{
	"github.com/twmb/franz-go/pkg/kgo":   {"internal/broker/kafka", "internal/devservices"},
	"github.com/twmb/franz-go/pkg/kadm":  {"internal/broker/kafka", "internal/devservices"},
	"github.com/twmb/franz-go/pkg/kfake": {"internal/broker/embedded"},
	"modernc.org/sqlite":                 {"internal/ledger/sqlite"},
	"github.com/jackc/pgx":               {"internal/ledger/postgres", "internal/devservices"},
	"github.com/openai/openai-go":        {"internal/inference"},
	"github.com/klippa-app/go-pdfium":    {"internal/agents"},
	"github.com/alecthomas/kong":         {"internal/cli", "cmd/swarmlog"},
	"github.com/goccy/go-yaml":           {"internal/config"},
}

// equipment is of the repository, not of the product: what the product links never imports it. The kill kit is the
// exception: prove kills processes with it, as the suites do.
var equipment = []string{"internal/devservices", "internal/cmd", "test", "bench"}

// importsTesting are packages that help tests and so may import testing.
var importsTesting = []string{"swarmtest", "internal/devservices/given", "internal/ledger/ledgertest", "internal/broker/brokertest", "test"}

// importFaults tells what one import breaks.
func importFaults(f *goFile, imported string) []string {
	var faults []string
	say := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if folder, ok := ours(imported); ok {
		if list, bound := allowed[f.folder]; bound && !f.test && !slices.Contains(list, folder) {
			say("%s may import of ours only %v", f.folder, list)
		}
		if !f.test && under(folder, implementations...) && !under(f.folder, append(wires, folder)...) {
			say("only %v see implementations: take the interface", wires)
		}
		if !f.test && under(folder, equipment...) && !under(f.folder, equipment...) && folder != "internal/killkit" {
			say("the product doesn't link the repository's equipment")
		}
		if folder == "internal/app" && !under(f.folder, ".", "internal/cli", "cmd", "swarmtest", "test", "bench", "internal/prove") {
			say("internal/app wires everything, so nothing below it may import it")
		}
	}
	for library, home := range homes {
		if (imported == library || strings.HasPrefix(imported, library+"/")) && !f.test && !under(f.folder, append(home, "bench", "test")...) {
			say("only %v import %s", home, library)
		}
	}
	if imported == "testing" && !f.test && !under(f.folder, importsTesting...) {
		say("only tests and %v import testing", importsTesting)
	}
	return faults
}

func TestImportRules(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		for _, imported := range f.imports() {
			for _, fault := range importFaults(f, imported) {
				t.Errorf("%s imports %s: %s", f.path, imported, fault)
			}
		}
	}
}

// TestImportRulesCatch shows that the rules above can fail.
func TestImportRulesCatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		folder, imports string
		test, fault     bool
	}{
		{"event", module + "/ledger", false, true},
		{"event", module + "/internal/canonical", false, false},
		{"ledger", module + "/internal/engine", false, true},
		{"internal/engine", module + "/internal/ledger/sqlite", false, true},
		{"internal/engine", module + "/internal/ledger/sqlite", true, false},
		{"internal/engine", "github.com/twmb/franz-go/pkg/kgo", false, true},
		{"internal/broker/kafka", "github.com/twmb/franz-go/pkg/kgo", false, false},
		{"internal/broker/kafka", "github.com/twmb/franz-go/pkg/kgo/internal/x", false, false},
		{"internal/agents/papers", "modernc.org/sqlite", false, true},
		{"cmd/swarmlog", module + "/internal/broker/kafka", false, true},
		{"internal/app", module + "/internal/broker/kafka", false, false},
		{"internal/app", module + "/internal/devservices", false, true},
		{"internal/engine", module + "/internal/app", false, true},
		{"internal/engine", "testing", false, true},
		{"internal/ledger/ledgertest", "testing", false, false},
	} {
		f := &goFile{folder: c.folder, test: c.test}
		if got := importFaults(f, c.imports); (len(got) > 0) != c.fault {
			t.Errorf("%s importing %s: faults %v, want some: %v", c.folder, c.imports, got, c.fault)
		}
	}
}

// TestPackageNames keeps packages nouns of the domain.
func TestPackageNames(t *testing.T) {
	t.Parallel()
	vague := regexp.MustCompile(`^(utils?|common|helpers?|managers?|misc|shared|base|types)$`)
	for _, f := range goFiles(t) {
		if vague.MatchString(f.ast.Name.Name) {
			t.Errorf("%s: package %s says nothing: name the thing that it owns", f.path, f.ast.Name.Name)
		}
	}
}

// TestPackageComments wants of every package a comment that says what it owns.
func TestPackageComments(t *testing.T) {
	t.Parallel()
	documented := map[string]bool{}
	for _, f := range goFiles(t) {
		name := f.ast.Name.Name
		if strings.HasSuffix(name, "_test") {
			continue
		}
		want := "Package " + name
		if name == "main" {
			want = "Command "
		}
		if f.ast.Doc != nil && strings.HasPrefix(f.ast.Doc.Text(), want) {
			documented[f.folder] = true
		} else if !documented[f.folder] {
			documented[f.folder] = false
		}
	}
	for folder, ok := range documented {
		if !ok {
			t.Errorf("package in %s has no comment: say in one file what it owns, must not import, and what survives a crash", folder)
		}
	}
}

// longest is how many lines a file may have before its head must say why.
const longest = 600

var saysWhy = regexp.MustCompile(`(?im)^//.*\blong because\b`)

func TestFileLength(t *testing.T) {
	t.Parallel()
	for _, f := range goFiles(t) {
		if f.generated || f.lines <= longest {
			continue
		}
		if head := f.text[:min(len(f.text), 3000)]; !saysWhy.MatchString(head) {
			t.Errorf("%s has %d lines: split it by mechanism, or say at its head \"// It is long because …\"", f.path, f.lines)
		}
	}
}

// forbidden are words that tell of one machine: they'd be wrong on any other.
var forbidden = []*regexp.Regexp{
	regexp.MustCompile(`(^|[\s"'=(:` + "`" + `])/(home|Users)/[A-Za-z]`),
	regexp.MustCompile(`(^|[\s"'=(:` + "`" + `])/(root|wor[k]|far[m])/`),
	regexp.MustCompile(`https?://(proxy|registry|repo1?|deb|sum|index|static)\.`),
}

func TestNothingSpeaksOfOneMachine(t *testing.T) {
	t.Parallel()
	kinds := []string{".go", ".md", ".yaml", ".yml", ".toml", ".sh", ".json", ".mod", ".html", ".css", ".js", ".txtar", ""}
	seen := 0
	walk(t, func(name string, d fs.DirEntry) error {
		if d.IsDir() {
			// Sample documents are other people's words.
			if strings.HasPrefix(name, "examples/") && (path.Base(name) == "input" || path.Base(name) == "documents") {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || !slices.Contains(kinds, path.Ext(name)) {
			return nil
		}
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			return err
		}
		seen++
		number := 0
		words := forbidden
		if strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/testdata/") {
			words = forbidden[1:] // inputs may name people's folders
		}
		for line := range strings.Lines(string(text)) {
			number++
			for _, f := range words {
				if m := f.FindString(line); m != "" {
					t.Errorf("%s:%d has %q: the repository speaks of no one's machine or registry", name, number, m)
				}
			}
		}
		return nil
	})
	if seen < 20 {
		t.Errorf("only %d files seen: the walk looks in the wrong place", seen)
	}
}

func TestForbiddenWordsCatch(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"open /ho" + "me/ann/x":                      true,
		`path := "/ro` + `ot/x"`:                     true,
		"GOPROXY=https://pro" + "xy.example.org":     true,
		"a relative home/x, and https://example.org": false,
		"the framework/library":                      false,
	} {
		got := false
		for _, f := range forbidden {
			got = got || f.MatchString(line)
		}
		if got != want {
			t.Errorf("%q: forbidden is %v, want %v", line, got, want)
		}
	}
}
