package postgres

import "strings"

// stmt names one of the ledger's own statements.
type stmt int

var statements []string

// define adds a statement. In its text {} stands for the ledger's schema with its dot, and {now} for the database's
// clock in microseconds.
func define(sql string) stmt {
	statements = append(statements, sql)
	return stmt(len(statements) - 1)
}

// within are the statements for a schema, by stmt.
func within(schema string) []string {
	out := make([]string, len(statements))
	for i, s := range statements {
		out[i] = fill(s, schema)
	}
	return out
}

func fill(statement, schema string) string {
	return strings.NewReplacer("{}", quoteIdentifier(schema)+".", "{now}", "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint").Replace(statement)
}

func quoteIdentifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// clip shortens a statement for an error's text.
func clip(sql string) string {
	const limit = 72
	out := make([]byte, 0, limit)
	space := false
	for i := 0; i < len(sql); i++ {
		switch b := sql[i]; b {
		case ' ', '\t', '\n', '\r':
			space = len(out) > 0
		default:
			if space {
				out = append(out, ' ')
			}
			space = false
			if len(out) >= limit {
				return strings.ToValidUTF8(string(out), "") + "…"
			}
			out = append(out, b)
		}
	}
	return string(out)
}
