package dashboard_test

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/internal/dashboard"
)

func get(t *testing.T, path, tag string) *http.Response {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	if tag != "" {
		r.Header.Set("If-None-Match", tag)
	}
	w := httptest.NewRecorder()
	h, ok := dashboard.Routes()[path]
	if !ok {
		t.Fatalf("there is no %s", path)
	}
	h.ServeHTTP(w, r)
	return w.Result()
}

func TestAssetsAreServedWithTypePolicyAndTag(t *testing.T) {
	for path, want := range map[string]string{
		"/": "text/html; charset=utf-8", "/assets/page.css": "text/css; charset=utf-8",
		"/assets/page.js": "text/javascript; charset=utf-8", "/assets/icon.svg": "image/svg+xml",
	} {
		r := get(t, path, "")
		if got := r.Header.Get("Content-Type"); got != want || r.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d, type %q, want %q", path, r.StatusCode, got, want)
		}
		if r.Header.Get("Content-Security-Policy") != dashboard.Policy {
			t.Errorf("%s has no policy", path)
		}
		if again := get(t, path, r.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("%s asked again with its tag answers %d", path, again.StatusCode)
		}
	}
}

// The page stands alone: nothing is loaded from elsewhere, and there's nothing that the policy would refuse.
func TestAssetsNameNoOtherHostAndHoldNoInlineScript(t *testing.T) {
	bad := map[string]*regexp.Regexp{
		"a foreign address":       regexp.MustCompile(`(https?:)?//[a-z0-9.-]+\.[a-z]{2,}`),
		"an inline script":        regexp.MustCompile(`(?i)<script(?:[^>]*)>[^<]`),
		"an inline style":         regexp.MustCompile(`(?i)<style|\sstyle="`),
		"an inline handler":       regexp.MustCompile(`(?i)\son[a-z]+="`),
		"something that's parsed": regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function`),
	}
	err := fs.WalkDir(os.DirFS("assets"), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile("assets/" + name)
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(string(b), "http://www.w3.org/2000/svg", "")
		for what, re := range bad {
			if found := re.FindString(text); found != "" {
				t.Errorf("%s holds %s: %s", name, what, found)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
