package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/devservices/given"
)

// print prints pages of the corpus to PDF, each with a rare word.
func (c *corpus) print(t testing.TB, n int) {
	t.Helper()
	if n == 0 {
		return
	}
	chromium := given.Chromium(t)
	scratch := t.TempDir()
	printed := 0
	for _, d := range c.files {
		if printed == n {
			return
		}
		if !strings.HasSuffix(d.name, ".html") || d.planted != "" { // one of its own would be found twice
			continue
		}
		printed++
		text, err := os.ReadFile(filepath.Join(c.folder, d.name))
		if err != nil {
			t.Fatal(err)
		}
		word := rareWord(10_000 + printed)
		source := filepath.Join(scratch, fmt.Sprintf("%d.html", printed))
		write(t, source, plant(candidate{kind: ".html", text: text}, word))
		p := document{name: fmt.Sprintf("printed/%02d.pdf", printed), planted: word}
		target := filepath.Join(c.folder, p.name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			t.Fatal(err)
		}
		printPDF(t, chromium, source, target)
		p.pages = pdfPages(t, target)
		c.files = append(c.files, p)
	}
	if printed < n {
		t.Fatalf("only %d pages of HTML to print, want %d", printed, n)
	}
}

func printPDF(t testing.TB, chromium, source, target string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	profile, err := os.MkdirTemp("", "swarmlog-e2e-browser-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(profile) }() // the browser may still be writing there
	out, err := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+profile,
		"--print-to-pdf="+target, (&url.URL{Scheme: "file", Path: source}).String()).CombinedOutput()
	if err != nil {
		t.Fatalf("print %s: %v\n%s", source, err, tail(string(out), 2000))
	}
}

var pdfPage = regexp.MustCompile(`/Type\s*/Page[^s]`)

// pdfPages are the numbers of a PDF's pages with text: by poppler, another reader than ours, where it's installed;
// else all, as the browser wrote them down.
func pdfPages(t testing.TB, file string) []int {
	t.Helper()
	var pages []int
	if poppler, err := exec.LookPath("pdftotext"); err == nil {
		out, err := exec.CommandContext(t.Context(), poppler, "-q", file, "-").Output()
		if err != nil {
			t.Fatalf("count the pages of %s: %v", file, err)
		}
		for i, text := range strings.SplitAfter(string(out), "\f") {
			if strings.TrimSpace(text) != "" {
				pages = append(pages, i+1)
			}
		}
		return pages
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range pdfPage.FindAll(b, -1) {
		pages = append(pages, i+1)
	}
	return pages
}
