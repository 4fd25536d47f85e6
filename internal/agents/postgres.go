package agents

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	vectors "github.com/swarmlog/swarmlog/internal/inference"
	"github.com/swarmlog/swarmlog/ledger"
)

// This file holds all SQL of the agents for PostgreSQL, without any extension.
//
// Words are cut and folded here (words.go), not by one of PostgreSQL's configurations, so that both dialects find the
// same pages; a tsvector with a GIN index finds them, and what is rare weighs more, as it does in BM25.
//
// Vectors are compared here as well: all of the query's model are read for each search. On two busy cores that took
// 140 ms for 20,000 vectors of 256 numbers, and it grows with both numbers: so it's good for some 100,000 such pages.
//
// A path is bytes on Linux and text in PostgreSQL: so paths lie as bytes, under a digest, since keys have a longest size.
const postgresSchema = `
CREATE TABLE IF NOT EXISTS doc_file (
	key      bytea PRIMARY KEY,
	path     bytea NOT NULL,
	name     bytea NOT NULL,
	document text NOT NULL,
	size     bigint NOT NULL,
	modified bigint NOT NULL,
	problem  text NOT NULL,
	version  bigint NOT NULL,
	gone     boolean NOT NULL
);
CREATE INDEX IF NOT EXISTS doc_file_document ON doc_file (document, gone);
CREATE INDEX IF NOT EXISTS doc_file_problem ON doc_file (key) WHERE problem <> '';
CREATE TABLE IF NOT EXISTS doc_document (
	document   text PRIMARY KEY,
	media_type text NOT NULL,
	size       bigint NOT NULL,
	pages      bigint
);
CREATE TABLE IF NOT EXISTS doc_page (
	id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	document        text NOT NULL,
	page            bigint NOT NULL,
	part            bigint NOT NULL,
	sha256          text NOT NULL DEFAULT '',
	summary         text NOT NULL DEFAULT '',
	terms           text NOT NULL DEFAULT '',
	model           text NOT NULL DEFAULT '',
	text_applied    bigint NOT NULL DEFAULT 0,
	summary_applied bigint NOT NULL DEFAULT 0,
	vector_applied  bigint NOT NULL DEFAULT 0,
	UNIQUE (document, page, part)
);
CREATE TABLE IF NOT EXISTS doc_body (
	id    bigint PRIMARY KEY,
	text  text NOT NULL,
	words tsvector NOT NULL
);
CREATE INDEX IF NOT EXISTS doc_body_words ON doc_body USING gin (words);
CREATE TABLE IF NOT EXISTS doc_vector (
	id     bigint PRIMARY KEY,
	model  text NOT NULL,
	dims   bigint NOT NULL,
	vector bytea NOT NULL
);
`

type postgresStore struct{ tx ledger.Tx }

// setup makes what isn't there. CREATE INDEX IF NOT EXISTS locks its table against writes even where the index is there,
// so a worker that starts beside others that work would wait for their commits, and they for it, until one is refused.
func (s postgresStore) setup(ctx context.Context) error {
	for statement := range strings.SplitSeq(postgresSchema, ";\n") {
		name, ok := createdName(statement)
		if !ok {
			continue
		}
		there := false
		if err := s.tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, name).Scan(&there); err != nil {
			return fmt.Errorf("look for %s: %w", name, err)
		}
		if there {
			continue
		}
		if _, err := s.tx.Exec(ctx, statement); err != nil {
			return fmt.Errorf("make the index's tables: %w", err)
		}
	}
	return nil
}

// createdName is the name of the table or index that a statement CREATE … IF NOT EXISTS makes.
func createdName(statement string) (string, bool) {
	_, rest, found := strings.Cut(statement, "IF NOT EXISTS ")
	name, _, _ := strings.Cut(rest, " ")
	return name, found
}

func (s postgresStore) present(ctx context.Context) (there bool, err error) {
	err = s.tx.QueryRow(ctx, `SELECT to_regclass('doc_vector') IS NOT NULL`).Scan(&there)
	return there, err
}

func (s postgresStore) each(ctx context.Context, f func(scan func(...any) error) error, query string, args ...any) (err error) {
	return eachRow(ctx, s.tx, f, query, args...)
}

// fileKey stands for a path.
func fileKey(path string) []byte {
	sum := sha256.Sum256([]byte(path))
	return sum[:]
}

// clean is a text as PostgreSQL takes it.
func clean(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
}

func (s postgresStore) files(ctx context.Context, yield func(file)) error {
	return s.each(ctx, func(scan func(...any) error) error {
		var f file
		var path, name []byte
		var modified int64
		if err := scan(&path, &name, &f.Document, &f.Size, &modified, &f.Problem, &f.Version, &f.Gone); err != nil {
			return err
		}
		f.Path, f.Name, f.Modified = string(path), string(name), time.Unix(0, modified)
		yield(f)
		return nil
	}, `SELECT path, name, document, size, modified, problem, version, gone FROM doc_file`)
}

func (s postgresStore) putFile(ctx context.Context, f file) error {
	_, err := s.tx.Exec(ctx, `INSERT INTO doc_file (key, path, name, document, size, modified, problem, version, gone)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
		ON CONFLICT (key) DO UPDATE SET name = excluded.name, document = excluded.document, size = excluded.size,
			modified = excluded.modified, problem = excluded.problem, version = excluded.version, gone = excluded.gone
		WHERE excluded.version > doc_file.version`,
		fileKey(f.Path), []byte(f.Path), []byte(f.Name), f.Document, f.Size, f.Modified.UnixNano(), clean(f.Problem), f.Version, f.Gone)
	return err
}

func (s postgresStore) addDocument(ctx context.Context, document, mediaType string, size int64) error {
	_, err := s.tx.Exec(ctx, `INSERT INTO doc_document (document, media_type, size) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`,
		document, mediaType, size)
	return err
}

func (s postgresStore) splitState(ctx context.Context, document string) (splitState, error) {
	var done bool
	err := s.tx.QueryRow(ctx, `SELECT pages IS NOT NULL FROM doc_document WHERE document = $1`, document).Scan(&done)
	switch {
	case errors.Is(err, ledger.ErrNoRows):
		return unknown, nil
	case err != nil:
		return unknown, err
	case !done:
		return unsplit, nil
	}
	return split, nil
}

func (s postgresStore) setPages(ctx context.Context, document string, pages int) error {
	_, err := s.tx.Exec(ctx, `UPDATE doc_document SET pages = $2 WHERE document = $1`, document, int64(pages))
	return err
}

func (s postgresStore) holders(ctx context.Context, document string, yield func(file)) error {
	return s.each(ctx, func(scan func(...any) error) error {
		var path, name []byte
		err := scan(&path, &name)
		yield(file{Path: string(path), Name: string(name)})
		return err
	}, `SELECT path, name FROM doc_file WHERE document = $1 AND NOT gone ORDER BY path LIMIT 100`, document)
}

func (s postgresStore) problems(ctx context.Context, yield func(file)) error {
	return s.each(ctx, func(scan func(...any) error) error {
		var f file
		var path, name []byte
		err := scan(&path, &name, &f.Problem)
		f.Path, f.Name = string(path), string(name)
		yield(f)
		return err
	}, `SELECT path, name, problem FROM doc_file WHERE problem <> '' AND NOT gone ORDER BY path`)
}

func (s postgresStore) applyText(ctx context.Context, p Page) error {
	_, err := s.tx.Exec(ctx, `WITH p AS (
			INSERT INTO doc_page (document, page, part, sha256, text_applied) VALUES ($1, $2, $3, $4, 1)
			ON CONFLICT (document, page, part) DO UPDATE SET text_applied = doc_page.text_applied + 1,
				sha256 = CASE WHEN doc_page.text_applied = 0 THEN excluded.sha256 ELSE doc_page.sha256 END
			RETURNING id, text_applied)
		INSERT INTO doc_body (id, text, words) SELECT id, $5, $6::text::tsvector FROM p WHERE text_applied = 1`,
		p.Document, int64(p.Page), int64(p.Part), p.SHA256, clean(p.Text), tsvector(p.Text))
	return err
}

func (s postgresStore) applyNotes(ctx context.Context, n Notes) error {
	_, err := s.tx.Exec(ctx, `INSERT INTO doc_page (document, page, part, summary, terms, model, summary_applied) VALUES ($1, $2, $3, $4, $5, $6, 1)
		ON CONFLICT (document, page, part) DO UPDATE SET summary = excluded.summary, terms = excluded.terms, model = excluded.model,
			summary_applied = doc_page.summary_applied + 1`,
		n.Document, int64(n.Page), int64(n.Part), clean(n.Summary), clean(strings.Join(n.Terms, "\n")), clean(n.Model))
	return err
}

func (s postgresStore) applyVector(ctx context.Context, v Vector) error {
	_, err := s.tx.Exec(ctx, `WITH p AS (
			INSERT INTO doc_page (document, page, part, vector_applied) VALUES ($1, $2, $3, 1)
			ON CONFLICT (document, page, part) DO UPDATE SET vector_applied = doc_page.vector_applied + 1 RETURNING id)
		INSERT INTO doc_vector (id, model, dims, vector) SELECT id, $4, $5, $6 FROM p
		ON CONFLICT (id) DO UPDATE SET model = excluded.model, dims = excluded.dims, vector = excluded.vector`,
		v.Document, int64(v.Page), int64(v.Part), clean(v.Model), int64(v.Dims), v.Vector)
	return err
}

// currentPages filters pages of p to those whose document some file holds now.
const currentPages = `EXISTS (SELECT 1 FROM doc_file f WHERE f.document = p.document AND NOT f.gone)`

// byWords adds up, for each term that a page has, how rare the term is (as BM25 does) times how much the page has of
// it (ts_rank grows ever less with each place, and is divided by the page's length).
func (s postgresStore) byWords(ctx context.Context, terms []string, limit int) ([]int64, error) {
	queries := tsqueries(terms)
	if len(queries) == 0 {
		return nil, nil
	}
	var ids []int64
	err := s.each(ctx, func(scan func(...any) error) error {
		var id int64
		err := scan(&id)
		ids = append(ids, id)
		return err
	}, `WITH term AS MATERIALIZED (
			SELECT q.query, ln(1 + (n.pages - d.pages + 0.5) / (d.pages + 0.5)) AS rarity
			FROM (SELECT unnest($1::text[])::tsquery AS query) q, (SELECT count(*) AS pages FROM doc_body) n,
				LATERAL (SELECT count(*) AS pages FROM doc_body b WHERE b.words @@ q.query) d)
		SELECT b.id FROM term t JOIN doc_body b ON b.words @@ t.query JOIN doc_page p ON p.id = b.id WHERE `+currentPages+`
		GROUP BY b.id ORDER BY sum(t.rarity * ts_rank(b.words, t.query, 1)) DESC, b.id LIMIT $2`, queries, int64(limit))
	return ids, err
}

func (s postgresStore) excerpt(ctx context.Context, terms []string, id int64) (string, error) {
	var text string
	err := s.tx.QueryRow(ctx, `SELECT text FROM doc_body WHERE id = $1`, id).Scan(&text)
	if errors.Is(err, ledger.ErrNoRows) {
		return "", nil // found by likeness, before its text came
	}
	return excerptOf(text, terms), err
}

func (s postgresStore) byVector(ctx context.Context, vector []byte, model string, dims, limit int) ([]int64, error) {
	like, err := vectors.DecodeVector(vector)
	if err != nil {
		return nil, err
	}
	type near struct {
		id       int64
		likeness float64
	}
	var all []near
	err = s.each(ctx, func(scan func(...any) error) error {
		var id int64
		var b []byte
		if err := scan(&id, &b); err != nil {
			return err
		}
		if l := likeness(like, b); l > leastLikeness {
			all = append(all, near{id, l})
		}
		return nil
	}, `SELECT v.id, v.vector FROM doc_vector v JOIN doc_page p ON p.id = v.id WHERE v.model = $1 AND v.dims = $2 AND `+currentPages, model, int64(dims))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b near) int { return cmp.Or(cmp.Compare(b.likeness, a.likeness), cmp.Compare(a.id, b.id)) })
	ids := make([]int64, min(limit, len(all)))
	for i := range ids {
		ids[i] = all[i].id
	}
	return ids, nil
}

// likeness is the cosine of two vectors, the second one as it is stored.
func likeness(a []float32, stored []byte) float64 {
	if len(stored) != 4*len(a) {
		return 0
	}
	var product, square, other float64
	for i, x := range a {
		y := float64(math.Float32frombits(binary.LittleEndian.Uint32(stored[4*i:])))
		product += float64(x) * y
		square += float64(x) * float64(x)
		other += y * y
	}
	if square == 0 || other == 0 {
		return 0
	}
	return product / math.Sqrt(square*other)
}

func (s postgresStore) hit(ctx context.Context, id int64) (Hit, error) {
	var h Hit
	var name, path []byte
	var page, part int64
	err := s.tx.QueryRow(ctx, `SELECT p.document, p.page, p.part, p.summary, coalesce((SELECT substr(b.text, 1, 300) FROM doc_body b WHERE b.id = p.id), ''), f.name, f.path
		FROM doc_page p JOIN doc_file f ON f.document = p.document AND NOT f.gone WHERE p.id = $1 ORDER BY f.path LIMIT 1`, id).
		Scan(&h.Document, &page, &part, &h.Summary, &h.Excerpt, &name, &path)
	h.Page, h.Part, h.Name, h.Path = int(page), int(part), string(name), string(path)
	return h, err
}

func (s postgresStore) pages(ctx context.Context, yield func(PageRow) error) error {
	return s.each(ctx, func(scan func(...any) error) error {
		var r PageRow
		var terms string
		var name, path []byte
		var page, part, text, summary, vector int64
		if err := scan(&r.Document, &name, &path, &page, &part, &r.SHA256, &r.Summary, &terms, &text, &summary, &vector); err != nil {
			return err
		}
		r.Name, r.Path, r.Page, r.Part = string(name), string(path), int(page), int(part)
		r.Steps = max(text, summary, vector)
		if terms != "" {
			r.Terms = strings.Split(terms, "\n")
		}
		return yield(r)
	}, `SELECT p.document, f.name, f.path, p.page, p.part, p.sha256, p.summary, p.terms, p.text_applied, p.summary_applied, p.vector_applied
		FROM (SELECT DISTINCT ON (document) document, name, path FROM doc_file WHERE NOT gone AND document <> '' ORDER BY document, path) f
		JOIN doc_page p ON p.document = f.document ORDER BY f.path, p.page, p.part`)
}

func (s postgresStore) counts(ctx context.Context) (Counts, error) {
	var c Counts
	err := s.tx.QueryRow(ctx, `SELECT count(*), count(DISTINCT nullif(document, '')), count(*) FILTER (WHERE problem <> '') FROM doc_file WHERE NOT gone`).
		Scan(&c.Files, &c.Documents, &c.Problems)
	if err != nil {
		return c, err
	}
	c.Copies = c.Files - c.Documents - c.Problems
	if err := s.tx.QueryRow(ctx, `SELECT count(pages) FROM doc_document p WHERE `+currentPages).Scan(&c.Split); err != nil {
		return c, err
	}
	err = s.tx.QueryRow(ctx, `SELECT count(*) FILTER (WHERE text_applied > 0),
			count(*) FILTER (WHERE text_applied > 0 AND summary_applied > 0 AND vector_applied > 0) FROM doc_page p WHERE `+currentPages).
		Scan(&c.Pages, &c.Complete)
	return c, err
}
