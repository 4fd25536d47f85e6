package agents

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// This file holds all SQL of the agents for SQLite, with FTS5 and sqlite-vec.
//
// Vectors lie in a plain table, and are compared by sqlite-vec's distance function, not in a vec0 table: that takes
// vectors of any length beside each other, is exact under the filter of current files, and inserts in less than half
// the time. On two cores it compares 20,000 vectors of 256 numbers in 15 to 35 ms (vec0: 11 ms).
//
// Texts lie beside the rows of pages, so that looking at many of those stays cheap.
const sqliteSchema = `
CREATE TABLE IF NOT EXISTS doc_file (
	path     TEXT PRIMARY KEY,
	name     TEXT NOT NULL,
	document TEXT NOT NULL,
	size     INTEGER NOT NULL,
	modified INTEGER NOT NULL,
	problem  TEXT NOT NULL,
	version  INTEGER NOT NULL,
	gone     INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS doc_file_document ON doc_file (document, gone);
CREATE INDEX IF NOT EXISTS doc_file_problem ON doc_file (path) WHERE problem <> '';
CREATE TABLE IF NOT EXISTS doc_document (
	document   TEXT PRIMARY KEY,
	media_type TEXT NOT NULL,
	size       INTEGER NOT NULL,
	pages      INTEGER
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS doc_page (
	id              INTEGER PRIMARY KEY,
	document        TEXT NOT NULL,
	page            INTEGER NOT NULL,
	part            INTEGER NOT NULL,
	sha256          TEXT NOT NULL DEFAULT '',
	summary         TEXT NOT NULL DEFAULT '',
	terms           TEXT NOT NULL DEFAULT '',
	model           TEXT NOT NULL DEFAULT '',
	text_applied    INTEGER NOT NULL DEFAULT 0,
	summary_applied INTEGER NOT NULL DEFAULT 0,
	vector_applied  INTEGER NOT NULL DEFAULT 0,
	UNIQUE (document, page, part)
);
CREATE TABLE IF NOT EXISTS doc_body (
	id   INTEGER PRIMARY KEY,
	text TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS doc_vector (
	id     INTEGER PRIMARY KEY,
	model  TEXT NOT NULL,
	dims   INTEGER NOT NULL,
	vector BLOB NOT NULL
);
CREATE VIRTUAL TABLE IF NOT EXISTS doc_text USING fts5 (text, content='doc_body', content_rowid='id', tokenize='unicode61 remove_diacritics 2');
`

type sqliteStore struct{ tx ledger.Tx }

func (s sqliteStore) setup(ctx context.Context) error {
	for statement := range strings.SplitSeq(sqliteSchema, ";\n") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := s.tx.Exec(ctx, statement); err != nil {
			return fmt.Errorf("make the index's tables: %w", err)
		}
	}
	return nil
}

func (s sqliteStore) present(ctx context.Context) (bool, error) {
	var n int64
	err := s.tx.QueryRow(ctx, `SELECT count(*) FROM sqlite_master WHERE name = 'doc_vector'`).Scan(&n)
	return n > 0, err
}

func (s sqliteStore) each(ctx context.Context, f func(scan func(...any) error) error, query string, args ...any) error {
	return eachRow(ctx, s.tx, f, query, args...)
}

func (s sqliteStore) files(ctx context.Context, yield func(file)) error {
	return s.each(ctx, func(scan func(...any) error) error {
		var f file
		var modified, gone int64
		if err := scan(&f.Path, &f.Name, &f.Document, &f.Size, &modified, &f.Problem, &f.Version, &gone); err != nil {
			return err
		}
		f.Modified, f.Gone = time.Unix(0, modified), gone != 0
		yield(f)
		return nil
	}, `SELECT path, name, document, size, modified, problem, version, gone FROM doc_file`)
}

func (s sqliteStore) putFile(ctx context.Context, f file) error {
	gone := 0
	if f.Gone {
		gone = 1
	}
	_, err := s.tx.Exec(ctx, `INSERT INTO doc_file (path, name, document, size, modified, problem, version, gone)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (path) DO UPDATE SET name = excluded.name, document = excluded.document, size = excluded.size,
			modified = excluded.modified, problem = excluded.problem, version = excluded.version, gone = excluded.gone
		WHERE excluded.version > doc_file.version`,
		f.Path, f.Name, f.Document, f.Size, f.Modified.UnixNano(), f.Problem, f.Version, gone)
	return err
}

func (s sqliteStore) addDocument(ctx context.Context, document, mediaType string, size int64) error {
	_, err := s.tx.Exec(ctx, `INSERT INTO doc_document (document, media_type, size) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		document, mediaType, size)
	return err
}

func (s sqliteStore) splitState(ctx context.Context, document string) (splitState, error) {
	var done int64
	err := s.tx.QueryRow(ctx, `SELECT pages IS NOT NULL FROM doc_document WHERE document = $1`, document).Scan(&done)
	switch {
	case errors.Is(err, ledger.ErrNoRows):
		return unknown, nil
	case err != nil:
		return unknown, err
	case done == 0:
		return unsplit, nil
	}
	return split, nil
}

func (s sqliteStore) setPages(ctx context.Context, document string, pages int) error {
	_, err := s.tx.Exec(ctx, `UPDATE doc_document SET pages = $2 WHERE document = $1`, document, pages)
	return err
}

func (s sqliteStore) holders(ctx context.Context, document string, yield func(file)) error {
	return s.each(ctx, func(scan func(...any) error) error {
		var f file
		err := scan(&f.Path, &f.Name)
		yield(f)
		return err
	}, `SELECT path, name FROM doc_file WHERE document = $1 AND gone = 0 ORDER BY path LIMIT 100`, document)
}

func (s sqliteStore) problems(ctx context.Context, yield func(file)) error {
	return s.each(ctx, func(scan func(...any) error) error {
		var f file
		err := scan(&f.Path, &f.Name, &f.Problem)
		yield(f)
		return err
	}, `SELECT path, name, problem FROM doc_file WHERE problem <> '' AND gone = 0 ORDER BY path`)
}

func (s sqliteStore) applyText(ctx context.Context, p Page) error {
	var id, applied int64
	err := s.tx.QueryRow(ctx, `INSERT INTO doc_page (document, page, part, sha256, text_applied) VALUES ($1, $2, $3, $4, 1)
		ON CONFLICT (document, page, part) DO UPDATE SET text_applied = text_applied + 1,
			sha256 = CASE WHEN text_applied = 0 THEN excluded.sha256 ELSE sha256 END
		RETURNING id, text_applied`, p.Document, p.Page, p.Part, p.SHA256).Scan(&id, &applied)
	if err != nil || applied != 1 {
		return err
	}
	if _, err = s.tx.Exec(ctx, `INSERT INTO doc_body (id, text) VALUES ($1, $2)`, id, p.Text); err != nil {
		return err
	}
	_, err = s.tx.Exec(ctx, `INSERT INTO doc_text (rowid, text) VALUES ($1, $2)`, id, p.Text)
	return err
}

func (s sqliteStore) applyNotes(ctx context.Context, n Notes) error {
	_, err := s.tx.Exec(ctx, `INSERT INTO doc_page (document, page, part, summary, terms, model, summary_applied) VALUES ($1, $2, $3, $4, $5, $6, 1)
		ON CONFLICT (document, page, part) DO UPDATE SET summary = excluded.summary, terms = excluded.terms, model = excluded.model,
			summary_applied = summary_applied + 1`, n.Document, n.Page, n.Part, n.Summary, strings.Join(n.Terms, "\n"), n.Model)
	return err
}

func (s sqliteStore) applyVector(ctx context.Context, v Vector) error {
	var id int64
	err := s.tx.QueryRow(ctx, `INSERT INTO doc_page (document, page, part, vector_applied) VALUES ($1, $2, $3, 1)
		ON CONFLICT (document, page, part) DO UPDATE SET vector_applied = vector_applied + 1 RETURNING id`,
		v.Document, v.Page, v.Part).Scan(&id)
	if err != nil {
		return err
	}
	_, err = s.tx.Exec(ctx, `INSERT INTO doc_vector (id, model, dims, vector) VALUES ($1, $2, $3, $4)
		ON CONFLICT (id) DO UPDATE SET model = excluded.model, dims = excluded.dims, vector = excluded.vector`, id, v.Model, v.Dims, v.Vector)
	return err
}

// current filters pages of p to those whose document some file holds now.
const current = `EXISTS (SELECT 1 FROM doc_file f WHERE f.document = p.document AND f.gone = 0)`

// matchQuery is terms in FTS5's query form: each a quoted string, in which nothing has a meaning, and any of them enough.
func matchQuery(terms []string) string {
	quoted := make([]string, len(terms))
	for i, t := range terms {
		quoted[i] = `"` + strings.ReplaceAll(t, `"`, `""`) + `"`
	}
	return strings.Join(quoted, " OR ")
}

func (s sqliteStore) byWords(ctx context.Context, terms []string, limit int) ([]int64, error) {
	return s.ids(ctx, `SELECT p.id FROM doc_text JOIN doc_page p ON p.id = doc_text.rowid
		WHERE doc_text MATCH $1 AND `+current+` ORDER BY doc_text.rank LIMIT $2`, matchQuery(terms), limit)
}

func (s sqliteStore) ids(ctx context.Context, query string, args ...any) ([]int64, error) {
	var out []int64
	err := s.each(ctx, func(scan func(...any) error) error {
		var id int64
		err := scan(&id)
		out = append(out, id)
		return err
	}, query, args...)
	return out, err
}

func (s sqliteStore) excerpt(ctx context.Context, terms []string, id int64) (string, error) {
	var e string
	err := s.tx.QueryRow(ctx, `SELECT snippet(doc_text, 0, '', '', '…', 32) FROM doc_text WHERE doc_text MATCH $1 AND rowid = $2`, matchQuery(terms), id).Scan(&e)
	if errors.Is(err, ledger.ErrNoRows) {
		return "", nil // found by likeness
	}
	return e, err
}

// leastLikeness is the cosine below which two vectors say nothing about each other.
const leastLikeness = 0.2

func (s sqliteStore) byVector(ctx context.Context, vector []byte, model string, dims, limit int) ([]int64, error) {
	return s.ids(ctx, `SELECT id FROM (
			SELECT v.id AS id, CASE WHEN v.model = $2 AND v.dims = $3 THEN vec_distance_cosine(v.vector, $1) END AS distance
			FROM doc_vector v JOIN doc_page p ON p.id = v.id WHERE `+current+`)
		WHERE distance < $4 ORDER BY distance LIMIT $5`, vector, model, dims, 1-leastLikeness, limit)
}

func (s sqliteStore) hit(ctx context.Context, id int64) (Hit, error) {
	var h Hit
	err := s.tx.QueryRow(ctx, `SELECT p.document, p.page, p.part, p.summary, coalesce((SELECT substr(b.text, 1, 300) FROM doc_body b WHERE b.id = p.id), ''), f.name, f.path
		FROM doc_page p JOIN doc_file f ON f.document = p.document AND f.gone = 0 WHERE p.id = $1 ORDER BY f.path LIMIT 1`, id).
		Scan(&h.Document, &h.Page, &h.Part, &h.Summary, &h.Excerpt, &h.Name, &h.Path)
	return h, err
}

func (s sqliteStore) pages(ctx context.Context, yield func(PageRow) error) error {
	return s.each(ctx, func(scan func(...any) error) error {
		var r PageRow
		var terms string
		var text, summary, vector int64
		if err := scan(&r.Document, &r.Name, &r.Path, &r.Page, &r.Part, &r.SHA256, &r.Summary, &terms, &text, &summary, &vector); err != nil {
			return err
		}
		r.Steps = max(text, summary, vector)
		if terms != "" {
			r.Terms = strings.Split(terms, "\n")
		}
		return yield(r)
	}, `SELECT p.document, f.name, f.path, p.page, p.part, p.sha256, p.summary, p.terms, p.text_applied, p.summary_applied, p.vector_applied
		FROM (SELECT document, name, min(path) AS path FROM doc_file WHERE gone = 0 AND document <> '' GROUP BY document) f
		JOIN doc_page p ON p.document = f.document ORDER BY f.path, p.page, p.part`)
}

func (s sqliteStore) counts(ctx context.Context) (Counts, error) {
	var c Counts
	err := s.tx.QueryRow(ctx, `SELECT count(*), count(DISTINCT nullif(document, '')), coalesce(sum(problem <> ''), 0) FROM doc_file WHERE gone = 0`).
		Scan(&c.Files, &c.Documents, &c.Problems)
	if err != nil {
		return c, err
	}
	c.Copies = c.Files - c.Documents - c.Problems
	const ofCurrent = ` p WHERE EXISTS (SELECT 1 FROM doc_file f WHERE f.document = p.document AND f.gone = 0)`
	err = s.tx.QueryRow(ctx, `SELECT count(pages) FROM doc_document`+ofCurrent).Scan(&c.Split)
	if err != nil {
		return c, err
	}
	err = s.tx.QueryRow(ctx, `SELECT coalesce(sum(text_applied > 0), 0), coalesce(sum(text_applied > 0 AND summary_applied > 0 AND vector_applied > 0), 0) FROM doc_page`+ofCurrent).
		Scan(&c.Pages, &c.Complete)
	return c, err
}
