package agents

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/swarmlog/swarmlog/internal/inference"
	"github.com/swarmlog/swarmlog/internal/inference/builtin"
	"github.com/swarmlog/swarmlog/ledger"
)

// Hit is a page that a search found.
type Hit struct {
	Document string  `json:"document"` // the document's SHA-256
	Name     string  `json:"name"`     // of a file that holds it, within its input folder
	Path     string  `json:"path"`
	Page     int     `json:"page"`
	Part     int     `json:"part,omitempty"`
	Summary  string  `json:"summary,omitempty"`
	Excerpt  string  `json:"excerpt"`
	Score    float64 `json:"score"` // only good for comparing hits of one search
}

// PageRow is a page as the index has it.
type PageRow struct {
	Document string   `json:"document"`
	Name     string   `json:"name"`
	Path     string   `json:"path"`
	Page     int      `json:"page"`
	Part     int      `json:"part,omitempty"`
	SHA256   string   `json:"sha256"` // of its text
	Summary  string   `json:"summary"`
	Terms    []string `json:"terms,omitempty"`
	Steps    int64    `json:"steps"` // how often its effect was applied, the greatest of its parts: 1
}

// Counts are of the files that are there now.
type Counts struct {
	Files     int64 `json:"files"`     // with a supported name, and those that can't be read
	Documents int64 `json:"documents"` // different contents
	Copies    int64 `json:"copies"`    // files beyond the first of their content
	Problems  int64 `json:"problems"`  // files that can't be read
	Split     int64 `json:"split"`     // documents whose pages are out
	Pages     int64 `json:"pages"`     // with their text in the index
	Complete  int64 `json:"complete"`  // pages with text, summary and vector
}

// Vectored is a query's vector by the model that made the pages' vectors.
type Vectored struct {
	Vector []float32
	Model  string // as answers report it
}

// Search ranks pages by words and by likeness, best first. Pages whose vectors come from another model than the
// built-in one are found by words alone; SearchWith takes a vector for those.
func Search(ctx context.Context, tx ledger.Tx, words string, limit int) ([]Hit, error) {
	return SearchWith(ctx, tx, words, Vectored{builtin.Vector(words), builtin.VectorModel}, limit)
}

const (
	// Reciprocal rank fusion (Cormack, Clarke and Büttcher, 2009) with its usual constant. Words weigh twice as much
	// as likeness, so that the only page with a rare word stands before all that merely resemble the query.
	fusion      = 60
	wordsWeight = 2
	candidates  = 100 // of each way
)

// SearchWith is Search with the query's vector by any model.
func SearchWith(ctx context.Context, tx ledger.Tx, words string, v Vectored, limit int) ([]Hit, error) {
	s, err := storeOf(tx)
	if err != nil {
		return nil, err
	}
	scores := make(map[int64]float64)
	add := func(ids []int64, weight float64) {
		for i, id := range ids {
			scores[id] += weight / float64(fusion+i+1)
		}
	}
	terms := queryTerms(words)
	if len(terms) > 0 {
		ids, err := s.byWords(ctx, terms, candidates)
		if err != nil {
			return nil, fmt.Errorf("search words: %w", err)
		}
		add(ids, wordsWeight)
	}
	if slices.ContainsFunc(v.Vector, func(x float32) bool { return x != 0 }) {
		ids, err := s.byVector(ctx, inference.EncodeVector(v.Vector), v.Model, len(v.Vector), candidates)
		if err != nil {
			return nil, fmt.Errorf("search by likeness: %w", err)
		}
		add(ids, 1)
	}
	return hits(ctx, s, terms, scores, limit)
}

func hits(ctx context.Context, s store, terms []string, scores map[int64]float64, limit int) ([]Hit, error) {
	ids := slices.SortedFunc(maps.Keys(scores), func(a, b int64) int {
		if c := cmp.Compare(scores[b], scores[a]); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	})
	ids = ids[:min(max(limit, 0), len(ids))]
	out := make([]Hit, 0, len(ids))
	for _, id := range ids {
		h, err := s.hit(ctx, id)
		if err == nil && len(terms) > 0 {
			var e string
			if e, err = s.excerpt(ctx, terms, id); e != "" {
				h.Excerpt = e
			}
		}
		if err != nil {
			return nil, fmt.Errorf("look page %d of the index up: %w", id, err)
		}
		h.Excerpt, h.Score = oneLine(h.Excerpt), scores[id]
		out = append(out, h)
	}
	return out, nil
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(strings.ToValidUTF8(s, "")), " ")
}

// maxWords bounds what is searched for at once.
const maxWords = 64

// queryTerms are the terms of what a person looks for: what stands between blanks and has a letter or digit.
func queryTerms(words string) []string {
	var terms []string
	for w := range strings.FieldsSeq(strings.ToValidUTF8(words, " ")) {
		w = strings.Map(func(c rune) rune {
			if c == 0 {
				return -1
			}
			return c
		}, w)
		if len(w) > 200 || strings.IndexFunc(w, wordRune) < 0 {
			continue
		}
		terms = append(terms, w)
		if len(terms) == maxWords {
			break
		}
	}
	return terms
}

func wordRune(c rune) bool {
	return c != utf8.RuneError && (unicode.IsLetter(c) || unicode.IsDigit(c))
}

// Pages hands out all pages of the documents that are there now, by path and page.
func Pages(ctx context.Context, tx ledger.Tx, yield func(PageRow) error) error {
	s, err := storeOf(tx)
	if err != nil {
		return err
	}
	return s.pages(ctx, yield)
}

// Count counts files, documents and pages.
func Count(ctx context.Context, tx ledger.Tx) (Counts, error) {
	s, err := storeOf(tx)
	if err != nil {
		return Counts{}, err
	}
	c, err := s.counts(ctx)
	if err != nil {
		return c, fmt.Errorf("count documents: %w", err)
	}
	return c, nil
}

// Setup makes the tables that the queries read, as each agent does when it starts, for those who ask before.
func Setup(ctx context.Context, tx ledger.Tx) error { return setup(ctx, tx) }

// Present tells whether any swarm has made the index's tables in this database.
func Present(ctx context.Context, tx ledger.Tx) (bool, error) {
	s, err := storeOf(tx)
	if err != nil {
		return false, err
	}
	there, err := s.present(ctx)
	if err != nil {
		return false, fmt.Errorf("look for the index: %w", err)
	}
	return there, nil
}
