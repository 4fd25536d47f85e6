package agents

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/ledger"
)

// What a person types finds the same pages, in the same order, in both dialects: cases and diacritics don't matter,
// what has no blanks is a phrase, and a rare word counts more than a common one.
func TestBothDialectsFindTheSame(t *testing.T) {
	pages := []string{
		"Der Größe nach: CAFÉ, Straße und naïve Überlegung.",
		"exactly-once delivery is at-least-once delivery and an idempotent effect",
		"once exactly, then twice; delivery delivery delivery",
		"кафка читает записи по порядку",
		"日本語の文書 and C++ and 3.14 and foo_bar",
		"delivery of the zyxomma",
		"a\u0301 cafe\u0301 with combining marks",
	}
	queries := []string{"cafe", "CAFÉ", "naive", "uberlegung", "größe", "strasse", "straße", "exactly-once", "once exactly", "КАФКА", "日本語の文書", "日本",
		"3.14", "14", "foo_bar", "bar", "delivery zyxomma", "c++", "twice;", "nothing-of-this"}
	found := map[string]map[string]string{}
	for dialect, open := range map[string]func(testing.TB) *swarm{"sqlite": newSwarm, "postgres": newServedSwarm} {
		s := open(t)
		s.commit(within(func(ctx context.Context, st store) error {
			for i, text := range pages {
				place := Place{Document: fmt.Sprintf("%064d", i), Page: 1}
				if err := st.putFile(ctx, file{Path: fmt.Sprint("/", i), Name: fmt.Sprint(i), Document: place.Document, Version: 1}); err != nil {
					return err
				}
				if err := st.applyText(ctx, Page{Place: place, Text: text}); err != nil {
					return err
				}
			}
			return nil
		}))
		found[dialect] = map[string]string{}
		for _, q := range queries {
			s.read(func(ctx context.Context, tx ledger.Tx) error {
				hits, err := SearchWith(ctx, tx, q, Vectored{}, 10)
				found[dialect][q] = names(hits)
				return err
			})
		}
	}
	for _, q := range queries {
		if found["sqlite"][q] != found["postgres"][q] {
			t.Errorf("%q finds %q in SQLite and %q in PostgreSQL", q, found["sqlite"][q], found["postgres"][q])
		}
	}
	if got := found["postgres"]["delivery zyxomma"]; !strings.HasPrefix(got, "5:1 ") {
		t.Errorf("the rare word's page isn't first: %q", got)
	}
}

func TestExcerptShowsWhereTheTermsAre(t *testing.T) {
	t.Parallel()
	far := strings.Repeat("word ", 100)
	for _, c := range []struct{ text, terms, want string }{
		{"The Café is open.", "cafe", "The Café is open."},
		{"nothing", "cafe", ""},
		{far + "here is the at-least-once guarantee " + far, "at-least-once", "at-least-once"},
		{far + "alpha " + far + "alpha beta " + far, "alpha beta", "alpha beta"},
	} {
		got := excerptOf(c.text, strings.Fields(c.terms))
		if !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("%q in a text gives %q", c.terms, got)
		}
		if n := len(wordsOf(got)); n > excerptWords {
			t.Errorf("%d words are shown", n)
		}
	}
}

// An excerpt is a part of its text, holds one of the terms, and is no longer than it may be.
func TestExcerptIsAPartOfItsText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "B", "é", "c-d", "…", "日", ".", "\n"}), 0, 200).Draw(t, "text"), " ")
		terms := rapid.SliceOfN(rapid.SampledFrom([]string{"A", "b", "e", "c-d", "d-c", "x"}), 1, 4).Draw(t, "terms")
		e := excerptOf(text, terms)
		has := false
		for _, term := range terms {
			has = has || excerptOf(e, []string{term}) != ""
		}
		if !strings.Contains(text, strings.TrimSuffix(strings.TrimPrefix(e, "…"), "…")) || e != "" && !has || len(wordsOf(e)) > excerptWords {
			t.Fatalf("%q of %q for %q", e, text, terms)
		}
	})
}

// Whatever a page holds, PostgreSQL takes what is made of it: words need no quotes.
func FuzzTsvector(f *testing.F) {
	for _, s := range []string{"", "it's", `a\b`, "a:1,2", "\x00", "\xff", "ﬀ ½ Ⅻ", strings.Repeat("x", 3000), "a\u0301"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if v := tsvector(text); strings.ContainsAny(v, "\\\x00") || strings.Count(v, "'") != 2*strings.Count(v, "':") {
			t.Fatalf("%q gives %q", text, v)
		}
		for _, w := range wordsOf(text) {
			if w.text == "" || len(w.text) > longestWord || w.from >= w.to || w.to > len(text) {
				t.Fatalf("%q gives %+v", text, w)
			}
		}
	})
}
