package agents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/klippa-app/go-pdfium"
	pdferrors "github.com/klippa-app/go-pdfium/errors"
	"github.com/klippa-app/go-pdfium/references"
	"github.com/klippa-app/go-pdfium/requests"
	"github.com/klippa-app/go-pdfium/webassembly"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
)

const (
	pdfTime   = 2 * time.Minute // for one document
	pdfIdle   = time.Minute     // until the reader is closed
	pdfMemory = 384 << 20 / 65536
	pdfText   = 64 << 20 // bytes of text of one document
)

// pdfReader reads the text of PDFs with PDFium, compiled to WebAssembly: the document can't reach out of its sandbox,
// which has bounded memory, no files and no network. One document is read at a time, each in an instance of its own.
//
// The reader starts with the first PDF, which takes about 3.5 s and 320 MiB while it compiles, or 0.1 s and 40 MiB
// where its compiled form lies in the cache; it keeps some 40 MiB, and gives them back after a minute without PDFs.
type pdfReader struct {
	cache string
	log   *slog.Logger
	turn  chan struct{} // holds one token while no document is read
	base  func() wazero.RuntimeConfig

	mu     sync.Mutex
	engine *pdfEngine
	idle   *time.Timer
	closed bool
}

// pdfEngine is a started PDFium. Cancelling ends whatever runs in it, and it with that.
type pdfEngine struct {
	pool   pdfium.Pool
	cache  wazero.CompilationCache
	cancel context.CancelFunc
}

func newPDFReader(cache string, log *slog.Logger) *pdfReader {
	p := &pdfReader{cache: cache, log: log, turn: make(chan struct{}, 1), base: wazero.NewRuntimeConfig}
	p.turn <- struct{}{}
	return p
}

var (
	errPassword = errors.New("it's encrypted with a password; save a copy without one")
	errBroken   = errors.New("it's broken, or no PDF")
	errPanic    = errors.New("the PDF reader gave up on it")
	errSlow     = fmt.Errorf("reading it took longer than %s", pdfTime)
	errMuch     = fmt.Errorf("it holds more than %d MiB of text", pdfText>>20)
)

// texts is the text of each page. Errors are the document's, but for those of ctx and of starting.
func (p *pdfReader) texts(ctx context.Context, in io.ReadSeeker, size int64) ([]string, error) {
	select {
	case <-p.turn:
		defer func() { p.turn <- struct{}{} }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	e, err := p.start()
	if err != nil {
		return nil, &startError{err}
	}
	defer p.rest()

	bounded, end := context.WithTimeout(ctx, pdfTime)
	defer end()
	killed := context.AfterFunc(bounded, e.cancel)
	texts, err := e.read(bounded, in, size)
	if !killed() {
		p.drop(e) // it was cancelled: what is left of it is no good
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, errSlow
	}
	if errors.As(err, new(*startError)) || errors.Is(err, errPanic) {
		p.drop(e) // other errors are the document's, whose instance is gone already
	}
	return texts, err
}

// startError says that no PDF can be read at all.
type startError struct{ error }

func (e *startError) Unwrap() error { return e.error }

func (e *pdfEngine) read(ctx context.Context, in io.ReadSeeker, size int64) (texts []string, err error) {
	defer func() {
		if v := recover(); v != nil {
			texts, err = nil, fmt.Errorf("%w (%w: %v)", errBroken, errPanic, v)
		}
	}()
	instance, err := e.pool.GetInstanceWithContext(ctx)
	if err != nil {
		return nil, &startError{err}
	}
	defer func() { _ = instance.Close() }() // its memory goes in any case
	doc, err := instance.OpenDocument(&requests.OpenDocument{FileReader: in, FileReaderSize: size})
	if err != nil {
		return nil, pdfError(err)
	}
	count, err := instance.FPDF_GetPageCount(&requests.FPDF_GetPageCount{Document: doc.Document})
	if err != nil {
		return nil, pdfError(err)
	}
	total := 0
	for i := range count.PageCount {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		text, err := pdfPage(instance, doc.Document, i)
		if err != nil {
			return nil, fmt.Errorf("page %d: %w", i+1, err)
		}
		if total += len(text); total > pdfText {
			return nil, errMuch
		}
		texts = append(texts, text)
	}
	return texts, nil
}

func pdfPage(instance pdfium.Pdfium, doc references.FPDF_DOCUMENT, i int) (string, error) {
	page := requests.Page{ByIndex: &requests.PageByIndex{Document: doc, Index: i}}
	text, err := instance.GetPageText(&requests.GetPageText{Page: page})
	if err != nil {
		return "", pdfError(err)
	}
	return pdfMarks.Replace(strings.ToValidUTF8(text.Text, "\uFFFD")), nil
}

// pdfMarks takes out what PDFium adds to the text: a mark where a word was hyphenated at the end of a line, with the
// line's end, and carriage returns.
var pdfMarks = strings.NewReplacer("\x02\r\n", "", "\uFFFE\r\n", "", "\x02\n", "", "\uFFFE\n", "", "\x02", "", "\uFFFE", "", "\r\n", "\n", "\r", "\n", "\x00", "", "\f", "\n")

func pdfError(err error) error {
	switch {
	case errors.Is(err, pdferrors.ErrPassword) || errors.Is(err, pdferrors.ErrSecurity):
		return errPassword
	case errors.Is(err, pdferrors.ErrFormat) || errors.Is(err, pdferrors.ErrFile) || errors.Is(err, pdferrors.ErrPage):
		return errBroken
	}
	return fmt.Errorf("%w: %s", errBroken, clip(strings.Join(strings.Fields(err.Error()), " "), 200))
}

// start is the running engine, which is started where there's none.
func (p *pdfReader) start() (*pdfEngine, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errors.New("the PDF reader is closed")
	}
	if p.idle != nil {
		p.idle.Stop()
	}
	if p.engine != nil {
		return p.engine, nil
	}
	begun := time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	e := &pdfEngine{cancel: cancel}
	runtime := p.base().
		WithCoreFeatures(api.CoreFeaturesV2 | experimental.CoreFeaturesExceptionHandling).
		WithCloseOnContextDone(true).WithMemoryLimitPages(pdfMemory)
	if p.cache != "" {
		cache, err := openCache(p.cache)
		if err != nil {
			p.log.Warn("compiled PDF reader can't be kept", "error", err)
		} else {
			e.cache = cache
			runtime = runtime.WithCompilationCache(cache)
		}
	}
	pool, err := webassembly.Init(webassembly.Config{Context: ctx, MaxIdle: 1, MaxTotal: 1, FSConfig: wazero.NewFSConfig(),
		RuntimeConfig: runtime, Stdout: io.Discard, Stderr: io.Discard})
	if err != nil {
		e.close()
		return nil, fmt.Errorf("start the PDF reader: %w", err)
	}
	e.pool, p.engine = pool, e
	debug.FreeOSMemory() // compiling leaves hundreds of MiB behind
	p.log.Info("PDF reader started", "took", time.Since(begun).Round(time.Millisecond))
	return e, nil
}

func openCache(folder string) (wazero.CompilationCache, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	return wazero.NewCompilationCacheWithDir(folder)
}

// rest closes the engine after a while without documents.
func (p *pdfReader) rest() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engine == nil || p.closed {
		return
	}
	e := p.engine
	p.idle = time.AfterFunc(pdfIdle, func() {
		select {
		case <-p.turn: // nobody reads
			p.drop(e)
			p.turn <- struct{}{}
		default:
		}
	})
}

// drop ends an engine; the next document starts another.
func (p *pdfReader) drop(e *pdfEngine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engine == e && e != nil {
		p.engine = nil
		e.close()
		debug.FreeOSMemory()
	}
}

func (p *pdfReader) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.idle != nil {
		p.idle.Stop()
	}
	if p.engine != nil {
		p.engine.close()
		p.engine = nil
	}
}

func (e *pdfEngine) close() {
	e.cancel()
	if e.pool != nil {
		_ = e.pool.Close() // what it holds is memory
	}
	if e.cache != nil {
		_ = e.cache.Close(context.Background())
	}
}
