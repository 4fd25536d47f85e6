package postgres

import (
	"strings"
	"sync"
)

// The guard reads a user's SQL before PostgreSQL does, and refuses what would end or nest the ledger's transaction,
// what would outlast it on the connection, and what would write to the ledger's own tables. The last is a rail, not a
// wall: it looks at words, so a function of the user's can still do it. Whatever the guard misses of the first kind,
// the look at the transaction's state after each statement finds.

// word is a token of SQL: an unquoted word in upper case, a quoted identifier as it is, or a single other character.
// Literals and comments leave none.
type word struct {
	text   string
	quoted bool
}

// statement is one of a script's.
type statement struct {
	text  string
	words []word
}

// is tells whether word i is one of these keywords.
func (s statement) is(i int, keywords ...string) bool {
	if i < 0 || i >= len(s.words) || s.words[i].quoted {
		return false
	}
	for _, k := range keywords {
		if s.words[i].text == k {
			return true
		}
	}
	return false
}

// split cuts a script into statements; empty ones are left out.
func split(sql string) []statement {
	var out []statement
	var words []word
	start, depth, atomic := 0, 0, false
	cut := func(end int) {
		if len(words) > 0 {
			out = append(out, statement{strings.TrimSpace(sql[start:end]), words})
		}
		words = nil
	}
	for i := 0; i < len(sql); {
		w, next := token(sql, i)
		if w.text == ";" && !w.quoted && depth == 0 {
			cut(i)
			start, atomic = next, false
		} else if w.text != "" {
			words = append(words, w)
			// The body of a function in standard SQL holds semicolons: BEGIN ATOMIC … END, with CASE … END inside.
			switch s := (statement{words: words}); {
			case s.is(len(words)-1, "ATOMIC") && s.is(len(words)-2, "BEGIN") && s.is(0, "CREATE"):
				atomic, depth = true, 1
			case atomic && s.is(len(words)-1, "CASE"):
				depth++
			case atomic && depth > 0 && s.is(len(words)-1, "END"):
				depth--
			}
		}
		i = next
	}
	cut(len(sql))
	return out
}

// token reads one token from i on; its text is empty where that's white space, a comment or a literal.
func token(sql string, i int) (word, int) {
	c := sql[i]
	rest := sql[i:]
	switch {
	case strings.HasPrefix(rest, "--"):
		if n := strings.IndexAny(rest, "\n\r"); n >= 0 {
			return word{}, i + n + 1
		}
		return word{}, len(sql)
	case strings.HasPrefix(rest, "/*"):
		return word{}, comment(sql, i)
	case c == '\'':
		return word{}, quoted(sql, i, '\'', false)
	case (c == 'e' || c == 'E') && strings.HasPrefix(rest[1:], "'"):
		return word{}, quoted(sql, i+1, '\'', true)
	case c == '"':
		end := quoted(sql, i, '"', false)
		return word{strings.ReplaceAll(strings.Trim(sql[i:end], `"`), `""`, `"`), true}, end
	case c == '$':
		if end := dollar(sql, i); end > i {
			return word{}, end
		}
	case letter(c):
		end := i + 1
		for end < len(sql) && (letter(sql[end]) || sql[end] >= '0' && sql[end] <= '9' || sql[end] == '$') {
			end++
		}
		return word{strings.ToUpper(sql[i:end]), false}, end
	case c == ' ' || c >= '\t' && c <= '\r':
		return word{}, i + 1
	}
	return word{sql[i : i+1], false}, i + 1
}

func letter(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= 0x80
}

// comment is the end of a comment, which may hold others.
func comment(sql string, i int) int {
	depth := 0
	for i < len(sql) {
		switch {
		case strings.HasPrefix(sql[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(sql[i:], "*/"):
			depth--
			i += 2
			if depth == 0 {
				return i
			}
		default:
			i++
		}
	}
	return i
}

// quoted is the end of a literal that begins at i.
func quoted(sql string, i int, quote byte, escapes bool) int {
	for i++; i < len(sql); i++ {
		switch {
		case escapes && sql[i] == '\\':
			i++
		case sql[i] == quote && i+1 < len(sql) && sql[i+1] == quote:
			i++
		case sql[i] == quote:
			return i + 1
		}
	}
	return len(sql)
}

// dollar is the end of a literal in $tag$ … $tag$, or i where none begins.
func dollar(sql string, i int) int {
	end := i + 1
	for end < len(sql) && (letter(sql[end]) || end > i+1 && sql[end] >= '0' && sql[end] <= '9') {
		end++
	}
	if end >= len(sql) || sql[end] != '$' {
		return i
	}
	tag := sql[i : end+1]
	if n := strings.Index(sql[end+1:], tag); n >= 0 {
		return end + 1 + n + len(tag)
	}
	return len(sql)
}

// reader keeps what it has read of statements: a text comes again with each step.
type reader struct {
	mu   sync.Mutex
	kept map[string][]statement
}

const (
	keptTexts   = 512 // more than that are texts put together from data
	longestKept = 8 << 10
)

func (r *reader) read(sql string) []statement {
	r.mu.Lock()
	defer r.mu.Unlock()
	if parts, ok := r.kept[sql]; ok {
		return parts
	}
	parts := split(sql)
	if len(sql) > longestKept {
		return parts
	}
	if r.kept == nil || len(r.kept) >= keptTexts {
		r.kept = make(map[string][]statement)
	}
	r.kept[sql] = parts
	return parts
}

// refusal is why a user's statement isn't run, or "". schema is the ledger's own.
func refusal(s statement, p place, schema string) string {
	switch {
	case s.is(0, "BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE"),
		s.is(0, "PREPARE") && s.is(1, "TRANSACTION"):
		return s.words[0].text + " would end or nest the ledger's transaction; return an error to undo a step"
	case s.is(0, "SET") && s.is(1, "CONSTRAINTS"), s.is(0, "SET") && s.is(1, "LOCAL") && p != inCommit:
		return ""
	case s.is(0, "SET", "RESET"):
		return s.words[0].text + " would hold for others too; ask for it in the role's or database's settings"
	case s.is(0, "PREPARE", "EXECUTE", "DEALLOCATE", "DISCARD", "LISTEN", "UNLISTEN", "LOAD"):
		return s.words[0].text + " would outlast the ledger's transaction on a connection that others use next"
	case s.is(0, "COPY"):
		return "COPY isn't passed on; use INSERT … SELECT … FROM unnest(…)"
	case writesTo(s, schema):
		return "schema " + schema + " belongs to the ledger"
	}
	return ""
}

// writesTo tells whether a statement seems to change something in a schema.
func writesTo(s statement, schema string) bool {
	for i, w := range s.words {
		if name := w.text; !(w.quoted && name == schema || !w.quoted && strings.EqualFold(name, schema)) {
			continue
		}
		if s.is(i-1, "SCHEMA") || s.is(i-1, "EXISTS") && s.is(0, "DROP") {
			return true
		}
		if !s.is(i+1, ".") {
			continue
		}
		switch {
		case s.is(i-1, "INTO", "UPDATE", "TABLE", "TRUNCATE", "ONLY", "EXISTS", "VIEW", "INDEX", "FUNCTION", "SEQUENCE", "LOCK"),
			s.is(i-1, "FROM") && s.is(i-2, "DELETE"),
			s.is(i-1, "ON") && s.is(0, "CREATE", "DROP"):
			return true
		}
	}
	return false
}
