package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/swarmlog/swarmlog/internal/fault"
)

// Code names a kind of error for programs. Codes are stable.
type Code string

const (
	CodeInvalid     Code = "invalid_request"
	CodeNotFound    Code = "not_found"
	CodeMethod      Code = "method_not_allowed"
	CodeHost        Code = "host_refused"
	CodeSite        Code = "site_refused"
	CodeMedia       Code = "unsupported_media_type"
	CodeNoAgent     Code = "no_agent"
	CodeConflict    Code = "conflict"
	CodeNotPaused   Code = "not_paused"
	CodeNoIndex     Code = "no_index"
	CodeNotReady    Code = "not_ready"
	CodeUnavailable Code = "unavailable"
	CodeTooMany     Code = "too_many_streams"
	CodeInternal    Code = "internal"
)

// codes is the one table from code to HTTP status and to what a person does next.
var codes = map[Code]struct {
	status int
	next   string
}{
	CodeInvalid:     {http.StatusUnprocessableEntity, "Correct what errors names; /openapi.json describes every parameter."},
	CodeNotFound:    {http.StatusNotFound, "Open / for the live page, or /openapi.json for a list of what there is."},
	CodeMethod:      {http.StatusMethodNotAllowed, "/openapi.json lists what there is, and how it is asked for."},
	CodeHost:        {http.StatusMisdirectedRequest, "Open it under a loopback name, such as http://127.0.0.1 with the port that swarmlog printed."},
	CodeSite:        {http.StatusForbidden, "Open the address itself in the browser; other sites can't read it."},
	CodeMedia:       {http.StatusUnsupportedMediaType, "Send a JSON object with that header."},
	CodeNoAgent:     {http.StatusNotFound, "Ask /api/v1/agents for those that there are."},
	CodeConflict:    {http.StatusConflict, "Wait until its workers have given its partitions back, and ask again."},
	CodeNotPaused:   {http.StatusConflict, "Pause it first: swarmlog agent pause NAME."},
	CodeNoIndex:     {http.StatusNotFound, "Run a swarm with an agent that keeps pages, such as examples/papers."},
	CodeNotReady:    {http.StatusServiceUnavailable, "Wait and ask again; if it stays, read the reasons here and the warnings on the live page."},
	CodeUnavailable: {http.StatusServiceUnavailable, "Try again in a few seconds; if it stays, look at /readyz and the log."},
	CodeTooMany:     {http.StatusServiceUnavailable, "Close other pages that follow the events, or poll /api/v1/status instead."},
	CodeInternal:    {http.StatusInternalServerError, "Look at the log of swarmlog for the cause; if it makes no sense there, report it."},
}

// Problem is how every error is answered (RFC 9457), with a code for programs
// and what to do next for people.
type Problem struct {
	Title  string              `json:"title" doc:"The HTTP status in words"`
	Status int                 `json:"status" doc:"The HTTP status"`
	Detail string              `json:"detail" doc:"What went wrong this time"`
	Code   Code                `json:"code" doc:"What kind of error it is; stable"`
	Next   string              `json:"next" doc:"What to do next"`
	Errors []*huma.ErrorDetail `json:"errors,omitempty" doc:"The single errors, where there are several or where they have a place"`
}

// Error is the problem in one line.
func (p *Problem) Error() string { return p.Detail }

// GetStatus is the HTTP status, for huma.
func (p *Problem) GetStatus() int { return p.Status }

// ContentType is the media type of problem documents.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

func newProblem(code Code, detail string) *Problem {
	c := codes[code]
	return &Problem{Title: http.StatusText(c.status), Status: c.status, Detail: detail, Code: code, Next: c.next}
}

// huma has one hook for the whole process: how it words the errors that it finds itself, those of parameters above all.
// It's set here once, before anything is served.
func init() {
	huma.NewError = func(httpStatus int, message string, errs ...error) huma.StatusError {
		p := newProblem(codeOf(httpStatus), message)
		p.Title, p.Status = http.StatusText(httpStatus), httpStatus
		for _, err := range errs {
			var detailer huma.ErrorDetailer
			switch {
			case err == nil:
			case errors.As(err, &detailer):
				p.Errors = append(p.Errors, detailer.ErrorDetail())
			default:
				p.Errors = append(p.Errors, &huma.ErrorDetail{Message: err.Error()})
			}
		}
		return p
	}
}

func codeOf(httpStatus int) Code {
	switch {
	case httpStatus == http.StatusNotFound:
		return CodeNotFound
	case httpStatus == http.StatusMethodNotAllowed:
		return CodeMethod
	case httpStatus == http.StatusServiceUnavailable:
		return CodeUnavailable
	case httpStatus >= 500:
		return CodeInternal
	}
	return CodeInvalid
}

func writeProblem(w http.ResponseWriter, p *Problem) {
	w.Header().Set("Content-Type", p.ContentType(""))
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client may be gone: nobody is left to tell
}

// failure answers an error of what Options gave: the asker's mistake in its own words, anything else without
// internals, which go to the log.
func (a *api) failure(ctx context.Context, doing string, err error) *Problem {
	switch {
	case ctx.Err() != nil:
		return newProblem(CodeUnavailable, doing+" took too long or was given up")
	case fault.ClassOf(err) == fault.Permanent:
		return newProblem(CodeInvalid, err.Error())
	case fault.ClassOf(err) == fault.Unavailable:
		a.Logger.Warn("request failed: "+doing, "error", err)
		return newProblem(CodeUnavailable, doing+" isn't possible for now")
	}
	a.Logger.Error("request failed: "+doing, "error", err)
	return newProblem(CodeInternal, doing+" failed")
}
