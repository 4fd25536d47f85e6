package builtin

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// longest bounds a summary, in bytes.
const longest = 600

type sentence struct {
	text      string
	at        int  // its place among the sentences
	leads     bool // first of its paragraph
	words     map[string]bool
	score     float64
	wordCount int
}

// Summary takes the sentences of a text that say most of it, at most so many, in their order. A text without
// sentences is answered by its beginning.
func Summary(text string, most int) string { return summary(text, plain(text), most) }

func summary(text, bare string, most int) string {
	all := sentences(bare)
	frequency := make(map[string]int)
	for _, w := range words(text) {
		if telling(w.folded) {
			frequency[w.folded]++
		}
	}
	var fit []*sentence
	for _, s := range all {
		if s.rate(frequency, len(all)) {
			fit = append(fit, s)
		}
	}
	if len(fit) == 0 {
		return beginning(text, bare)
	}
	chosen := choose(fit, most)
	slices.SortFunc(chosen, func(a, b *sentence) int { return a.at - b.at })
	parts := make([]string, len(chosen))
	for i, s := range chosen {
		parts[i] = s.text
	}
	return strings.Join(parts, " ")
}

// rate scores a sentence by the frequency of its words and by its place; false where it's no sentence to quote.
func (s *sentence) rate(frequency map[string]int, of int) bool {
	ws := words(s.text)
	s.wordCount = len(ws)
	letters := 0
	for _, c := range s.text {
		if unicode.IsLetter(c) || c == ' ' {
			letters++
		}
	}
	if s.wordCount < 4 || len(s.text) > longest*2/3 || float64(letters) < 0.75*float64(utf8.RuneCountInString(s.text)) {
		return false
	}
	s.words = make(map[string]bool, len(ws))
	sum := 0.0
	for _, w := range ws {
		if n := frequency[w.folded]; n > 0 && !s.words[w.folded] {
			s.words[w.folded] = true
			sum += math.Log1p(float64(n))
		}
	}
	if len(s.words) < 2 {
		return false
	}
	// The square root keeps long sentences from winning by length alone, and short ones by density.
	s.score = sum / math.Sqrt(float64(max(s.wordCount, 8)))
	s.score *= 1 + 0.35*math.Exp(-4*float64(s.at)/float64(of))
	if s.leads {
		s.score *= 1.12
	}
	if first := ws[0].folded; first == "this" || first == "these" || first == "it" || first == "they" || first == "but" || first == "and" {
		s.score *= 0.85 // it leans on the sentence before
	}
	switch end, _ := utf8.DecodeLastRuneInString(s.text); {
	case end == '?':
		s.score *= 0.7
	case !strings.ContainsRune(".!。！\"”')", end):
		s.score *= 0.5 // a heading, or an entry of a list
	}
	return true
}

// choose takes the best, each time less what it shares with those taken.
func choose(fit []*sentence, most int) []*sentence {
	var chosen []*sentence
	used := 0
	for len(chosen) < most && len(fit) > 0 {
		best := slices.MaxFunc(fit, func(a, b *sentence) int {
			if c := cmp.Compare(a.worth(chosen), b.worth(chosen)); c != 0 {
				return c
			}
			return b.at - a.at
		})
		fit = slices.DeleteFunc(slices.Clone(fit), func(s *sentence) bool { return s == best })
		if best.worth(chosen) <= 0 || (len(chosen) > 0 && used+len(best.text) > longest) {
			continue
		}
		chosen = append(chosen, best)
		used += len(best.text) + 1
	}
	return chosen
}

func (s *sentence) worth(chosen []*sentence) float64 {
	most := 0.0
	for _, c := range chosen {
		shared := 0
		for w := range s.words {
			if c.words[w] {
				shared++
			}
		}
		most = max(most, float64(shared)/float64(min(len(s.words), len(c.words))))
	}
	if most > 0.8 {
		return 0
	}
	return s.score * (1 - 0.7*most)
}

// beginning is the first words of a text on one line.
func beginning(text, bare string) string {
	line := strings.Join(strings.Fields(bare), " ")
	if line == "" {
		line = strings.Join(strings.Fields(text), " ")
	}
	const most = 200
	if utf8.RuneCountInString(line) <= most {
		return line
	}
	cut := string([]rune(line)[:most])
	if i := strings.LastIndexByte(cut, ' '); i > most/2 {
		cut = cut[:i]
	}
	return cut + "…"
}

var (
	fence   = regexp.MustCompile("(?ms)^[ \t]*(```|~~~).*?^[ \t]*(```|~~~)[ \t]*$")
	image   = regexp.MustCompile(`!\[([^\]\n]*)\]\([^)\n]*\)`)
	link    = regexp.MustCompile(`\[([^\]\n]+)\]\([^)\n]*\)`)
	heading = regexp.MustCompile(`(?m)^[ \t]{0,3}#{1,6}[ \t]+(.*)$`)
	ruler   = regexp.MustCompile(`(?m)^[ \t]*[-=*_~^#+]{3,}[ \t]*$`)
	// headline is a short line without an end, before one that begins a sentence: a heading in a text without marks.
	headline = regexp.MustCompile(`(?m)^([ \t]*\pL[\pL\pN'’ -]{0,38}[\pL\pN?])[ \t]*\n([ \t]*\p{Lu})`)
	bullet   = regexp.MustCompile(`(?m)^[ \t]*([-*+•]|\d{1,3}[.)])[ \t]+`)
	quoteBar = regexp.MustCompile(`(?m)^[ \t]*>[ \t]?`)
	marks    = strings.NewReplacer("**", "", "__", "", "`", "", "\r", "")
)

// plain takes Markdown's marks off and lets headings and list items stand as paragraphs.
func plain(text string) string {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	// Each mark is looked for where its letters are, since most texts have few of them.
	if strings.Contains(text, "```") || strings.Contains(text, "~~~") {
		text = fence.ReplaceAllString(text, "\n")
	}
	if strings.Contains(text, "](") {
		text = image.ReplaceAllString(text, "$1")
		text = link.ReplaceAllString(text, "$1")
	}
	if strings.Contains(text, "#") {
		text = heading.ReplaceAllString(text, "\n\n$1\n\n")
	}
	text = ruler.ReplaceAllString(text, "\n")
	if strings.Contains(text, ">") {
		text = quoteBar.ReplaceAllString(text, "")
	}
	text = bullet.ReplaceAllString(text, "\n\n")
	text = headline.ReplaceAllString(text, "$1\n\n$2")
	return marks.Replace(text)
}

var paragraphBreak = regexp.MustCompile(`\n[ \t\n\f]*\n|\f`)

// sentences splits a text without marks into its sentences.
func sentences(bare string) []*sentence {
	var out []*sentence
	for _, paragraph := range paragraphBreak.Split(bare, -1) {
		if strings.Count(paragraph, "|") > 3 {
			continue // a table
		}
		line := strings.Join(strings.Fields(paragraph), " ")
		leads := true
		for line != "" {
			n := sentenceEnd(line)
			s := strings.TrimSpace(line[:n])
			line = strings.TrimSpace(line[n:])
			if s != "" {
				out = append(out, &sentence{text: s, at: len(out), leads: leads})
				leads = false
			}
		}
	}
	return out
}

// abbreviations end with a dot that ends no sentence.
var abbreviations = map[string]bool{"e.g": true, "i.e": true, "etc": true, "vs": true, "cf": true, "dr": true, "mr": true, "mrs": true,
	"ms": true, "prof": true, "fig": true, "eq": true, "sec": true, "no": true, "vol": true, "pp": true, "al": true, "approx": true, "st": true, "inc": true}

// sentenceEnd is the length of the first sentence of a line.
func sentenceEnd(line string) int {
	for i, c := range line {
		end := i + utf8.RuneLen(c)
		switch c {
		case '。', '！', '？':
			return end
		case '.', '!', '?':
			for end < len(line) && strings.IndexByte(`"')]`, line[end]) >= 0 {
				end++
			}
			if end == len(line) {
				return end
			}
			if line[end] != ' ' {
				continue
			}
			if c == '.' && shortened(line[:i]) {
				continue
			}
			if next, _ := utf8.DecodeRuneInString(line[end+1:]); unicode.IsLower(next) {
				continue
			}
			return end
		}
	}
	return len(line)
}

func shortened(before string) bool {
	last := before[strings.LastIndexByte(before, ' ')+1:]
	last = strings.ToLower(strings.TrimLeft(last, `("'[`))
	return abbreviations[last] || utf8.RuneCountInString(last) == 1
}

// Terms are the words and pairs of words that a text is about, most telling first.
func Terms(text string, most int) []string { return terms(plain(text), most) }

func terms(bare string, most int) []string {
	type term struct {
		text  string
		count int
		first int
		score float64
	}
	found := make(map[string]*term)
	add := func(key, raw string, at int) {
		t := found[key]
		if t == nil {
			t = &term{text: shown(key, raw), first: at}
			found[key] = t
		}
		t.count++
	}
	ws := words(bare)
	for i, w := range ws {
		if !telling(w.folded) {
			continue
		}
		add(w.folded, w.raw, i)
		if i > 0 && ws[i-1].sentence == w.sentence && telling(ws[i-1].folded) {
			add(ws[i-1].folded+" "+w.folded, ws[i-1].raw+" "+w.raw, i)
		}
	}
	var list []*term
	for key, t := range found {
		pair := strings.IndexByte(key, ' ') >= 0
		if pair && t.count < 2 {
			continue
		}
		t.score = float64(t.count) * math.Log(2+float64(utf8.RuneCountInString(key)))
		if pair {
			t.score *= 1.6
		}
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *term) int {
		if c := cmp.Compare(b.score, a.score); c != 0 {
			return c
		}
		if c := a.first - b.first; c != 0 {
			return c
		}
		return strings.Compare(a.text, b.text)
	})
	var out []string
	for _, t := range list {
		if len(out) == most {
			break
		}
		if !slices.ContainsFunc(out, func(o string) bool { return covers(o, t.text) }) {
			out = append(out, t.text)
		}
	}
	return out
}

// shown keeps the capitals of what is written all in them.
func shown(key, raw string) string {
	if strings.ToUpper(raw) == raw && utf8.RuneCountInString(raw) <= 12 {
		return strings.TrimSuffix(strings.TrimSuffix(raw, "'S"), "’S")
	}
	return key
}

// covers tells that one term's words stand in the other.
func covers(a, b string) bool {
	a, b = " "+strings.ToLower(a)+" ", " "+strings.ToLower(b)+" "
	return strings.Contains(a, b) || strings.Contains(b, a)
}
