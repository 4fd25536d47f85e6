package e2e

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"
)

// corpus is a folder of real documents: what this system and Go document about themselves.
type corpus struct {
	folder string
	files  []document
}

// document is a file of the corpus and what is known of it without our help.
type document struct {
	name    string // within the folder
	planted string // a word that stands nowhere else; "": none
	words   string // all of the words, blanks aside; "": not known
	pages   []int  // the numbers of those with text; nil: not known
}

// candidate is a file that the corpus may take.
type candidate struct {
	path string
	sum  [32]byte
	kind string // extension
	text []byte
}

// rareWord is made up, of letters only, and differs by its number.
func rareWord(n int) string {
	const syllables = "bakodufegihanolupirestovuwexyzaqu"
	sum := sha256.Sum256(fmt.Appendf(nil, "rare word %d", n))
	word := "zyx"
	for _, b := range sum[:6] {
		i := int(b) % (len(syllables) / 2) * 2
		word += syllables[i : i+2]
	}
	return word + "qv"
}

// newCorpus copies so many texts and pages of HTML, and prints so many pages to PDF. Every fifth holds a rare word.
func newCorpus(t testing.TB, texts, pdfs int, limit int64) corpus {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "corpus")
	taken := choose(t, texts, limit)
	c := corpus{folder: folder}
	for i, f := range taken {
		d := document{name: fmt.Sprintf("%02d/%04d-%s", i/100, i, filepath.Base(f.path))}
		text := f.text
		if i%5 == 0 {
			d.planted = rareWord(i)
			text = plant(f, d.planted)
		}
		if f.kind != ".html" && f.kind != ".htm" {
			d.words = squeeze(string(text))
		}
		write(t, filepath.Join(folder, d.name), text)
		c.files = append(c.files, d)
	}
	c.print(t, pdfs)
	slices.SortFunc(c.files, func(a, b document) int { return cmp.Compare(a.name, b.name) })
	return c
}

func write(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
}

func plant(f candidate, word string) []byte {
	if f.kind == ".html" || f.kind == ".htm" {
		if i := bytes.LastIndex(bytes.ToLower(f.text), []byte("</body>")); i >= 0 {
			return slices.Concat(f.text[:i], []byte("<p>The word is "+word+".</p>\n"), f.text[i:])
		}
	}
	return slices.Concat(bytes.TrimRight(f.text, " \t\r\n\f"), []byte("\n\nThe word is "+word+".\n"))
}

// choose takes n files of different contents, a quarter of them HTML where there are so many. The choice depends on
// the contents alone.
func choose(t testing.TB, n int, limit int64) []candidate {
	t.Helper()
	all := candidates(t, limit)
	markup := 0
	taken := slices.DeleteFunc(slices.Clone(all), func(c candidate) bool {
		if c.kind != ".html" {
			return true
		}
		markup++
		return markup > n/4
	})
	for _, c := range all {
		if len(taken) < n && c.kind != ".html" {
			taken = append(taken, c)
		}
	}
	if len(taken) < n {
		t.Fatalf("only %d of %d documents are on this system: install some with documentation (Debian: libtasn1-doc, git-doc, python3-doc)", len(taken), n)
	}
	return taken
}

// candidates are all that this system has, by their contents. They are looked for once.
func candidates(t testing.TB, limit int64) []candidate {
	t.Helper()
	system.Lock()
	defer system.Unlock()
	if all, ok := system.documents[limit]; ok {
		return all
	}
	var all []candidate
	seen := map[[32]byte]bool{}
	for _, root := range roots(t) {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.Type().IsRegular() {
				return nil
			}
			if c, ok := consider(path, limit); ok && !seen[c.sum] { // what can't be read is left out
				seen[c.sum] = true
				all = append(all, c)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(all, func(a, b candidate) int { return bytes.Compare(a.sum[:], b.sum[:]) })
	system.documents[limit] = all
	return all
}

var system = struct {
	sync.Mutex
	documents map[int64][]candidate // by the size that bounds them
}{documents: map[int64][]candidate{}}

func roots(t testing.TB) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT", "GOMODCACHE").Output()
	if err != nil {
		t.Fatalf("ask go where it is: %v", err)
	}
	return append(strings.Fields(string(out)), "/usr/share/doc")
}

// consider takes texts of some words, in UTF-8.
func consider(path string, limit int64) (candidate, bool) {
	kind := strings.ToLower(filepath.Ext(path))
	if kind == ".htm" {
		kind = ".html"
	}
	if kind != ".txt" && kind != ".md" && kind != ".html" {
		return candidate{}, false
	}
	info, err := os.Stat(path)
	if err != nil || info.Size() < 200 || info.Size() > limit {
		return candidate{}, false
	}
	text, err := os.ReadFile(path)
	if err != nil || !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 || bytes.HasPrefix(text, []byte("\ufeff")) {
		return candidate{}, false
	}
	visible := string(text)
	if kind == ".html" {
		visible = visibleText(text)
	}
	if len(strings.Fields(visible)) < 20 {
		return candidate{}, false
	}
	return candidate{path, sha256.Sum256(text), kind, text}, true
}

// visibleText is what a page of HTML shows, roughly.
func visibleText(page []byte) string {
	var b strings.Builder
	z := html.NewTokenizer(bytes.NewReader(page))
	hidden := 0
	for {
		switch z.Next() {
		case html.ErrorToken:
			return b.String()
		case html.StartTagToken, html.EndTagToken:
			token := z.Token()
			if token.Data == "script" || token.Data == "style" || token.Data == "head" {
				if token.Type == html.StartTagToken {
					hidden++
				} else {
					hidden = max(0, hidden-1)
				}
			}
		case html.TextToken:
			if hidden == 0 {
				b.Write(z.Text())
				b.WriteByte(' ')
			}
		}
	}
}

// squeeze leaves all blanks out, so that texts can be compared however they are cut.
func squeeze(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsSpace(c) {
			return -1
		}
		return c
	}, s)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
