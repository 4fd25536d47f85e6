package config

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong, and what to write instead.
type Problem struct {
	File      string // empty: the environment
	Line, Col int    // from 1
	Found     string
	Instead   string
}

func (p Problem) Error() string {
	if p.File == "" {
		return p.Found + ": " + p.Instead
	}
	return fmt.Sprintf("%s:%d:%d: %s: %s", p.File, p.Line, p.Col, p.Found, p.Instead)
}

// Problems is all that is wrong with a file, in its order.
type Problems []Problem

func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].Error()
	}
	return strings.Join(lines, "\n")
}

func (p Problems) sort() {
	slices.SortStableFunc(p, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Col - b.Col
	})
}

// oneOf lists names for a person, and begins with the one that was probably meant.
func oneOf(found string, names []string) string {
	if len(names) == 0 {
		return "none is declared yet; declare it, or remove this"
	}
	if near := nearest(found, names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return "write one of " + strings.Join(names, ", ")
}

// nearest is the name that found was probably meant to be, or "".
func nearest(found string, names []string) string {
	best, least := "", 3
	switch {
	case len(found) < 2:
		return "" // one letter resembles everything
	case len(found) < 4:
		least = 2
	}
	for _, n := range names {
		if d := distance(strings.ToLower(found), strings.ToLower(n)); d < least {
			best, least = n, d
		}
	}
	return best
}

// distance counts the letters to insert, delete, replace or swap with their neighbour.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return len(a) + len(b)
	}
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
