package fieldcases

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The page of field cases names tests that exist, in the package that it says, and every test that is named for a case.
func TestIndexIsTrue(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/field-cases.md")
	check(t, err)
	folder := regexp.MustCompile("`((?:test|internal|event)[a-z/]*)`:")
	name := regexp.MustCompile("`([A-Za-z0-9]+)`")
	indexed := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		for part := range strings.SplitSeq(line, ";") {
			in := folder.FindStringSubmatch(part)
			if in == nil {
				continue
			}
			source := sourceOf(t, in[1])
			for _, n := range name.FindAllStringSubmatch(part[strings.Index(part, in[0])+len(in[0]):], -1) {
				indexed[in[1]+"."+n[1]] = true
				if !strings.Contains(source, "func "+n[1]+"(") && !strings.Contains(source, `{"`+n[1]+`",`) {
					t.Errorf("%s has no test %s", in[1], n[1])
				}
			}
		}
	}
	if len(indexed) < 40 {
		t.Fatalf("only %d tests are named: the page isn't read right", len(indexed))
	}
	cases := regexp.MustCompile(`func (Test(?:[RTPDKQI][0-9])[A-Z0-9]\w*)\(`)
	for _, m := range cases.FindAllStringSubmatch(sourceOf(t, "test/fieldcases"), -1) {
		if !indexed["test/fieldcases."+m[1]] {
			t.Errorf("docs/field-cases.md doesn't name %s", m[1])
		}
	}
}

// sourceOf is the Go source of a folder.
func sourceOf(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
	check(t, err)
	var all strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		check(t, err)
		all.Write(b)
	}
	return all.String()
}
