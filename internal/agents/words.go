package agents

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// This file cuts text into words as FTS5's unicode61 does, for a database whose own way is another one: a word is a
// run of letters and digits, without regard to case and diacritics. Pure functions.

// word is a word of a text, folded, and where it stands there.
type word struct {
	text     string
	from, to int // bytes
}

// longestWord is where a word is cut off, in bytes: PostgreSQL's lexemes have a limit.
const longestWord = 255

// wordsOf cuts a text into its words.
func wordsOf(text string) []word {
	var all []word
	from := -1
	end := func(to int) {
		if from < 0 {
			return
		}
		if folded := fold(text[from:to]); folded != "" {
			all = append(all, word{folded, from, to})
		}
		from = -1
	}
	for i, c := range text {
		if wordRune(c) || unicode.Is(unicode.Co, c) && c != utf8.RuneError || from >= 0 && unicode.Is(unicode.Mn, c) {
			if from < 0 {
				from = i
			}
			continue
		}
		end(i)
	}
	end(len(text))
	return all
}

// fold takes case and diacritics away.
func fold(s string) string {
	var b strings.Builder
	for _, c := range norm.NFD.String(s) {
		if !unicode.Is(unicode.Mn, c) {
			b.WriteRune(unicode.ToLower(c))
		}
	}
	return clip(b.String(), longestWord)
}

const (
	// Limits of a tsvector: positions beyond the last count as the last, and a word keeps so many.
	lastPosition  = 1<<14 - 1
	mostPositions = 255
)

// tsvector is a text as PostgreSQL's type of that name is written: its words, which hold nothing that would have to
// be escaped, with their positions.
func tsvector(text string) string {
	places := map[string][]int{}
	for i, w := range wordsOf(text) {
		if p := places[w.text]; len(p) < mostPositions {
			places[w.text] = append(p, min(i+1, lastPosition))
		}
	}
	var b strings.Builder
	for w, positions := range places {
		b.WriteString("'" + w + "':")
		for i, p := range positions {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strconv.Itoa(p))
		}
		b.WriteByte(' ')
	}
	return b.String()
}

// tsqueries are what a person types as tsqueries: what stands between blanks is a phrase of its words.
func tsqueries(terms []string) []string {
	var all []string
	for _, t := range terms {
		var parts []string
		for _, w := range wordsOf(t) {
			parts = append(parts, "'"+w.text+"'")
		}
		if q := strings.Join(parts, " <-> "); q != "" && !slices.Contains(all, q) {
			all = append(all, q)
		}
	}
	return all
}

// excerptWords is how many words of a text are shown.
const excerptWords = 32

// excerptOf is the part of a text with the most of the terms, "" where it has none.
func excerptOf(text string, terms []string) string {
	words := wordsOf(text)
	at := map[string][]int{} // where each word is
	for i, w := range words {
		at[w.text] = append(at[w.text], i)
	}
	hits := map[int]int{} // index of a word → which term begins there
	for n, t := range terms {
		phrase := wordsOf(t)
		if len(phrase) == 0 {
			continue
		}
		for _, i := range at[phrase[0].text] {
			if begins(words[i:], phrase) {
				hits[i] = n
			}
		}
	}
	if len(hits) == 0 {
		return ""
	}
	from := bestWindow(len(words), hits)
	to := min(from+excerptWords, len(words))
	start, end := words[from].from, words[to-1].to
	e := text[start:end]
	if from > 0 {
		e = "…" + e
	}
	if to < len(words) {
		return e + "…"
	}
	return e + text[end:]
}

func begins(words, phrase []word) bool {
	if len(words) < len(phrase) {
		return false
	}
	for i := range phrase {
		if words[i].text != phrase[i].text {
			return false
		}
	}
	return true
}

// bestWindow is the word with which the excerpt begins: a little before a hit, where the most different terms follow.
func bestWindow(n int, hits map[int]int) int {
	places := make([]int, 0, len(hits))
	for i := range hits {
		places = append(places, i)
	}
	slices.Sort(places)
	best, most := 0, 0
	for k, i := range places {
		terms := map[int]bool{}
		last := i
		for _, j := range places[k:] {
			if j >= i+excerptWords {
				break
			}
			terms[hits[j]], last = true, j
		}
		if len(terms) > most {
			// As much is shown before the first hit as behind the last.
			most, best = len(terms), max(0, min(i-(excerptWords-(last-i))/2, n-excerptWords))
		}
	}
	return best
}
