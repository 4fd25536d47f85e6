// Package httpapi owns the HTTP face of a run: the live page, the status,
// events, search and pages as JSON, metrics, health and their OpenAPI
// description. It asks for what it shows through the narrow functions of
// Options and must not import an implementation of broker, ledger or engine.
// It keeps nothing across a crash.
//
// # Who may ask
//
// There are no identities yet, so there is one rule: this machine only. It
// stands on five legs, all here: CheckListen and Listen take loopback addresses
// alone; the Host header must name a loopback address, so that a foreign web
// page can't reach us under its own name (DNS rebinding); what a browser says
// was asked by another site is refused unless it's a plain visit; what changes
// something must come as JSON, which another site's page can't send; and no CORS
// header is ever sent. Authentication has its place in Options.Authenticate.
//
// The exception is Options.Public, with ListenPublic: health and metrics, which
// show figures and names of agents and topics but no content, on an address that
// the machines of an orchestrator reach.
//
// # Errors
//
// Every error is a problem document (RFC 9457, application/problem+json) with
// two more members: code, from the table in problem.go, and next, which says
// what to do.
package httpapi

import (
	"context"
	"iter"
	"log/slog"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/swarmlog/swarmlog/internal/dashboard"
	"github.com/swarmlog/swarmlog/internal/telemetry/recent"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
)

// Hit is one page that a search found.
type Hit struct {
	Document string  `json:"document" doc:"The document's name, within its input folder"`
	Path     string  `json:"path" doc:"Where the file is"`
	Page     int     `json:"page" doc:"Page number, from 1"`
	Part     int     `json:"part" doc:"Where a long page was cut: which part, from 1; else 0"`
	Excerpt  string  `json:"excerpt" doc:"The part of the page that matches best, as plain text"`
	Score    float64 `json:"score" doc:"How well it matches: higher is better; comparable within one answer only"`
}

// Page is one page of a document and what became of it.
type Page struct {
	Document string `json:"document" doc:"The document's name, within its input folder"`
	Path     string `json:"path" doc:"Where the file is"`
	Page     int    `json:"page" doc:"Page number, from 1"`
	Part     int    `json:"part" doc:"Where a long page was cut: which part, from 1; else 0"`
	SHA256   string `json:"sha256" doc:"Digest of the page's text, in hex"`
	Summary  string `json:"summary" doc:"Empty while it isn't made yet"`
	Steps    int64  `json:"steps" doc:"How often the page's effect was applied: 1"`
}

// Options say what the API shows. Status, Events, Registry and Logger are
// required.
type Options struct {
	Version string // of the program; "" shows as "dev"

	Status status.Source
	Events *recent.Ring

	// Search finds pages, best first, at most limit. An error of class Permanent is the asker's mistake and its text
	// is shown. Nil: this swarm keeps no index.
	Search func(ctx context.Context, query string, limit int) ([]Hit, error)
	// Pages lists every page, by document and page number. Ranging over it ends when the client leaves. Nil: this
	// swarm keeps no pages.
	Pages func(ctx context.Context) iter.Seq2[Page, error]
	// Ready returns why the run can't do its work now; none: it's ready. Nil: always ready.
	Ready func(ctx context.Context) []string

	// Hands are what people may do. Nil: nothing but looking.
	Hands Hands

	// Public serves health and metrics alone, under any name: for addresses that others reach.
	Public bool

	Registry prometheus.Gatherer
	Logger   *slog.Logger

	// Authenticate wraps everything but /healthz and /readyz. Nil: nobody is asked, which is right for loopback
	// addresses only.
	Authenticate func(http.Handler) http.Handler
}

// api holds what handlers need.
type api struct {
	Options
	streams chan struct{} // one token an open stream of events
}

// New makes the handler. Serve it with Serve, whose time-outs it relies on.
func New(o Options) http.Handler {
	a := &api{Options: o, streams: make(chan struct{}, maxStreams)}
	if a.Authenticate == nil {
		a.Authenticate = func(next http.Handler) http.Handler { return next }
	}

	root := chi.NewRouter()
	root.Use(a.recoverer, securityHeaders)
	if !o.Public {
		root.Use(loopbackHost)
	}
	root.Use(sameSite)
	root.NotFound(func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, newProblem(CodeNotFound, "there is nothing at "+r.URL.Path))
	})
	root.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		writeProblem(w, newProblem(CodeMethod, r.URL.Path+" doesn't take "+r.Method))
	})

	open := humachi.New(root, describe(o.Version))
	a.registerHealth(open)

	root.Group(func(r chi.Router) {
		r.Use(a.Authenticate, intended)
		r.Method(http.MethodGet, "/metrics", promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{
			ErrorLog:      slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
			ErrorHandling: promhttp.ContinueOnError,
			Timeout:       requestLimit,
		}))
		if o.Public {
			return
		}
		for path, asset := range dashboard.Routes() {
			r.Method(http.MethodGet, path, asset)
			r.Method(http.MethodHead, path, asset)
		}
		guarded := humachi.New(r, shared(open))
		a.registerStatus(guarded)
		a.registerSearch(guarded)
		a.registerPages(guarded)
		a.registerEvents(guarded)
		if a.Hands != nil {
			a.registerLetters(guarded)
			a.registerAgents(guarded)
		}
	})
	return root
}

// describe is the OpenAPI description that all operations join.
func describe(version string) huma.Config {
	if version == "" {
		version = "dev"
	}
	c := huma.DefaultConfig("Swarmlog", version)
	c.Info.Description = "What a run of a swarm is doing, what it found, and what it could not do. Reached from this machine only."
	c.Info.License = &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"}
	c.DocsPath, c.SchemasPath = "", "" // the documentation page would load scripts from elsewhere
	c.CreateHooks = nil                // no $schema member in answers: their shape is the documented one
	c.RejectUnknownQueryParameters = true
	return c
}

// shared is a configuration whose operations join another API's description, and that serves none of its own.
func shared(with huma.API) huma.Config {
	c := describe(with.OpenAPI().Info.Version)
	c.OpenAPI = with.OpenAPI()
	c.OpenAPIPath = ""
	return c
}
