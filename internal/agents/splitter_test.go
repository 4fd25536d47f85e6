package agents

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/fault"
)

// pdfOf writes a PDF of one line a page; with encrypt it asks for a password that nobody knows.
func pdfOf(encrypt bool, lines ...string) string {
	var b bytes.Buffer
	var at []int
	object := func(format string, args ...any) {
		at = append(at, b.Len())
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", len(at), fmt.Sprintf(format, args...))
	}
	b.WriteString("%PDF-1.4\n")
	kids := ""
	for i := range lines {
		kids += fmt.Sprintf("%d 0 R ", 4+2*i)
	}
	object("<< /Type /Catalog /Pages 2 0 R >>")
	object("<< /Type /Pages /Kids [%s] /Count %d >>", kids, len(lines))
	object("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
	for i, line := range lines {
		object("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %d 0 R /Resources << /Font << /F1 3 0 R >> >> >>", 5+2*i)
		stream := fmt.Sprintf("BT /F1 12 Tf 50 800 Td (%s) Tj ET", line)
		object("<< /Length %d >>\nstream\n%s\nendstream", len(stream), stream)
	}
	extra := ""
	if encrypt {
		object("<< /Filter /Standard /V 1 /R 2 /P -4 /O <%064x> /U <%064x> >>", 1, 2)
		extra = fmt.Sprintf("/Encrypt %d 0 R /ID [<00112233445566778899aabbccddeeff> <00112233445566778899aabbccddeeff>]", len(at))
	}
	xref := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(at)+1)
	for _, offset := range at {
		fmt.Fprintf(&b, "%010d 00000 n \n", offset)
	}
	fmt.Fprintf(&b, "trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n", len(at)+1, extra, xref)
	return b.String()
}

// splitFile runs a file through finder and splitter.
func splitFile(t *testing.T, sp *splitter, s *swarm, name, content string) ([]Page, error) {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, name), content)
	s.queue = nil
	s.scanOnce(s.finderOn(dir))
	if len(s.queue) != 1 {
		t.Fatalf("%d events", len(s.queue))
	}
	st, err := s.handle(sp.handle, s.queue[0])
	if err != nil {
		return nil, err
	}
	var pages []Page
	for _, e := range st.emits {
		p, err := decodePage(e)
		if err != nil {
			t.Fatal(err)
		}
		if e.Subject != p.Subject() || e.Type != PageSplit || len(p.SHA256) != 64 || p.Name != name {
			t.Errorf("event %+v", e)
		}
		pages = append(pages, p)
	}
	return pages, nil
}

func TestTextOfEachFormat(t *testing.T) {
	s := newSwarm(t)
	sp := s.splitter()
	for _, c := range []struct{ name, content, want string }{
		{"plain.txt", "Just text.\r\nTwo lines.\n", "1/1 Just text.\r\nTwo lines."},
		{"bom.txt", "\ufeffWith a mark.", "1/1 With a mark."},
		{"utf16le.txt", "\xff\xfeH\x00i\x00=\xd8\x00\xde", "1/1 Hi😀"},
		{"utf16be.txt", "\xfe\xff\x00H\x00i", "1/1 Hi"},
		{"feeds.txt", "one\f\f three <&> \f", "1/3 one|3/3 three <&>"},
		{"note.md", "# Head\n\nBody *stays*.", "1/1 # Head\n\nBody *stays*."},
		{"page.html", "<html><head><title>T</title><style>p{}</style><script>x()</script></head><body><h1>Head</h1><p>One <b>bold</b> caf&eacute;.</p></body></html>", "1/1 # Head\n\nOne **bold** café."},
		{"table.html", "<table><tr><td>one<br>more</td><td>two</td></tr></table>", "1/1 |  |  |\n|---|---|\n| one  <br />more | two |"},
		{"latin.html", "<meta charset=iso-8859-1><p>caf\xe9", "1/1 café"},
		{"undeclared.html", "<p>caf\xe9", "1/1 café"},
		{"utf8.html", strings.Repeat(" ", 1100) + "<p>café", "1/1 café"},
		{"sjis.html", "<meta charset=shift_jis><p>\x93\xfa\x96\x7b", "1/1 日本"},
		{"two.pdf", pdfOf(false, "First page, zyxomma.", "", "Third page."), "1/3 First page, zyxomma.|3/3 Third page."},
	} {
		t.Run(c.name, func(t *testing.T) {
			pages, err := splitFile(t, sp, s, c.name, c.content)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range pages {
				got = append(got, fmt.Sprintf("%d/%d %s", p.Page, p.Pages, p.Text))
			}
			if g := strings.Join(got, "|"); g != c.want {
				t.Errorf("got %q, want %q", g, c.want)
			}
		})
	}
}

func TestWhatIsNoTextIsDeadWithAReason(t *testing.T) {
	s := newSwarm(t)
	sp := s.splitter()
	for _, c := range []struct{ name, content, want string }{
		{"latin.txt", "caf\xe9", "byte 3 is 0xe9"},
		{"nul.txt", "a\x00b", "byte 1 is NUL"},
		{"odd.txt", "\xff\xfea", "odd number"},
		{"half.txt", "\xff\xfe\x00\xd8", "half a pair"},
		{"blank.txt", " \n\f\n ", "empty"},
		{"blank.html", "<p> </p><script>x</script>", "empty"},
		{"declared.html", "<meta charset=utf-8><p>caf\xe9", "isn't UTF-8"},
		{"wrong.html", "<meta charset=euc-jp><p>\xff\xff", "isn't euc-jp"},
		{"nested.html", strings.Repeat("<div>", 200000), "HTML"},
		{"quotes.html", strings.Repeat("<blockquote>", 400) + strings.Repeat("y<br>", 20000), "quotes"},
		{"secret.pdf", pdfOf(true, "Secret."), "password"},
		{"cut.pdf", "%PDF-1.7\ngarbage", "broken"},
		{"none.pdf", "hello", "broken"},
		{"blank.pdf", pdfOf(false, "", ""), "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := splitFile(t, sp, s, c.name, c.content)
			if fault.ClassOf(err) != fault.Permanent || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.name) {
				t.Errorf("error %v of class %s", err, fault.ClassOf(err))
			}
		})
	}
	// None of them broke the reader.
	if pages, err := splitFile(t, sp, s, "good.pdf", pdfOf(false, "Good.")); err != nil || len(pages) != 1 {
		t.Errorf("afterwards: %v, %v", pages, err)
	}
}

func TestSplitterPassesOverWhatChangedOrIsDone(t *testing.T) {
	s, dir := newSwarm(t), t.TempDir()
	sp, path := s.splitter(), filepath.Join(dir, "a.txt")
	write(t, path, "The content.")
	s.scanOnce(s.finderOn(dir))
	found := s.queue[0]
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.handle(sp.handle, found); fault.ClassOf(err) != fault.Permanent || !strings.Contains(err.Error(), "gone") {
		t.Errorf("gone: %v", err)
	}
	write(t, path, "The cantent.")
	if st, err := s.handle(sp.handle, found); err != nil || !strings.Contains(st.skipped, "changed") || len(st.emits) != 0 {
		t.Errorf("changed: %+v, %v", st, err)
	}
	write(t, path, "The content.")
	if st, err := s.handle(sp.handle, found); err != nil || len(st.emits) != 1 {
		t.Errorf("as found: %+v, %v", st, err)
	}
	if st, err := s.handle(sp.handle, found); err != nil || !strings.Contains(st.skipped, "already") {
		t.Errorf("done: %+v, %v", st, err)
	}
	if _, err := s.handle(sp.handle, event.New(DocumentFound, "x", Document{Path: "/p", Problem: "a reason"})); err == nil || err.Error() != "/p: a reason" {
		t.Errorf("a problem: %v", err)
	}
}

// A document that never ends is given up when its step is, and the next one is read.
func TestPDFReaderIsCancelled(t *testing.T) {
	p := testPDFReader()
	defer p.close()
	ctx, cancel := context.WithCancel(t.Context())
	good := pdfOf(false, "Good.")
	in := &endless{Reader: strings.NewReader(good), cancel: cancel}
	if _, err := p.texts(ctx, in, int64(len(good))); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	texts, err := p.texts(t.Context(), strings.NewReader(good), int64(len(good)))
	if err != nil || len(texts) != 1 || strings.TrimSpace(texts[0]) != "Good." {
		t.Errorf("afterwards: %q, %v", texts, err)
	}
	p.close()
	if _, err := p.texts(t.Context(), strings.NewReader(good), int64(len(good))); err == nil {
		t.Error("read by a closed reader")
	}
}

// endless cancels its step when it's first read.
type endless struct {
	*strings.Reader
	cancel func()
}

func (e *endless) Read(p []byte) (int, error) { e.cancel(); return e.Reader.Read(p) }

var _ io.ReadSeeker = (*endless)(nil)

func TestPagesAreCutAtBounds(t *testing.T) {
	paragraph := strings.Repeat("A sentence of the text. ", 40) // 960 characters
	text := strings.Repeat(paragraph+"\n\n", 10)
	p, err := pagesOf(text, 3000)
	if err != nil || p.total != len(p.pages) || len(p.pages) < 3 || len(p.pages) > 5 {
		t.Fatalf("%d pages, %v", len(p.pages), err)
	}
	for _, page := range p.pages {
		if !strings.HasSuffix(page.text, ".") || len(page.text) > 3300 {
			t.Errorf("page %d has %d bytes and ends %q", page.page, len(page.text), page.text[len(page.text)-20:])
		}
	}
	long := strings.Repeat("é", 9000)
	if p, err = pagesOf(long, 3000); err != nil || len(p.pages) < 3 {
		t.Errorf("without bounds: %d pages, %v", len(p.pages), err)
	}
	// A page of its own stays one page, in parts.
	p, err = pack([]string{"small", strings.Repeat("<", 60000)})
	if err != nil || len(p.pages) < 3 || p.pages[1].page != 2 || p.pages[2].part != 1 || p.total != 2 {
		t.Errorf("parts: %d pages, %v", len(p.pages), err)
	}
}

// Nothing of a text is lost but blanks, no rune is cut, and no page is too large for its event.
func TestPagesHoldTheWholeText(t *testing.T) {
	bare := func(s string) string { return strings.Join(strings.Fields(strings.ReplaceAll(s, "\f", " ")), "") }
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		text := randomText(r, rapid.IntRange(1, 20000).Draw(t, "bytes"))
		if rapid.Bool().Draw(t, "odd") {
			text += rapid.StringN(0, 200, -1).Draw(t, "tail") + "\f" + strings.Repeat("\x01<é", rapid.IntRange(0, 9000).Draw(t, "long"))
		}
		p, err := pagesOf(text, rapid.IntRange(200, 8000).Draw(t, "size"))
		if err != nil {
			if bare(text) != "" {
				t.Fatal(err)
			}
			return
		}
		var all strings.Builder
		for _, page := range p.pages {
			all.WriteString(page.text)
			b, err := json.Marshal(page.text)
			if err != nil || len(b) > maxText || !utf8.ValidString(page.text) || page.page > p.total {
				t.Fatalf("page %d: %d bytes as JSON, %v", page.page, len(b), err)
			}
			if n := jsonLength(page.text); n < len(b) {
				t.Fatalf("jsonLength says %d of %d", n, len(b))
			}
		}
		if bare(all.String()) != bare(text) {
			t.Fatal("text was lost")
		}
	})
}

func TestWeightFollowsTheDocument(t *testing.T) {
	small := weighDocument(event.New(DocumentFound, "x", Document{Size: 1000}))
	large := weighDocument(event.New(DocumentFound, "x", Document{Size: 50 << 20}))
	pdf := weighDocument(event.New(DocumentFound, "x", Document{Size: 1000, MediaType: "application/pdf"}))
	if small < 4000 || large < 200<<20 || pdf < 16<<20 {
		t.Errorf("weights %d, %d, %d", small, large, pdf)
	}
	if weighDocument(event.Event{Data: []byte("x")}) != 1 {
		t.Error("data that can't be read has another weight than its size")
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("<meta charset=shift_jis><p>\x93\xfa"), 300)
	f.Add([]byte("\xff\xfeH\x00"), 200)
	f.Add([]byte("a\fb\n\nc. d"), 201)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		for name, read := range map[string]func([]byte) (string, error){"text": text, "html": markdown} {
			s, err := read(data)
			if err != nil {
				continue
			}
			if !utf8.ValidString(s) {
				t.Fatalf("%s: not UTF-8", name)
			}
			if _, err := pagesOf(s, 200+int(uint(size)%7800)); err != nil && !errors.Is(err, errEmpty) {
				t.Fatalf("%s: %v", name, err)
			}
		}
	})
}

func BenchmarkPDF(b *testing.B) {
	p := testPDFReader()
	defer p.close()
	doc := pdfOf(false, strings.Split(strings.Repeat("A line.\n", 20), "\n")...)
	if _, err := p.start(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := p.texts(context.Background(), strings.NewReader(doc), int64(len(doc))); err != nil {
			b.Fatal(err)
		}
	}
}

func TestBuildMakesEachKind(t *testing.T) {
	s := newSwarm(t)
	for _, a := range []config.Agent{
		{Name: "f", Kind: config.Finder, Emits: []string{"d"}}, {Name: "s", Kind: config.Splitter, Reads: []string{"d"}, OnDead: "skip",
			Limits: config.Limits{Steps: 3, Timeout: time.Second}},
		{Name: "r", Kind: config.Reader}, {Name: "e", Kind: config.Embedder}, {Name: "i", Kind: config.Indexer, Types: []string{PageSplit}},
	} {
		b, err := Build(a, Deps{Read: s.db.Read})
		if err != nil || (b.Agent == nil) == (b.Source == nil) {
			t.Fatalf("%s: %+v, %v", a.Name, b, err)
		}
		if a.Kind == config.Splitter && (b.Agent.Limits.Steps != 3 || b.Agent.OnDead != "skip" || b.Agent.Weigh == nil || fmt.Sprint(b.Agent.Types) != "[DocumentFoundEvent]") {
			t.Errorf("splitter %+v", b.Agent)
		}
		if a.Kind == config.Indexer && fmt.Sprint(b.Agent.Types) != "[PageSplitEvent]" {
			t.Errorf("indexer %+v", b.Agent)
		}
		b.Close()
		b.Close()
	}
	if _, err := Build(config.Agent{Name: "x", Kind: "y"}, Deps{}); err == nil {
		t.Error("an unknown kind was built")
	}
}
