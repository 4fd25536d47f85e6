//go:build unix

package e2e

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestLife lives with a running swarm: asks it, feeds it, runs into it, and ends it.
func TestLife(t *testing.T) {
	beside(t)
	scratch := t.TempDir()
	input, data := filepath.Join(scratch, "input"), filepath.Join(scratch, "the data")
	write(t, filepath.Join(input, "first.txt"), []byte("The first text tells of quincunxes.\n"))
	write(t, filepath.Join(input, "second.md"), []byte("# Second\n\nIt tells of zyzzyvas.\n"))

	up := swarmlog(t, nil, upArgs(data, []string{input})...)
	address := address(t, data, up)
	t.Run("asked while it runs", func(t *testing.T) {
		eventually(t, time.Minute, "the first text is found", func() bool {
			return finds(search(t, data, "quincunxes"), "first.txt", "quincunxes")
		})
		eventually(t, time.Minute, "the summary is printed", func() bool { return strings.Contains(up.out.String(), "Done: 2 documents and 2 pages") })
		if pages := pagesOf(t, data); len(pages) != 2 || pages[0].Summary == "" || pages[1].Steps != 1 {
			t.Errorf("pages: %+v", pages)
		}
		for path, want := range map[string]string{"/": "<html", "/metrics": "swarmlog_", "/healthz": "", "/readyz": "",
			"/api/v1/search?" + url.Values{"q": {"zyzzyvas"}}.Encode(): "second.md"} {
			if body := get(t, address+path); !strings.Contains(body, want) {
				t.Errorf("%s answers %.200s; want %q in it", path, body, want)
			}
		}
	})
	t.Run("run into", func(t *testing.T) { checkRefused(t, data, input, address) })
	t.Run("fed", func(t *testing.T) {
		write(t, filepath.Join(input, "later", "third.txt"), []byte("A third one, of xylographs.\n"))
		eventually(t, time.Minute, "a new file is found", func() bool { return finds(search(t, data, "xylographs"), "later/third.txt", "xylographs") })

		write(t, filepath.Join(input, "first.txt"), []byte("The first text was changed and tells of syzygies.\n"))
		eventually(t, time.Minute, "a changed file is found by its new words", func() bool { return finds(search(t, data, "syzygies"), "first.txt", "syzygies") })
		for _, h := range search(t, data, "quincunxes") {
			if strings.Contains(h.Excerpt, "quincunxes") {
				t.Errorf("the old version is still found: %+v", h)
			}
		}
		check(t, os.Remove(filepath.Join(input, "second.md")))
		eventually(t, time.Minute, "a removed file isn't found", func() bool {
			return !slices.ContainsFunc(search(t, data, "zyzzyvas"), func(h hit) bool { return h.Document == "second.md" })
		})
		// A copy holds nothing new, and what changed back was read before.
		write(t, filepath.Join(input, "copy.txt"), []byte("A third one, of xylographs.\n"))
		write(t, filepath.Join(input, "first.txt"), []byte("The first text tells of quincunxes.\n"))
		eventually(t, time.Minute, "a file that changed back is found", func() bool { return finds(search(t, data, "quincunxes"), "first.txt", "quincunxes") })
		for _, p := range pagesOf(t, data) {
			if p.Steps != 1 {
				t.Errorf("%s was done %d times", p.Document, p.Steps)
			}
		}
	})
	check(t, up.Process.Signal(os.Interrupt))
	r := up.wait(30 * time.Second)
	if r.code != 0 || strings.Count(r.out, "\nDone: ") != 2 || !strings.Contains(r.out, "\nDone: 2 documents and 2 pages") {
		t.Errorf("interrupted, it ended with %d: %s%s", r.code, r.out, r.err)
	}
	t.Run("asked afterwards", func(t *testing.T) {
		if !finds(search(t, data, "xylographs"), "copy.txt", "xylographs") && !finds(search(t, data, "xylographs"), "later/third.txt", "xylographs") {
			t.Errorf("search: %+v", search(t, data, "xylographs"))
		}
		if pages := pagesOf(t, data); len(pages) != 2 {
			t.Errorf("pages: %+v", pages)
		}
	})
	t.Run("asked for nothing", func(t *testing.T) {
		r := swarmlog(t, nil, "search", "words", "--data", filepath.Join(scratch, "nowhere")).wait(time.Minute)
		if r.code != 2 || !strings.Contains(r.err, "swarmlog up") || r.out != "" {
			t.Errorf("a folder without data: %d, %q", r.code, r.err)
		}
	})
}

// checkRefused starts a second run on the same folder.
func checkRefused(t *testing.T, data, input, address string) {
	for _, more := range [][]string{nil, {"--exit-when-idle", "--json"}} {
		r := swarmlog(t, nil, upArgs(data, []string{input}, more...)...).wait(time.Minute)
		if r.code != 3 || r.out != "" {
			t.Errorf("a second run ended with %d and printed %q", r.code, r.out)
		}
		for _, want := range []string{data, "in use", address, "--data"} {
			if !strings.Contains(r.err, want) {
				t.Errorf("the refusal doesn't say %q: %s", want, r.err)
			}
		}
		if strings.Count(r.err, "\n") > 1 {
			t.Errorf("the refusal is long: %s", r.err)
		}
	}
	// It took nothing from the first.
	if len(pagesOf(t, data)) != 2 {
		t.Error("the first run doesn't answer any more")
	}
}

func get(t *testing.T, address string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	check(t, err)
	resp, err := http.DefaultClient.Do(req)
	check(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	check(t, err)
	if resp.StatusCode != http.StatusOK {
		t.Errorf("%s answers %s", address, resp.Status)
	}
	return string(body)
}

// TestInterrupt ends a run in the middle of its work and goes on.
func TestInterrupt(t *testing.T) {
	beside(t)
	c := newCorpus(t, scaled(60, 300), 0, 32<<10)
	for name, sig := range map[string]os.Signal{"interrupt": os.Interrupt, "terminate": syscall.SIGTERM} {
		mode := "--json"
		if sig == syscall.SIGTERM {
			mode = "--log-level=warn"
		}
		t.Run(name, func(t *testing.T) {
			m := startModels(t)
			data := filepath.Join(t.TempDir(), "data")
			up := swarmlog(t, withModels(m), upArgs(data, []string{c.folder}, mode)...)
			eventually(t, time.Minute, "it works", func() bool { return len(m.seen()) > 20 })
			check(t, up.Process.Signal(sig))
			begun := time.Now()
			r := up.wait(30 * time.Second)
			t.Logf("it ended %s after the signal", time.Since(begun).Round(time.Millisecond))
			if r.code != 0 {
				t.Errorf("it ended with %d: %s", r.code, tail(r.err, 4000))
			}
			if mode == "--json" {
				if s := r.summary(t); s.Inference.InDoubt != 0 || s.Inference.Calls != int64(len(m.seen())) {
					t.Errorf("the summary counts calls %+v, the server %d", s.Inference, len(m.seen()))
				}
			} else if !strings.Contains(r.out, "\nStopped: ") || !strings.Contains(r.out, "it goes on there") {
				t.Errorf("it doesn't say that there's more to do: %s", r.out)
			}
			if n := len(pending(t, data)); n > 0 {
				t.Errorf("%d calls were given up unrecorded", n)
			}
			r = swarmlog(t, withModels(m), upArgs(data, []string{c.folder}, "--exit-when-idle", "--json")...).wait(2 * time.Minute)
			if r.code != 0 {
				t.Fatalf("it doesn't go on: exit code %d: %s", r.code, tail(r.err, 4000))
			}
			pages := pagesOf(t, data)
			c.check(t, data, pages)
			checkAnswers(t, data, pages)
			checkCalls(t, m.seen(), nil)
		})
	}
}
