package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/control"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/letters"
)

// hands note what is asked of them.
type hands struct {
	asked []string
	err   error
}

func (h *hands) note(format string, args ...any) error {
	h.asked = append(h.asked, fmt.Sprintf(format, args...))
	return h.err
}

func (h *hands) Letters(_ context.Context, f letters.Filter, o letters.Options, yield func(*letters.Letter) error) error {
	if err := yield(&letters.Letter{Agent: f.Agent, Subject: "a", State: letters.Parked}); err != nil {
		return err
	}
	return h.note("letters %s %s %v %v", f.Agent, f.Reason, f.Since, o.Content)
}

func (h *hands) Act(_ context.Context, verb letters.Verb, f letters.Filter, dry bool, o letters.Options, visit func(*letters.Letter) error) (letters.Account, error) {
	o.Progress(letters.Progress{Read: 1, Of: 2})
	if visit != nil {
		_ = visit(&letters.Letter{Agent: f.Agent})
	}
	return letters.Account{Verb: verb, DryRun: dry, Done: 1, Refusals: []letters.Refusal{}}, h.note("%s %s %v", verb, f.Agent, dry)
}

func (h *hands) Agents(context.Context) ([]control.AgentRow, error) { return nil, h.note("agents") }

func (h *hands) Pause(_ context.Context, agent, reason string) error {
	return h.note("pause %s: %s", agent, reason)
}

func (h *hands) Resume(_ context.Context, agent string) error { return h.note("resume %s", agent) }

func (h *hands) Rewind(_ context.Context, r control.Rewinding, dry bool) (control.RewindReport, error) {
	return control.RewindReport{Rewinding: r}, h.note("rewind %s %s %v %v %v", r.Agent, r.To.UTC().Format(time.RFC3339), r.Topics, r.Repeat, dry)
}

func (h *hands) Shadow(_ context.Context, agent, shadow string, n int) (control.ShadowReport, error) {
	return control.ShadowReport{Primary: agent}, h.note("shadow %s %s %d", agent, shadow, n)
}

func (h *hands) Recover(_ context.Context, agents []string, reset bool) (control.Recovery, error) {
	return control.Recovery{}, h.note("recover %v %v", agents, reset)
}

func post(h http.Handler, target, body string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:7070"+target, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func handled() (*hands, http.Handler) {
	o := options()
	h := new(hands)
	o.Hands = h
	return h, httpapi.New(o)
}

func TestHandsAreAskedAsDocumented(t *testing.T) {
	h, api := handled()
	for _, c := range []struct{ target, body, want string }{
		{"/api/v1/letters/redrive", `{"filter":{"agent":"reader"}}`, "redrive reader false"},
		{"/api/v1/letters/skip", `{"dry_run":true}`, "skip  true"},
		{"/api/v1/agents/my%20reader/pause", `{"reason":"look"}`, "pause my reader: look"},
		{"/api/v1/agents/reader/resume", `{}`, "resume reader"},
		{"/api/v1/agents/reader/rewind", `{"to":"2026-03-04T09:00:00Z","topics":["in"],"repeat_effects":true}`, "rewind reader 2026-03-04T09:00:00Z [in] true false"},
		{"/api/v1/recover", `{"agents":["a"],"reset":true}`, "recover [a] true"},
	} {
		h.asked = nil
		if w := post(api, c.target, c.body); w.Code >= 300 || len(h.asked) != 1 || h.asked[0] != c.want {
			t.Errorf("%s: %d, asked %q, want %q: %s", c.target, w.Code, h.asked, c.want, w.Body)
		}
	}
	w := ask(api, http.MethodGet, "/api/v1/letters?agent=reader&reason=bad&content=true&since=2026-03-04T09:00:00Z")
	if !strings.Contains(w.Body.String(), `"agent":"reader"`) || w.Header().Get("Content-Type") != "application/x-ndjson" {
		t.Errorf("letters: %d %s", w.Code, w.Body)
	}
	if w := ask(api, http.MethodGet, "/api/v1/agents"); strings.TrimSpace(w.Body.String()) != "[]" {
		t.Errorf("no agents: %s", w.Body)
	}
	h.asked = nil
	if w := ask(api, http.MethodGet, "/api/v1/agents/reader/shadow?shadow=new"); w.Code != 200 || len(h.asked) != 1 || h.asked[0] != "shadow reader new 5" {
		t.Errorf("shadow: %d %s, asked %q", w.Code, w.Body, h.asked)
	}
	if p := problemOf(t, ask(api, http.MethodGet, "/api/v1/letters?since=now")); p.Code != httpapi.CodeInvalid {
		t.Errorf("a wrong time: %+v", p)
	}
	lines := strings.Split(strings.TrimSpace(post(api, "/api/v1/letters/redrive", `{"dry_run":true}`).Body.String()), "\n")
	var last httpapi.ActLine
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || len(lines) != 3 || last.Account == nil || last.Account.Done != 1 {
		t.Errorf("redrive answers %q, %v", lines, err)
	}
}

// A page of another site can send forms and plain text, and nothing that asks first.
func TestWhatChangesSomethingMustBeMeant(t *testing.T) {
	h, api := handled()
	paths := []string{"/api/v1/letters/redrive", "/api/v1/letters/skip", "/api/v1/agents/reader/pause", "/api/v1/agents/reader/resume", "/api/v1/agents/reader/rewind", "/api/v1/recover"}
	for _, path := range paths {
		for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json", "application/json, text/plain"} {
			w := post(api, path, `{"to":"2026-03-04T09:00:00Z"}`, func(r *http.Request) { r.Header.Set("Content-Type", kind) })
			if p := problemOf(t, w); p.Code != httpapi.CodeMedia {
				t.Errorf("%s as %q: %+v", path, kind, p)
			}
		}
		if p := problemOf(t, post(api, path, `{}`, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })); p.Code != httpapi.CodeSite {
			t.Errorf("%s from another site: %+v", path, p)
		}
		if p := problemOf(t, post(api, path, `{}`, func(r *http.Request) { r.Host = "evil.example" })); p.Code != httpapi.CodeHost {
			t.Errorf("%s under another name: %+v", path, p)
		}
		if w := ask(api, http.MethodOptions, path, func(r *http.Request) {
			r.Header.Set("Origin", "https://evil.example")
			r.Header.Set("Access-Control-Request-Method", "POST")
		}); w.Code < 400 || w.Header().Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s allows another origin: %d %v", path, w.Code, w.Header())
		}
	}
	if len(h.asked) > 0 {
		t.Errorf("asked were %q", h.asked)
	}
}

func TestWhatAPersonAskedForTooEarlyIsSaid(t *testing.T) {
	h, api := handled()
	for _, c := range []struct {
		err  error
		code httpapi.Code
	}{
		{control.ErrAtWork, httpapi.CodeConflict}, {control.ErrRunning, httpapi.CodeNotPaused}, {control.ErrNoAgent, httpapi.CodeNoAgent},
		{control.ErrNothing, httpapi.CodeInvalid}, {errors.New("secret"), httpapi.CodeInternal},
	} {
		h.err = fmt.Errorf("rewind: %w", c.err)
		p := problemOf(t, post(api, "/api/v1/agents/reader/rewind", `{"to":"2026-03-04T09:00:00Z"}`))
		if p.Code != c.code || strings.Contains(p.Detail, "secret") {
			t.Errorf("%v: %+v", c.err, p)
		}
	}
	h.err = errors.New("disk gone")
	if w := post(api, "/api/v1/letters/redrive", `{}`); !strings.Contains(w.Body.String(), `"error":"redrive of dead letters failed"`) || !strings.Contains(w.Body.String(), `"account"`) {
		t.Errorf("what was done before an error isn't said: %s", w.Body)
	}
}

func TestWithoutHandsThereIsNothingToAct(t *testing.T) {
	api := httpapi.New(options())
	if p := problemOf(t, post(api, "/api/v1/recover", `{}`)); p.Code != httpapi.CodeNotFound {
		t.Errorf("%+v", p)
	}
}
