package agents

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/table"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
	"golang.org/x/net/html/charset"
	"golang.org/x/text/encoding/htmlindex"
)

// text decodes a plain text. What isn't text is refused with its place, never rewritten: two different files must
// not become one.
func text(data []byte) (string, error) {
	switch {
	case bytes.HasPrefix(data, []byte{0xef, 0xbb, 0xbf}):
		data = data[3:]
	case bytes.HasPrefix(data, []byte{0xff, 0xfe}):
		return utf16Text(data[2:], func(b []byte) uint16 { return uint16(b[0]) | uint16(b[1])<<8 })
	case bytes.HasPrefix(data, []byte{0xfe, 0xff}):
		return utf16Text(data[2:], func(b []byte) uint16 { return uint16(b[1]) | uint16(b[0])<<8 })
	}
	return utf8Text(data)
}

func utf8Text(data []byte) (string, error) {
	for i := 0; i < len(data); {
		c, size := utf8.DecodeRune(data[i:])
		if c == utf8.RuneError && size == 1 {
			return "", fmt.Errorf("it isn't UTF-8: byte %d is 0x%02x; save it as UTF-8", i, data[i])
		}
		if c == 0 {
			return "", fmt.Errorf("%w: byte %d is NUL", errNoText, i)
		}
		i += size
	}
	return string(data), nil
}

func utf16Text(data []byte, unit func([]byte) uint16) (string, error) {
	if len(data)%2 != 0 {
		return "", errors.New("it isn't UTF-16, as its first bytes say: it has an odd number of bytes")
	}
	var b strings.Builder
	b.Grow(len(data))
	for i := 0; i < len(data); i += 2 {
		c := rune(unit(data[i:]))
		if utf16.IsSurrogate(c) {
			var low rune
			if i+4 <= len(data) {
				low = rune(unit(data[i+2:]))
			}
			pair := utf16.DecodeRune(c, low)
			if pair == utf8.RuneError {
				return "", fmt.Errorf("it isn't UTF-16, as its first bytes say: byte %d begins half a pair", i+2)
			}
			c, i = pair, i+2
		}
		if c == 0 {
			return "", fmt.Errorf("%w: byte %d is NUL", errNoText, i+2)
		}
		b.WriteRune(c)
	}
	return b.String(), nil
}

// markdown turns a page of HTML into Markdown. Its encoding is what its first bytes or its head declare; without a
// word there it's UTF-8 where all of it is, else windows-1252, as the HTML standard has it.
func markdown(data []byte) (out string, err error) {
	decoded, err := decodeHTML(data)
	if err != nil {
		return "", err
	}
	defer func() {
		if v := recover(); v != nil { // a document that the converter can't take is the document's fault
			out, err = "", fmt.Errorf("its HTML can't be converted: %v", v)
		}
	}()
	// One converter a document, since it keeps state. The table plugin keeps the words of neighbouring cells apart;
	// it pads no cells, or one wide cell would make every row as wide.
	convert := converter.NewConverter(converter.WithPlugins(base.NewBasePlugin(), commonmark.NewCommonmarkPlugin(),
		table.NewTablePlugin(table.WithNewlineBehavior(table.NewlineBehaviorPreserve), table.WithCellPaddingBehavior(table.CellPaddingBehaviorMinimal))))
	doc, err := html.Parse(strings.NewReader(decoded))
	if err != nil {
		return "", fmt.Errorf("its HTML can't be read: %w", err)
	}
	if depth(doc) > maxIndents {
		return "", fmt.Errorf("its HTML puts lists and quotes into each other more than %d levels deep", maxIndents)
	}
	b, err := convert.ConvertNode(doc)
	if err != nil {
		return "", fmt.Errorf("its HTML can't be converted: %w", err)
	}
	return string(b), nil
}

// maxIndents bounds lists and quotes within each other: each level indents all lines below it, so that 100 KB of HTML
// could become minutes of work.
const maxIndents = 50

// depth is how deep lists and quotes stand in each other. The parser bounds the depth of all elements.
func depth(n *html.Node) int {
	deepest := 0
	for child := n.FirstChild; child != nil; child = child.NextSibling {
		deepest = max(deepest, depth(child))
	}
	if n.Type == html.ElementNode {
		switch n.DataAtom {
		case atom.Blockquote, atom.Ul, atom.Ol, atom.Dl:
			deepest++
		}
	}
	return deepest
}

func decodeHTML(data []byte) (string, error) {
	if len(data) >= 2 && (data[0] == 0xff && data[1] == 0xfe || data[0] == 0xfe && data[1] == 0xff) {
		return text(data)
	}
	encoding, name, certain := charset.DetermineEncoding(data, "")
	declared := certain || bytes.Contains(bytes.ToLower(data[:min(len(data), 1024)]), []byte("charset"))
	if name == "utf-8" || (!declared && utf8.Valid(data)) {
		return text(data)
	}
	decoded, err := encoding.NewDecoder().Bytes(data)
	if err != nil {
		return "", fmt.Errorf("it can't be read as %s, which it declares: %w", name, err)
	}
	if i := bytes.IndexRune(decoded, utf8.RuneError); i >= 0 && !strings.HasPrefix(canonicalName(name), "utf-") {
		return "", fmt.Errorf("it isn't %s, as it declares: a byte near %d has no meaning there", name, i)
	}
	return utf8Text(decoded)
}

func canonicalName(name string) string {
	e, err := htmlindex.Get(name)
	if err != nil {
		return name
	}
	canonical, err := htmlindex.Name(e)
	if err != nil {
		return name
	}
	return canonical
}

// pageText is the text of one page of a document.
type pageText struct {
	page int // from 1
	part int
	text string
}

// paged is a document cut into pages. total counts pages without text too.
type paged struct {
	pages []pageText
	total int
}

var (
	errEmpty  = errors.New("it's empty: it holds no text")
	errNoText = errors.New("it isn't text")
)

// pagesOf cuts a text at its form feeds; without them at about size characters.
func pagesOf(text string, size int) (paged, error) {
	var texts []string
	if strings.Contains(strings.Trim(text, "\f \t\r\n"), "\f") {
		texts = strings.Split(strings.TrimRight(text, "\f \t\r\n"), "\f")
	} else {
		texts = chunks(strings.ReplaceAll(text, "\f", ""), size)
	}
	return pack(texts)
}

// pack numbers pages, leaves empty ones out, and cuts those that wouldn't fit into one event into parts.
func pack(texts []string) (paged, error) {
	out := paged{total: len(texts)}
	for i, t := range texts {
		t = strings.Trim(t, " \t\r\n")
		if strings.TrimSpace(t) == "" {
			continue
		}
		if jsonLength(t) <= maxText {
			out.pages = append(out.pages, pageText{i + 1, 0, t})
			continue
		}
		for part, piece := range chunks(t, partChars) {
			out.pages = append(out.pages, pageText{i + 1, part, piece})
		}
	}
	if len(out.pages) == 0 {
		return paged{}, errEmpty
	}
	return out, nil
}

const (
	// maxText bounds a page's text as JSON, and maxNames its path and name, so that an event stays under 64 KiB.
	maxText  = 40 << 10
	maxNames = 20 << 10
	// partChars is the size of the parts of a longer page: even if each character becomes six bytes in JSON, and with
	// the tenth that chunks may run over, they keep to maxText.
	partChars = 5000
)

// jsonLength is how many bytes a text has as encoding/json writes it.
func jsonLength(s string) int {
	n := 2
	for _, c := range s {
		switch {
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t':
			n += 2
		case c < ' ' || c == '<' || c == '>' || c == '&' || c == 0x7f || c == '\u2028' || c == '\u2029':
			n += 6
		default:
			n += utf8.RuneLen(c)
		}
	}
	return n
}

// chunks cuts a text into pieces of about so many characters: at a paragraph, else a line, else a sentence, else a
// word, and within a word only where there's nothing else. No rune is cut, and nothing is lost but blanks at the cuts.
func chunks(text string, size int) []string {
	var out []string
	text = strings.Trim(text, " \t\r\n")
	for text != "" {
		n := chunkEnd(text, size)
		if piece := strings.Trim(text[:n], " \t\r\n"); piece != "" {
			out = append(out, piece)
		}
		text = strings.TrimLeft(text[n:], " \t\r\n")
	}
	return out
}

// chunkEnd is the length of the first piece in bytes.
func chunkEnd(text string, size int) int {
	least, most, count := -1, len(text), 0
	for i := range text {
		if count == size*6/10 {
			least = i
		}
		if count == size*11/10 {
			most = i
			break
		}
		count++
	}
	if most == len(text) || least < 0 {
		return len(text)
	}
	window := text[least:most]
	for _, bound := range []string{"\n\n", "\n", ". ", "? ", "! ", "。", "; ", " ", "\t"} {
		if i := strings.LastIndex(window, bound); i >= 0 {
			return least + i + len(bound)
		}
	}
	return most
}
