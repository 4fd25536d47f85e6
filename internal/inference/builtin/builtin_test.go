package builtin

import (
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

const page = `# Leases

A lease says which worker owns a partition, and an epoch counts its owners. The lease row is locked inside the commit
transaction, so a paused worker whose lease moved on can't commit. Clocks play no part in this; e.g. a machine whose clock
jumps loses speed, never safety. It was raining.

| a | b | c |
|---|---|---|
| 1 | 2 | 3 |

- The epoch of a lease only rises.
- The weather was fine on the day of the first run.

When the owner dies, its lease expires and another worker takes the partition with the next epoch.`

func TestSummaryQuotesWhatTheTextIsAbout(t *testing.T) {
	s := Summary(page, 3)
	if !strings.Contains(s, "lease") || !strings.Contains(s, "worker") || strings.Contains(s, "weather") || strings.Contains(s, "raining") {
		t.Errorf("summary %q", s)
	}
	if n := len(sentences(s)); n < 2 || n > 3 {
		t.Errorf("%d sentences: %q", n, s)
	}
	if strings.ContainsAny(s, "#|\n") {
		t.Errorf("marks in %q", s)
	}
	if got := Summary("Lorem", 3); got != "Lorem" {
		t.Errorf("a text without sentences gives %q", got)
	}
}

func TestTermsNameWhatTheTextIsAbout(t *testing.T) {
	terms := Terms(page, 5)
	if len(terms) != 5 || !slices.ContainsFunc(terms, func(s string) bool { return strings.Contains(s, "lease") }) {
		t.Errorf("terms %q", terms)
	}
	for _, term := range terms {
		if term == "the" || term == "which" {
			t.Errorf("a stop word among %q", terms)
		}
	}
}

func TestSentencesDontEndAtAbbreviations(t *testing.T) {
	var got []string
	for _, s := range sentences("Use a log, e.g. Kafka, vs. A queue. Version 2.5 is fine! Dr. Who asked (twice.) Then? Yes.") {
		got = append(got, s.text)
	}
	want := []string{"Use a log, e.g. Kafka, vs. A queue.", "Version 2.5 is fine!", "Dr. Who asked (twice.)", "Then?", "Yes."}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
}

func cosine(a, b []float32) float64 {
	sum := 0.0
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}

func TestVectorsOfRelatedTextsAreNearer(t *testing.T) {
	query := Vector("who owns a partition after a worker died")
	near, far := cosine(query, Vector(page)), cosine(query, Vector("Bread needs flour, water, salt and patience; the oven does the rest of the baking."))
	if near < far+0.1 {
		t.Errorf("near %f, far %f", near, far)
	}
	// The numbers are stored: they may change only together with the model's name.
	if v := Vector("lease epoch"); math.Abs(cosine(v, v)-1) > 1e-6 || len(v) != Dims {
		t.Errorf("vector %v", v)
	}
}

const fixed = 169.278555

func TestVectorIsFixed(t *testing.T) {
	sum := 0.0
	for i, x := range Vector(page) {
		sum += float64(x) * float64(i+1)
	}

	if math.Abs(sum-fixed) > 1e-4 {
		t.Errorf("checksum %.6f, want %.6f: vectors changed, so VectorModel must get a new name", sum, fixed)
	}

}

func TestAnyTextIsAnswered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`([A-Za-z#*|.!?\n ]{0,30}\. ){0,8}`)).Draw(t, "text")
		s, terms, v := Summary(text, 3), Terms(text, 8), Vector(text)
		if !utf8.ValidString(s) || len(s) > 2*longest || len(terms) > 8 || len(v) != Dims {
			t.Fatalf("summary %q, terms %q, %d numbers", s, terms, len(v))
		}
		if strings.TrimSpace(text) != "" && s == "" {
			t.Fatalf("no summary of %q", text)
		}
		if again := Chat(text); !slices.Equal(v, Vector(text)) || again != Chat(text) {
			t.Fatal("not deterministic")
		}
		if l := cosine(v, v); l != 0 && math.Abs(l-1) > 1e-5 {
			t.Fatalf("length %f", l)
		}
	})
}

func BenchmarkPage(b *testing.B) {
	text := strings.Repeat(page, 4)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		Chat(text)
		Vector(text)
	}
}
