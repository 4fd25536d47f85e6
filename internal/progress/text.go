package progress

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/width"
)

// Printable makes text from outside safe for a terminal: control characters,
// line separators, marks that turn or hide text and bytes that aren't UTF-8
// come out as Go escapes (\n, \x1b, \u202e, \xff), everything else as it is.
// Joiners stay, since emoji and some scripts need them.
func Printable(s string) string {
	clean := true
	for _, r := range s {
		if !harmless(r) {
			clean = false
			break
		}
	}
	if clean && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case harmless(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
		i += n
	}
	return b.String()
}

func harmless(r rune) bool {
	switch {
	case r == '\u200c', r == '\u200d': // joiners
		return true
	case r >= '\U000e0020' && r <= '\U000e007f': // tags: the flags of Scotland and Wales
		return true
	}
	return !unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Co, unicode.Cs)
}

// cells is how many columns a terminal gives text, as far as one can know.
func cells(s string) int {
	n := 0
	for _, r := range s {
		n += runeCells(r)
	}
	return n
}

func runeCells(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me, unicode.Cf) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// fit cuts text to at most limit columns, with … where something was cut.
func fit(s string, limit int) string {
	if cells(s) <= limit {
		return s
	}
	if limit <= 0 {
		return ""
	}
	n := 0
	for i, r := range s {
		if n+runeCells(r) > limit-1 {
			return s[:i] + "…"
		}
		n += runeCells(r)
	}
	return s
}

// wrap breaks text at spaces into lines of at most limit columns; a longer word stands alone on its line.
func wrap(s string, limit int) []string {
	var lines []string
	line, used := "", 0
	for _, word := range strings.Fields(s) {
		n := cells(word)
		switch {
		case line == "":
			line, used = word, n
		case used+1+n <= limit:
			line, used = line+" "+word, used+1+n
		default:
			lines = append(lines, line)
			line, used = word, n
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

// count writes a number with thousands separators.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// counted writes a number and what it counts.
func counted(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

func perSecond(rate float64) string {
	if rate > 0 && rate < 10 {
		return strconv.FormatFloat(rate, 'f', 1, 64) + " steps/s"
	}
	return count(int64(rate+0.5)) + " steps/s"
}

// span writes a duration for people: its largest two units.
func span(d time.Duration) string {
	s := int64(d.Round(time.Second) / time.Second)
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(d.Milliseconds(), 0))
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %02d s", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d h %02d min", s/3600, s%3600/60)
	}
	return fmt.Sprintf("%d d %d h", s/86400, s%86400/3600)
}

// roughly writes an estimate: nobody can know its seconds.
func roughly(seconds float64) string {
	switch {
	case seconds < 1:
		return "about 1 s left"
	case seconds < 90:
		return fmt.Sprintf("about %.0f s left", seconds)
	case seconds < 90*60:
		return fmt.Sprintf("about %.0f min left", seconds/60)
	case seconds < 48*3600:
		return fmt.Sprintf("about %.0f h left", seconds/3600)
	}
	return fmt.Sprintf("about %.0f days left", seconds/86400)
}
