//go:build unix

package e2e

import (
	"encoding/binary"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/killkit"
)

// TestKills reads a folder while the process is killed again and again, and compares with a run that wasn't disturbed.
func TestKills(t *testing.T) {
	beside(t)
	c := newCorpus(t, scaled(100, 2000), scaled(0, 20), int64(scaled(32<<10, 1<<20)))
	for name, text := range badFiles { // each is refused once, however often the process dies
		write(t, filepath.Join(c.folder, name), []byte(text))
	}
	if full { // the run beside a server shows all that this does
		t.Run("built-in model", func(t *testing.T) { c.killTest(t, func(testing.TB) *models { return nil }) })
	}
	t.Run("model server", func(t *testing.T) { c.killTest(t, startModels) })
}

var badFiles = map[string]string{"bad/empty.txt": "", "bad/latin1.md": "caf\xe9", "bad/blank.html": "<html></html>", "bad/broken.pdf": "%PDF-1.7 and no more"}

func (c corpus) killTest(t *testing.T, server func(testing.TB) *models) {
	calm := server(t)
	data := filepath.Join(t.TempDir(), "calm")
	r := swarmlog(t, withModels(calm), upArgs(data, []string{c.folder}, "--exit-when-idle", "--json")...).wait(20 * time.Minute)
	if r.code != 0 {
		t.Fatalf("exit code %d: %s", r.code, tail(r.err, 4000))
	}
	want := placesOf(pagesOf(t, data))
	if calm != nil {
		checkCalls(t, calm.seen(), nil)
	}
	t.Logf("undisturbed: %d pages in %s", len(want), r.elapsed.Round(time.Millisecond))

	m := server(t)
	data = filepath.Join(t.TempDir(), "killed")
	begun := time.Now()
	kills := c.kills(t, data, m, scaled(5, 20), r.elapsed)
	last := swarmlog(t, withModels(m), upArgs(data, []string{c.folder}, "--exit-when-idle", "--json")...).wait(20 * time.Minute)
	if last.code != 0 {
		t.Fatalf("exit code %d: %s", last.code, tail(last.err, 4000))
	}
	s := last.summary(t)
	t.Logf("killed %d times: %d pages, records %v, inference %+v in %s, at most %d MiB", len(kills), s.Pages, s.Records, s.Inference,
		time.Since(begun).Round(time.Millisecond), last.peak>>20)
	pages := pagesOf(t, data)
	if got := placesOf(pages); !slices.Equal(got, want) {
		t.Errorf("pages differ: %d, want %d; missing %v, too many %v", len(got), len(want), missing(want, got), missing(got, want))
	}
	c.check(t, data, pages)
	c.checkSearch(t, data)
	if s.Records["dead"] != int64(len(badFiles)) || s.Records["waiting"]+s.Records["refused"] != 0 || len(s.Warnings) != len(badFiles) {
		t.Errorf("records %v, warnings %q", s.Records, s.Warnings)
	}
	if want := s.Documents + 5*s.Pages; s.Records["applied"] != want {
		t.Errorf("%d steps applied, want %d", s.Records["applied"], want)
	}
	if m != nil {
		checkCalls(t, m.seen(), kills)
		checkAnswers(t, data, pages)
	}
}

// kills starts a run and kills it at random moments within the time that it would take undisturbed.
func (c corpus) kills(t *testing.T, data string, m *models, n int, takes time.Duration) []kill {
	t.Helper()
	schedule, err := killkit.NewSchedule(0, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	cmd := killkit.Command{Name: "up", Path: built, Args: upArgs(data, []string{c.folder}, "--exit-when-idle", "--json"),
		Output: filepath.Join(t.TempDir(), "output")}
	if m != nil {
		cmd.Env = m.env()
	}
	born := time.Now()
	p, err := killkit.Start(t.Context(), cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			b, _ := os.ReadFile(cmd.Output)
			t.Logf("output of the killed runs:\n%s", tail(string(b), 16<<10))
		}
	})
	var kills []kill
	err = schedule.Repeat(t.Context(), n, 0, takes*16/10/time.Duration(n), func(i int) error {
		k := kill{born: born, before: time.Now()}
		if !p.Running() {
			t.Fatalf("it ended before kill %d: %s", i+1, p.Tail())
		}
		if err := p.Kill(); err != nil {
			return err
		}
		k.pending = pending(t, data)
		k.over = time.Now()
		kills, born = append(kills, k), k.over
		if i == n-1 {
			for _, p := range pagesOf(t, data) { // also what a killed process left can be read
				if p.Steps != 1 {
					t.Errorf("%s, page %d was done %d times", p.Document, p.Page, p.Steps)
				}
			}
			return nil
		}
		return p.Restart(t.Context())
	})
	if err != nil {
		t.Fatal(err)
	}
	return kills
}

// pending are the keys of calls that the ledger knows as begun, and that have no answer.
func pending(t *testing.T, data string) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	if _, err := os.Stat(filepath.Join(data, "ledger.db")); err != nil {
		return keys
	}
	query(t, data, `SELECT key FROM swarmlog_recorded WHERE inference_id IS NULL`, func(scan func(...any) error) error {
		var key string
		err := scan(&key)
		keys[key] = true
		return err
	})
	return keys
}

func withModels(m *models) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		if m != nil {
			cmd.Env = append(os.Environ(), m.env()...)
		}
	}
}

func placesOf(pages []page) []place {
	places := make([]place, len(pages))
	for i, p := range pages {
		places[i] = p.place()
	}
	return places
}

// missing are the first few of all that aren't in some.
func missing(all, some []place) []place {
	left := map[place]bool{}
	for _, p := range all {
		left[p] = true
	}
	for _, p := range some {
		delete(left, p)
	}
	few := slices.Collect(maps.Keys(left))
	return few[:min(5, len(few))]
}

// checkAnswers wants on each page the answers to its own text.
func checkAnswers(t *testing.T, data string, pages []page) {
	t.Helper()
	for _, p := range pages {
		if !strings.Contains(p.Summary, p.SHA256) {
			t.Errorf("%s, page %d: the summary is another page's: %s", p.Document, p.Page, p.Summary)
		}
	}
	query(t, data, `SELECT b.text, v.vector FROM doc_body b LEFT JOIN doc_vector v ON v.id = b.id`, func(scan func(...any) error) error {
		var text string
		var vector []byte
		if err := scan(&text, &vector); err != nil {
			return err
		}
		for i, want := range vectorAnswer(text[:embedded(text)]) {
			if len(vector) < 4*i+4 || math.Float32frombits(binary.LittleEndian.Uint32(vector[4*i:])) != want {
				t.Errorf("the vector of %q is another page's", text[:min(len(text), 60)])
				break
			}
		}
		return nil
	})
}

// embedded is how much of a text is embedded: the first 16,000 bytes.
func embedded(text string) int {
	n := min(len(text), 16000)
	for n < len(text) && text[n]&0xc0 == 0x80 {
		n--
	}
	return n
}
