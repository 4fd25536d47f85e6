package httpapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/swarmlog/swarmlog/internal/telemetry/status"
)

func operation(id, path, summary, description string) huma.Operation {
	return huma.Operation{
		OperationID: id, Method: http.MethodGet, Path: path, Summary: summary, Description: description,
		Errors: []int{http.StatusUnprocessableEntity, http.StatusInternalServerError, http.StatusServiceUnavailable},
	}
}

type health struct {
	Body struct {
		Status string `json:"status" enum:"alive,ready"`
	}
}

func (a *api) registerHealth(api huma.API) {
	huma.Register(api, operation("alive", "/healthz", "Whether the process answers", "200 as long as it does."),
		func(context.Context, *struct{}) (*health, error) {
			h := new(health)
			h.Body.Status = "alive"
			return h, nil
		})
	huma.Register(api, operation("ready", "/readyz", "Whether the run can do its work", "503 with the reasons while it can't."),
		func(ctx context.Context, _ *struct{}) (*health, error) {
			if a.Ready != nil {
				if reasons := a.Ready(ctx); len(reasons) > 0 {
					p := newProblem(CodeNotReady, strings.Join(reasons, "; "))
					for _, r := range reasons {
						p.Errors = append(p.Errors, &huma.ErrorDetail{Message: r})
					}
					return nil, p
				}
			}
			h := new(health)
			h.Body.Status = "ready"
			return h, nil
		})
}

type statusAnswer struct{ Body status.Status }

func (a *api) registerStatus(api huma.API) {
	huma.Register(api, operation("status", "/api/v1/status", "What the run is doing now", "Everything that the live page shows, but events and search."),
		func(ctx context.Context, _ *struct{}) (*statusAnswer, error) {
			s, err := a.Status.Status(ctx)
			if err != nil {
				return nil, a.failure(ctx, "reading the status", err)
			}
			s.Complete()
			return &statusAnswer{s}, nil
		})
}

type searchRequest struct {
	Query string `query:"q" required:"true" minLength:"1" maxLength:"1000" doc:"Words to look for" example:"exactly once"`
	Limit int    `query:"limit" minimum:"1" maximum:"100" default:"20" doc:"How many pages to answer at most"`
}

type searchAnswer struct {
	Body struct {
		Query       string  `json:"query"`
		Hits        []Hit   `json:"hits" doc:"Pages, best first"`
		TookSeconds float64 `json:"took_seconds"`
	}
}

func (a *api) registerSearch(api huma.API) {
	huma.Register(api, operation("search", "/api/v1/search", "Find pages by words", "Ranked by text and by meaning."),
		func(ctx context.Context, in *searchRequest) (*searchAnswer, error) {
			if a.Search == nil {
				return nil, newProblem(CodeNoIndex, "this swarm keeps no index")
			}
			if strings.TrimSpace(in.Query) == "" {
				p := newProblem(CodeInvalid, "the search has no words")
				p.Errors = []*huma.ErrorDetail{{Message: "expected at least one word", Location: "query.q", Value: in.Query}}
				return nil, p
			}
			start := time.Now()
			hits, err := a.Search(ctx, in.Query, in.Limit)
			if err != nil {
				return nil, a.failure(ctx, "searching", err)
			}
			out := new(searchAnswer)
			out.Body.Query, out.Body.Hits, out.Body.TookSeconds = in.Query, hits, time.Since(start).Seconds()
			if hits == nil {
				out.Body.Hits = []Hit{}
			}
			return out, nil
		})
}
