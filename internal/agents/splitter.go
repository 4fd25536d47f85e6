package agents

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/fault"
)

// splitter takes the text out of a document and emits its pages.
type splitter struct {
	deps        Deps
	maxDocument int64
	pageChars   int
	shadow      bool // another agent writes down which documents are split
	pdf         *pdfReader
}

func newSplitter(a config.Agent, d Deps) *splitter {
	return &splitter{deps: d, maxDocument: a.MaxDocument, pageChars: a.PageChars, shadow: a.ShadowOf != "", pdf: newPDFReader(d.Cache, d.Logger)}
}

func (s *splitter) close() { s.pdf.close() }

// weighDocument is what splitting a document holds at once: its bytes, its text, and its pages as events on their
// way into the outbox. A PDF is read from the file, but has the reader's memory.
func weighDocument(e event.Event) int64 {
	var d struct {
		Size      int64  `json:"size"`
		MediaType string `json:"media_type"`
	}
	if json.Unmarshal(e.Data, &d) != nil || d.Size < 0 {
		return int64(len(e.Data))
	}
	weight := 4*min(d.Size, 1<<40) + int64(len(e.Data))
	switch d.MediaType {
	case "application/pdf":
		weight += 16 << 20
	case "text/html":
		weight *= 4 // its tree of elements takes a dozen times its bytes
	}
	return weight
}

func (s *splitter) handle(ctx context.Context, e event.Event, st stepper) error {
	d, err := decode[Document](e)
	if err != nil {
		return err
	}
	if d.Problem != "" {
		return fault.Permanentf("%s: %s", d.Path, d.Problem)
	}
	if len(d.SHA256) != 64 {
		return fault.Permanentf("%s: the event has no SHA-256 of the document", d.Path)
	}
	state, paths := unknown, []string{d.Path}
	err = s.deps.Read(ctx, within(func(ctx context.Context, st store) (err error) {
		if state, err = st.splitState(ctx, d.SHA256); err != nil {
			return err
		}
		return st.holders(ctx, d.SHA256, func(f file) {
			if f.Path != d.Path {
				paths = append(paths, f.Path)
			}
		})
	}))
	if err != nil {
		return fmt.Errorf("look document %s up: %w", d.SHA256, err)
	}
	// Events of one document are handled one after the other, each after the commit of the one before: so this is
	// no race, and a document announced twice is split once. A shadow can't tell: what is split was split by the agent that
	// it runs beside, which may be ahead of it.
	if state == split && !s.shadow {
		st.Skip("the document was split already; another file holds a copy of it")
		return nil
	}
	p, err := s.read(ctx, d, paths)
	switch {
	case errors.Is(err, errChanged):
		st.Skip(fmt.Sprintf("%s changed since it was found; its new content is offered as a document of its own", d.Path))
		return nil
	case err != nil:
		return err
	}
	s.emit(st, d, p)
	return nil
}

// read reads the document from the file that was named, or from another that holds a copy of it.
func (s *splitter) read(ctx context.Context, d Document, paths []string) (paged, error) {
	var missing error
	changed := false
	for _, path := range paths {
		p, err := s.readFile(ctx, d, path)
		switch {
		case errors.Is(err, errChanged) || errors.Is(err, errNotRegular):
			changed = true
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
			if missing == nil {
				missing = err
			}
		default:
			return p, err
		}
	}
	if changed {
		return paged{}, errChanged
	}
	return paged{}, fault.Permanentf("%s: the file is gone or can't be read any more: %s", d.Path, reason(missing))
}

func (s *splitter) readFile(ctx context.Context, d Document, path string) (paged, error) {
	in, info, err := openRegular(path)
	if err != nil {
		return paged{}, err
	}
	defer func() { _ = in.Close() }() // only read
	if info.Size() != d.Size || info.Size() > s.maxDocument {
		if info.Size() == d.Size {
			return paged{}, fault.Permanentf("%s: it has %s, and max_document is %s; raise it in swarm.yaml", d.Path,
				config.FormatSize(info.Size()), config.FormatSize(s.maxDocument))
		}
		return paged{}, errChanged
	}
	var p paged
	if d.MediaType == "application/pdf" {
		p, err = s.readPDF(ctx, d, in, info)
	} else {
		p, err = s.readText(ctx, d, in, info)
	}
	var start *startError
	switch {
	case err == nil || errors.Is(err, errChanged) || ctx.Err() != nil:
		return p, err
	case errors.As(err, &start):
		return p, fault.As(fault.Unavailable, fmt.Errorf("%s: %w", d.Path, err))
	case errors.As(err, new(*fs.PathError)):
		return p, fmt.Errorf("%s: %w", d.Path, err)
	}
	return p, fault.Permanentf("%s: %w%s", d.Path, err, advice(err))
}

// advice is what to do about a document that can't be read, where its error doesn't say that itself.
func advice(err error) string {
	switch {
	case errors.Is(err, errEmpty):
		return "; remove it, or, if it's a scan, have its text recognised first"
	case errors.Is(err, errBroken):
		return "; open it in a PDF viewer and save it anew, or remove it"
	case errors.Is(err, errNoText):
		return "; remove it, or give it the extension that it should have"
	case errors.Is(err, errSlow) || errors.Is(err, errMuch):
		return "; split it into smaller ones"
	}
	return ""
}

func (s *splitter) readText(ctx context.Context, d Document, in *os.File, info fs.FileInfo) (paged, error) {
	var data bytes.Buffer
	data.Grow(int(info.Size()) + bytes.MinRead)
	if err := verify(ctx, d, in, info, &data); err != nil {
		return paged{}, err
	}
	extract := text
	if d.MediaType == "text/html" {
		extract = markdown
	}
	t, err := extract(data.Bytes())
	if err != nil {
		return paged{}, err
	}
	return pagesOf(t, s.pageChars)
}

func (s *splitter) readPDF(ctx context.Context, d Document, in *os.File, info fs.FileInfo) (paged, error) {
	if err := verify(ctx, d, in, info, nil); err != nil {
		return paged{}, err
	}
	texts, err := s.pdf.texts(ctx, in, info.Size())
	if after, serr := in.Stat(); serr != nil || after.Size() != info.Size() || !after.ModTime().Equal(info.ModTime()) {
		return paged{}, errChanged // what was read is of no known content
	}
	if err != nil {
		return paged{}, err
	}
	return pack(texts)
}

// verify reads the file, into to unless that is nil, and makes sure that it's the document that was found.
func verify(ctx context.Context, d Document, in *os.File, info fs.FileInfo, to io.Writer) error {
	sum, err := digest(ctx, in, info, to)
	if err != nil {
		return err
	}
	if sum != d.SHA256 {
		return errChanged
	}
	return nil
}

func (s *splitter) emit(st stepper, d Document, p paged) {
	for _, page := range p.pages {
		place := Place{Document: d.SHA256, Page: page.page, Part: page.part}
		sum := sha256.Sum256([]byte(page.text))
		st.Emit(event.New(PageSplit, place.Subject(), Page{Place: place, Name: d.Name, Path: d.Path, Pages: p.total,
			SHA256: hex.EncodeToString(sum[:]), Text: page.text}))
	}
	st.Tx(within(func(ctx context.Context, st store) error { return st.setPages(ctx, d.SHA256, p.total) }))
}
