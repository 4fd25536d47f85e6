package httpapi

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// recoverer answers a panic of a handler with a problem instead of a cut connection.
func (a *api) recoverer(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // the value itself is the signal
				panic(p)
			}
			a.Logger.Error("request panicked", "path", r.URL.Path, "error", fmt.Sprint(p))
			writeProblem(w, newProblem(CodeInternal, "the request failed"))
		}()
		next.ServeHTTP(w, r)
	})
}

// securityHeaders are for every answer. The page replaces the policy by its own, wider one.
func securityHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// loopbackHost refuses names that aren't loopback ones: a foreign page whose name resolves to 127.0.0.1 asks
// under that name.
func loopbackHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isLoopback(hostname(r.Host)) {
			writeProblem(w, newProblem(CodeHost, fmt.Sprintf("the address was asked for under the name %.100q, which isn't a loopback name", r.Host)))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// sameSite refuses what a browser marks as asked by another site (Fetch Metadata), except a visit: a link to the page.
func sameSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Sec-Fetch-Site") {
		case "", "none", "same-origin":
		default:
			if r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document" {
				writeProblem(w, newProblem(CodeSite, "another site asked for this through the browser"))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// hostname is the host of a host[:port], without the brackets of IPv6.
func hostname(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
