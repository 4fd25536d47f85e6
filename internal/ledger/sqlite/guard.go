package sqlite

import (
	"strings"

	"modernc.org/sqlite"
)

// prefix begins the names of the ledger's own tables.
const prefix = "swarmlog_"

// guard says which statements a user's SQL may contain. SQLite asks when it prepares a statement, for each thing
// that the statement would do, the doings of triggers included.
type guard struct {
	active   bool   // a user's statement is being prepared or run
	readOnly bool   // and may only read
	denied   string // what was refused last
}

func (g *guard) authorize(action sqlite.AuthorizerActionCode, a1, a2, _, _ string) sqlite.AuthorizerReturnCode {
	if !g.active {
		return sqlite.AuthorizerOK
	}
	why := g.refusal(action, a1, a2)
	if why == "" {
		return sqlite.AuthorizerOK
	}
	g.denied = why
	return sqlite.AuthorizerDeny
}

func (g *guard) refusal(action sqlite.AuthorizerActionCode, a1, a2 string) string {
	switch action {
	case sqlite.AuthTransaction, sqlite.AuthSavepoint:
		return a1 + " would end or nest the ledger's transaction; return an error to undo a step"
	case sqlite.AuthAttach, sqlite.AuthDetach:
		return "another database can't join the ledger's transaction"
	case sqlite.AuthPragma:
		if readingPragmas[strings.ToLower(a1)] && (a2 == "" || argumentPragmas[strings.ToLower(a1)]) {
			return ""
		}
		return "PRAGMA " + a1 + " isn't one of those that only read"
	case sqlite.AuthRead, sqlite.AuthSelect, sqlite.AuthFunction, sqlite.AuthRecursive:
		return ""
	case sqlite.AuthCreateTrigger, sqlite.AuthCreateTempTrigger, sqlite.AuthDropTrigger, sqlite.AuthDropTempTrigger,
		sqlite.AuthCreateIndex, sqlite.AuthDropIndex, sqlite.AuthAlterTable:
		if ours(a2) {
			return "table " + a2 + " belongs to the ledger"
		}
	}
	if g.readOnly {
		return "this transaction only reads"
	}
	if ours(a1) {
		return "table " + a1 + " belongs to the ledger"
	}
	return ""
}

func ours(name string) bool {
	return len(name) >= len(prefix) && strings.EqualFold(name[:len(prefix)], prefix)
}

// readingPragmas are harmless; full-text and vector tables ask some of them themselves.
var readingPragmas = map[string]bool{
	"data_version": true, "page_size": true, "page_count": true, "freelist_count": true, "encoding": true,
	"user_version": true, "schema_version": true, "compile_options": true, "function_list": true, "module_list": true,
	"table_list": true, "table_info": true, "table_xinfo": true, "index_list": true, "index_info": true,
	"index_xinfo": true, "foreign_key_list": true,
}

// argumentPragmas are those of them that take the name of a table or index, and set nothing.
var argumentPragmas = map[string]bool{
	"table_list": true, "table_info": true, "table_xinfo": true, "index_list": true, "index_info": true,
	"index_xinfo": true, "foreign_key_list": true,
}
