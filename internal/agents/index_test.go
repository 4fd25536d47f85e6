package agents

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
	vectors "github.com/swarmlog/swarmlog/internal/inference"
	"github.com/swarmlog/swarmlog/internal/inference/builtin"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestRareWordRanksItsPageFirst(t *testing.T) { onBoth(t, rareWordRanksItsPageFirst) }

func rareWordRanksItsPageFirst(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s, dir := newSwarm(t), t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 15 {
		word := ""
		if i == 11 {
			word = " zyxomma "
		}
		write(t, filepath.Join(dir, fmt.Sprint(i, ".txt")), randomText(r, 5000)+word+randomText(r, 1000))
	}
	s.scanOnce(s.finderOn(dir))
	if failed := s.drain(s.splitter()); len(failed) != 0 {
		t.Fatal(failed)
	}
	hits := s.search("zyxomma")
	if len(hits) == 0 || hits[0].Name != "11.txt" || !strings.Contains(hits[0].Excerpt, "zyxomma") {
		t.Fatalf("found %q", names(hits))
	}
	if hits = s.search("the ZYXOMMA of a lease"); hits[0].Name != "11.txt" {
		t.Errorf("among common words: %q", names(hits))
	}
	if hits = s.search("lease"); len(hits) != 10 || !slices.IsSortedFunc(hits, func(a, b Hit) int {
		if a.Score < b.Score {
			return 1
		}
		return -1
	}) {
		t.Errorf("%d hits for a common word", len(hits))
	}
	if hits = s.search("qqqqxxxx"); len(hits) != 0 {
		t.Errorf("nonsense finds %q", names(hits))
	}
	var c Counts
	s.read(func(ctx context.Context, tx ledger.Tx) (err error) { c, err = Count(ctx, tx); return err })
	if c.Split != 15 || c.Pages != int64(len(s.rows())) || c.Complete != c.Pages || c.Pages < 30 {
		t.Errorf("counts %+v", c)
	}
	for _, row := range s.rows() {
		if row.Steps != 1 || row.Summary == "" || len(row.SHA256) != 64 {
			t.Errorf("row %+v", row)
		}
	}
}

func TestLikenessFindsWhatWordsDont(t *testing.T) { onBoth(t, likenessFindsWhatWordsDont) }

func likenessFindsWhatWordsDont(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s, dir := newSwarm(t), t.TempDir()
	write(t, filepath.Join(dir, "a.txt"), "Deduplication of redelivered records keeps each effect single.")
	write(t, filepath.Join(dir, "b.txt"), "Bread wants flour, water, salt and patience.")
	s.scanOnce(s.finderOn(dir))
	s.drain(s.splitter())
	if got := names(s.search("deduplicating redelivery")); got != "a.txt:1" {
		t.Errorf("found %q", got)
	}
}

func TestPartsOfAPageComeInAnyOrderAndAreCounted(t *testing.T) {
	onBoth(t, partsOfAPageComeInAnyOrderAndAreCounted)
}

func partsOfAPageComeInAnyOrderAndAreCounted(t *testing.T, newSwarm func(testing.TB) *swarm) {
	place := Place{Document: strings.Repeat("a", 64), Page: 3}
	text := event.New(PageSplit, place.Subject(), Page{Place: place, SHA256: "s", Text: "the aardvark"})
	notes := event.New(PageRead, place.Subject(), Notes{place, "sum", []string{"a", "b"}, "m"})
	vector := event.New(PageEmbedded, place.Subject(), Vector{place, vectors.EncodeVector(builtin.Vector("aardvark")), builtin.Dims, builtin.VectorModel})
	for _, order := range [][]event.Event{{text, notes, vector}, {vector, notes, text}, {notes, text, vector}} {
		s := newSwarm(t)
		s.commit(within(func(ctx context.Context, st store) error {
			return st.putFile(ctx, file{Path: "/x/a.txt", Name: "a.txt", Document: place.Document, Version: 1})
		}))
		for _, e := range order {
			if _, err := s.handle(index, e); err != nil {
				t.Fatal(err)
			}
		}
		rows := s.rows()
		if len(rows) != 1 || rows[0].Steps != 1 || rows[0].Summary != "sum" || fmt.Sprint(rows[0].Terms) != "[a b]" || rows[0].Page != 3 {
			t.Fatalf("rows %+v", rows)
		}
		var c Counts
		s.read(func(ctx context.Context, tx ledger.Tx) (err error) { c, err = Count(ctx, tx); return err })
		if c.Complete != 1 {
			t.Errorf("%d pages have text, summary and vector", c.Complete)
		}
		if got := names(s.search("aardvark")); got != "a.txt:3" {
			t.Errorf("found %q", got)
		}
		// An effect that is applied twice shows.
		if _, err := s.handle(index, order[0]); err != nil {
			t.Fatal(err)
		}
		if rows := s.rows(); rows[0].Steps != 2 {
			t.Errorf("a second effect isn't counted: %+v", rows)
		}
	}
}

func TestVectorsOfOtherModelsLieBesideEachOther(t *testing.T) {
	onBoth(t, vectorsOfOtherModelsLieBesideEachOther)
}

func vectorsOfOtherModelsLieBesideEachOther(t *testing.T, newSwarm func(testing.TB) *swarm) {
	s := newSwarm(t)
	for i, v := range [][]float32{{1, 0, 0}, {0, 1, 0}, {0, 0.9, 0.1}} {
		place := Place{Document: fmt.Sprintf("%064d", i), Page: 1}
		s.commit(within(func(ctx context.Context, st store) error {
			return st.putFile(ctx, file{Path: fmt.Sprint("/", i), Name: fmt.Sprint(i), Document: place.Document, Version: 1})
		}))
		for _, e := range []event.Event{event.New(PageEmbedded, "x", Vector{place, vectors.EncodeVector(v), 3, "other"}), event.New(PageSplit, "x", Page{Place: place, Text: "words"})} {
			if _, err := s.handle(index, e); err != nil {
				t.Fatal(err)
			}
		}
	}
	var hits []Hit
	s.read(func(ctx context.Context, tx ledger.Tx) (err error) {
		hits, err = SearchWith(ctx, tx, "", Vectored{[]float32{0, 1, 0}, "other"}, 5)
		return err
	})
	if got := names(hits); got != "1:1 2:1" {
		t.Errorf("found %q", got)
	}
	if got := names(s.search("!")); got != "" {
		t.Errorf("no word finds %q", got)
	}
}

func TestIndexRefusesWhatItCantRead(t *testing.T) {
	s := newSwarm(t)
	place := Place{Document: strings.Repeat("a", 64), Page: 1}
	for name, e := range map[string]event.Event{
		"other type":   event.New("X", "x", place),
		"no JSON":      {Type: PageSplit, Data: []byte("{")},
		"no document":  event.New(PageRead, "x", Notes{}),
		"no page":      event.New(PageSplit, "x", Page{Place: Place{Document: place.Document}}),
		"short vector": event.New(PageEmbedded, "x", Vector{place, []byte{1, 2, 3, 4}, 2, "m"}),
		"not finite":   event.New(PageEmbedded, "x", Vector{place, []byte{0, 0, 0xc0, 0x7f}, 1, "m"}),
	} {
		if _, err := s.handle(index, e); fault.ClassOf(err) != fault.Permanent {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNotesAreReadLeniently(t *testing.T) {
	for in, want := range map[string]string{
		"A page.\nTerms: a; b c":                          "A page.|[a b c]",
		"**Summary:** A page.\n\n**Terms:** *a*, `b`.":    "A page.|[a b]",
		"Summary: It says\nmore.\nKey terms:\n- a\n- b\n": "It says more.|[a b]",
		"No terms at all.":                                "No terms at all.|[]",
		"Terms: only; these":                              "Terms: only; these|[only these]",
		"It has: a colon\nkeywords: x":                    "It has: a colon|[x]",
	} {
		summary, terms := parseNotes(in)
		if got := summary + "|" + fmt.Sprint(terms); got != want {
			t.Errorf("%q gives %q, want %q", in, got, want)
		}
	}
}

func FuzzParseNotes(f *testing.F) {
	f.Add("A page.\nTerms: a; b")
	f.Fuzz(func(t *testing.T, s string) {
		summary, terms := parseNotes(s)
		if len(summary) > maxSummary || len(terms) > maxTerms || (summary == "" && strings.TrimSpace(s) != "") {
			t.Fatalf("summary %q, %d terms", summary, len(terms))
		}
	})
}

// Whatever a person types is searched for, and none of it is a query language.
func FuzzSearch(f *testing.F) {
	s := newSwarm(f)
	place := Place{Document: strings.Repeat("a", 64), Page: 1}
	s.commit(within(func(ctx context.Context, st store) error {
		if err := st.putFile(ctx, file{Path: "/a", Name: "a", Document: place.Document, Version: 1}); err != nil {
			return err
		}
		return st.applyText(ctx, Page{Place: place, Text: "and or not near text"})
	}))
	for _, q := range []string{`"`, `""" OR`, "a*", "NEAR(a b)", "text:x", "-x", "^a", "(", "a\x00b", "\xff", "AND", "{a b}: c", "+", "日本", "' ; DROP TABLE doc_page"} {
		f.Add(q)
	}
	f.Fuzz(func(t *testing.T, words string) {
		err := s.db.Read(context.Background(), func(ctx context.Context, tx ledger.Tx) error {
			_, err := Search(ctx, tx, words, 3)
			return err
		})
		if err != nil {
			t.Errorf("%q: %v", words, err)
		}
	})
}

func BenchmarkSearch(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) { benchmarkSearch(b, newSwarm(b)) })
	b.Run("postgres", func(b *testing.B) { benchmarkSearch(b, newServedSwarm(b)) })
}

func benchmarkSearch(b *testing.B, s *swarm) {
	r := rand.New(rand.NewPCG(1, 2))
	s.commit(within(func(ctx context.Context, st store) error {
		for i := range 2000 {
			place := Place{Document: fmt.Sprintf("%064d", i), Page: 1}
			text := randomText(r, 2000)
			if err := st.putFile(ctx, file{Path: fmt.Sprint("/", i), Name: fmt.Sprint(i), Document: place.Document, Version: 1}); err != nil {
				return err
			}
			if err := st.applyText(ctx, Page{Place: place, Text: text}); err != nil {
				return err
			}
			if err := st.applyVector(ctx, Vector{place, vectors.EncodeVector(builtin.Vector(text)), builtin.Dims, builtin.VectorModel}); err != nil {
				return err
			}
		}
		return nil
	}))
	b.ResetTimer()
	for b.Loop() {
		s.search("lease epoch")
	}
}

// A worker that starts beside others that work locks none of their tables: it would wait for their commits, and they for
// it, until one of them is refused.
func TestSetupLocksNothingThatIsThere(t *testing.T) {
	s := newServedSwarm(t)
	var locked string
	s.commit(func(ctx context.Context, tx ledger.Tx) error {
		if err := setup(ctx, tx); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT coalesce(string_agg(relation::regclass || ' ' || mode, ', '), '') FROM pg_locks
			WHERE pid = pg_backend_pid() AND relation::regclass::text LIKE 'doc\_%' AND mode <> 'AccessShareLock'`).Scan(&locked)
	})
	if locked != "" {
		t.Errorf("setting up what is there has locked %s", locked)
	}
}
