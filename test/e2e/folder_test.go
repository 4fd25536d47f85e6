package e2e

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/ledger"
)

// TestFolder reads a folder of real documents and finds every page and word of them again.
func TestFolder(t *testing.T) {
	beside(t)
	c := newCorpus(t, scaled(120, 2000), scaled(2, 20), int64(scaled(32<<10, 1<<20)))
	data := filepath.Join(t.TempDir(), "data")
	r := swarmlog(t, nil, upArgs(data, []string{c.folder}, "--exit-when-idle", "--json")...).wait(20 * time.Minute)
	if r.code != 0 {
		t.Fatalf("exit code %d: %s", r.code, tail(r.err, 4000))
	}
	s := r.summary(t)
	t.Logf("%d documents, %d pages, records %v in %.1f s: %.0f steps/s, %.0f pages/s; at most %d MiB",
		s.Documents, s.Pages, s.Records, s.Elapsed, float64(s.Records["applied"])/s.Elapsed, float64(s.Pages)/s.Elapsed, r.peak>>20)
	if r.peak > 1<<30 && !raced {
		t.Errorf("it took %d MiB, want less than 1 GiB", r.peak>>20)
	}
	pages := pagesOf(t, data)
	if s.Documents != int64(len(c.files)) || s.Pages != int64(len(pages)) || len(s.Warnings) > 0 {
		t.Errorf("documents %d of %d, pages %d of %d listed, warnings %q", s.Documents, len(c.files), s.Pages, len(pages), s.Warnings)
	}
	if want := s.Documents + 5*s.Pages; s.Records["applied"] != want || s.Records["dead"]+s.Records["waiting"] != 0 {
		t.Errorf("records %v; want %d applied", s.Records, want)
	}
	c.check(t, data, pages)
	c.checkSearch(t, data)
}

// check compares the pages with the files.
func (c corpus) check(t *testing.T, data string, pages []page) {
	t.Helper()
	byDocument := map[string][]page{}
	for _, p := range pages {
		byDocument[p.Document] = append(byDocument[p.Document], p)
		if p.Steps != 1 || p.Summary == "" || p.SHA256 == "" || p.Path != filepath.Join(c.folder, p.Document) {
			t.Errorf("%s, page %d: steps %d, summary %q, sha256 %q, path %s", p.Document, p.Page, p.Steps, p.Summary, p.SHA256, p.Path)
		}
	}
	if len(byDocument) != len(c.files) {
		t.Errorf("%d documents have pages, want %d", len(byDocument), len(c.files))
	}
	texts := indexed(t, data)
	if len(texts) != len(pages) {
		t.Errorf("the index holds %d pages, %d are listed", len(texts), len(pages))
	}
	for _, d := range c.files {
		var numbers []int
		var text strings.Builder
		for _, p := range byDocument[d.name] {
			if p.Part == 0 || len(numbers) == 0 || numbers[len(numbers)-1] != p.Page {
				numbers = append(numbers, p.Page)
			}
			of := texts[place{p.Path, p.Page, p.Part, p.SHA256}]
			if digest([]byte(of)) != p.SHA256 {
				t.Errorf("%s, page %d: its text isn't what its sha256 says", d.name, p.Page)
			}
			text.WriteString(of)
		}
		switch {
		case len(numbers) == 0:
			t.Errorf("%s has no pages", d.name)
		case d.pages != nil && !slices.Equal(numbers, d.pages):
			t.Errorf("%s has pages %v, want %v", d.name, numbers, d.pages)
		case d.words != "" && squeeze(text.String()) != d.words:
			t.Errorf("the pages of %s have other words than the file", d.name)
		case d.planted != "" && !strings.Contains(text.String(), d.planted):
			t.Errorf("the pages of %s don't hold %q", d.name, d.planted)
		}
	}
}

// checkSearch looks for rare words.
func (c corpus) checkSearch(t *testing.T, data string) {
	t.Helper()
	left := scaled(8, 60)
	for _, d := range c.files {
		pdf := strings.HasSuffix(d.name, ".pdf")
		if d.planted == "" || (left <= 0 && !pdf) {
			continue
		}
		left--
		if hits := search(t, data, d.planted); !finds(hits, d.name, d.planted) {
			t.Errorf("search %s: %v; want %s first", d.planted, hits, d.name)
		}
	}
}

// indexed reads the index from the ledger: the text of each page that has its text, summary and vector, each once.
func indexed(t *testing.T, data string) map[place]string {
	t.Helper()
	texts := map[place]string{}
	query(t, data, `SELECT f.path, p.page, p.part, p.sha256, b.text, p.text_applied, p.summary_applied, p.vector_applied, coalesce(v.dims, 0)
		FROM doc_page p JOIN doc_file f ON f.document = p.document LEFT JOIN doc_body b ON b.id = p.id LEFT JOIN doc_vector v ON v.id = p.id`,
		func(scan func(...any) error) error {
			var p place
			var text string
			var page, part, texted, summed, vectored, dims int64
			if err := scan(&p.document, &page, &part, &p.sha256, &text, &texted, &summed, &vectored, &dims); err != nil {
				return err
			}
			p.page, p.part = int(page), int(part)
			if texted != 1 || summed != 1 || vectored != 1 || dims == 0 {
				t.Errorf("%s, page %d: text applied %d times, summary %d, vector %d; the vector has %d numbers",
					p.document, p.page, texted, summed, vectored, dims)
			}
			texts[p] = text
			return nil
		})
	return texts
}

// query reads the ledger of a folder on which nothing runs.
func query(t *testing.T, data, sql string, each func(scan func(...any) error) error) {
	t.Helper()
	db, err := sqlite.OpenReadOnly(filepath.Join(data, "ledger.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	err = db.Read(t.Context(), func(ctx context.Context, tx ledger.Tx) (err error) {
		rows, err := tx.Query(ctx, sql)
		if err != nil {
			return err
		}
		defer func() {
			if e := rows.Close(); err == nil {
				err = e
			}
		}()
		for rows.Next() {
			if err := each(rows.Scan); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
}
