// Package dashboard owns the live page of a run: one HTML page with its style,
// script and icon, all embedded and all ours. The page asks nothing of any
// other machine; it polls /api/v1/status while it is visible and follows
// /api/v1/events, so a page that nobody looks at costs nothing. It imports
// nothing of ours and keeps nothing.
//
// Names and reasons come from outside. The script puts them into the page as
// text only, and the policy that the page is served with (no inline script,
// Trusted Types) makes the browser refuse anything else.
package dashboard

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
)

//go:embed assets
var embedded embed.FS

// Policy is the Content-Security-Policy of the page.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

type asset struct {
	body        []byte
	contentType string
	tag         string
}

// Routes are the page at / and what it needs under /assets/, by path, for GET
// and HEAD.
func Routes() map[string]http.Handler {
	routes := make(map[string]http.Handler)
	for name, a := range load() {
		if name == "index.html" {
			routes["/"] = a
			continue
		}
		routes["/assets/"+name] = a
	}
	return routes
}

func (a asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.contentType)
	h.Set("Content-Security-Policy", Policy)
	h.Set("Cache-Control", "no-cache") // kept, but asked about each time: a new version shows at once
	h.Set("ETag", a.tag)
	if r.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if r.Method != http.MethodHead {
		_, _ = w.Write(a.body) // the client may be gone
	}
}

// load reads the embedded files once. They are part of the program: one that can't be read is a broken build.
func load() map[string]asset {
	assets := make(map[string]asset)
	err := fs.WalkDir(embedded, "assets", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		assets[strings.TrimPrefix(name, "assets/")] = asset{body, contentType(name), `"` + hex.EncodeToString(sum[:12]) + `"`}
		return nil
	})
	if err != nil {
		panic("dashboard: embedded assets: " + err.Error())
	}
	return assets
}

// contentType goes by our own table first, since mime asks the machine's files.
func contentType(name string) string {
	switch ext := path.Ext(name); ext {
	case ".html":
		return "text/html; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	default:
		return mime.TypeByExtension(ext)
	}
}
