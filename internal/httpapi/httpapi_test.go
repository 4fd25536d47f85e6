package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/telemetry"
	"github.com/swarmlog/swarmlog/internal/telemetry/recent"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func options() httpapi.Options {
	r := prometheus.NewRegistry()
	telemetry.NewMetrics(r).Settled("reader", ledger.Applied)
	return httpapi.Options{
		Status: status.SourceFunc(func(context.Context) (status.Status, error) {
			return status.Status{Swarm: "papers", State: status.Running, Records: ledger.Counters{Applied: 3}, Agents: []status.Agent{{Name: "reader"}}}, nil
		}),
		Events: recent.New(8, time.Now),
		Search: func(_ context.Context, q string, limit int) ([]httpapi.Hit, error) {
			return []httpapi.Hit{{Document: "a.pdf", Page: 2, Excerpt: q, Score: float64(limit)}}, nil
		},
		Pages: func(context.Context) iter.Seq2[httpapi.Page, error] {
			return func(yield func(httpapi.Page, error) bool) {
				for i := 1; i <= 3 && yield(httpapi.Page{Document: "a.pdf", Page: i, Steps: 1}, nil); i++ {
				}
			}
		},
		Registry: r, Logger: quiet(),
	}
}

// ask answers one request to the handler, from this machine unless the request says otherwise.
func ask(h http.Handler, method, target string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://127.0.0.1:7070"+target, nil)
	for _, c := range change {
		c(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func problemOf(t *testing.T, w *httptest.ResponseRecorder) httpapi.Problem {
	t.Helper()
	if ct := w.Header().Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("type of the error is %q: %s", ct, w.Body)
	}
	var p httpapi.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatalf("the error isn't JSON: %v: %s", err, w.Body)
	}
	if p.Status != w.Code || p.Title == "" || p.Detail == "" || p.Code == "" || p.Next == "" {
		t.Errorf("the problem of status %d lacks something: %+v", w.Code, p)
	}
	return p
}

func TestStatusAnswersTheDocumentedShape(t *testing.T) {
	w := ask(httpapi.New(options()), http.MethodGet, "/api/v1/status")
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("status %d, type %s", w.Code, w.Header().Get("Content-Type"))
	}
	var got map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"swarm", "state", "started", "time", "documents", "pages", "steps_per_second", "time_left_seconds", "remaining",
		"records", "inference", "model", "warnings", "agents", "dead_letters", "broker", "ledger"} {
		if _, ok := got[field]; !ok {
			t.Errorf("%s is missing", field)
		}
	}
	records := got["records"].(map[string]any)
	for _, outcome := range []string{"applied", "duplicate", "refused", "skipped", "ignored", "dead", "waiting"} {
		if _, ok := records[outcome]; !ok {
			t.Errorf("outcome %s is missing", outcome)
		}
	}
	if _, ok := got["$schema"]; ok {
		t.Error("the answer holds a $schema member")
	}
}

func TestSearch(t *testing.T) {
	h := httpapi.New(options())
	w := ask(h, http.MethodGet, "/api/v1/search?q=exactly+once")
	var got struct {
		Query string
		Hits  []httpapi.Hit
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
		t.Fatalf("status %d, %v: %s", w.Code, err, w.Body)
	}
	if len(got.Hits) != 1 || got.Hits[0].Excerpt != "exactly once" || got.Hits[0].Score != 20 {
		t.Errorf("hits are %+v, want the query as it was given and the default limit of 20", got.Hits)
	}
	for _, bad := range []string{"", "?q=", "?q=%20%20", "?q=a&limit=0", "?q=a&limit=101", "?q=a&limit=x", "?q=" + strings.Repeat("a", 1001), "?q=a&lmit=3"} {
		if p := problemOf(t, ask(h, http.MethodGet, "/api/v1/search"+bad)); p.Code != httpapi.CodeInvalid || len(p.Errors) == 0 || p.Errors[0].Location == "" {
			t.Errorf("%.40q: %+v, want invalid_request with the place of the mistake", bad, p)
		}
	}
}

func TestErrorsOfSourcesKeepTheirSecretsAndTellTheLog(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   httpapi.Code
		status int
		told   bool
	}{
		{errors.New("open /home/ann/secret.db: locked"), httpapi.CodeInternal, 500, false},
		{fault.As(fault.Unavailable, errors.New("secret host is down")), httpapi.CodeUnavailable, 503, false},
		{fault.Permanentf("the quote isn't closed: write one at the end"), httpapi.CodeInvalid, 422, true},
	} {
		var log bytes.Buffer
		o := options()
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.Search = func(context.Context, string, int) ([]httpapi.Hit, error) { return nil, c.err }
		w := ask(httpapi.New(o), http.MethodGet, "/api/v1/search?q=a")
		p := problemOf(t, w)
		if p.Code != c.code || w.Code != c.status {
			t.Errorf("%v answers %d %s, want %d %s", c.err, w.Code, p.Code, c.status, c.code)
		}
		if told := strings.Contains(w.Body.String(), c.err.Error()); told != c.told {
			t.Errorf("%v: its text is in the answer: %v, want %v", c.err, told, c.told)
		}
		if logged := strings.Contains(log.String(), c.err.Error()); logged == c.told {
			t.Errorf("%v: it is in the log: %v", c.err, logged)
		}
	}
}

func TestWhatIsNotThereIsAProblemToo(t *testing.T) {
	o := options()
	o.Search, o.Pages = nil, nil
	o.Status = status.SourceFunc(func(context.Context) (status.Status, error) { panic("a bug") })
	h := httpapi.New(o)
	for _, c := range []struct {
		method, target string
		code           httpapi.Code
	}{
		{http.MethodGet, "/nothing", httpapi.CodeNotFound},
		{http.MethodGet, "/assets/none.js", httpapi.CodeNotFound},
		{http.MethodPost, "/api/v1/status", httpapi.CodeMethod},
		{http.MethodDelete, "/", httpapi.CodeMethod},
		{http.MethodGet, "/api/v1/search?q=a", httpapi.CodeNoIndex},
		{http.MethodGet, "/api/v1/pages", httpapi.CodeNoIndex},
		{http.MethodGet, "/api/v1/status", httpapi.CodeInternal},
	} {
		if p := problemOf(t, ask(h, c.method, c.target)); p.Code != c.code {
			t.Errorf("%s %s: %s, want %s", c.method, c.target, p.Code, c.code)
		}
	}
}

func TestHealth(t *testing.T) {
	o := options()
	var reasons []string
	o.Ready = func(context.Context) []string { return reasons }
	h := httpapi.New(o)
	if w := ask(h, http.MethodGet, "/readyz"); w.Code != http.StatusOK || w.Body.String() != `{"status":"ready"}`+"\n" {
		t.Errorf("ready: %d %s", w.Code, w.Body)
	}
	reasons = []string{"the broker doesn't answer", "agent indexer stopped"}
	w := ask(h, http.MethodGet, "/readyz")
	p := problemOf(t, w)
	if w.Code != http.StatusServiceUnavailable || p.Code != httpapi.CodeNotReady || len(p.Errors) != 2 || p.Errors[1].Message != reasons[1] {
		t.Errorf("not ready: %d %+v", w.Code, p)
	}
	if w := ask(h, http.MethodGet, "/healthz"); w.Code != http.StatusOK || w.Body.String() != `{"status":"alive"}`+"\n" {
		t.Errorf("alive: %d %s", w.Code, w.Body)
	}
}

func TestMetricsAndDescription(t *testing.T) {
	h := httpapi.New(options())
	if w := ask(h, http.MethodGet, "/metrics"); !strings.Contains(w.Body.String(), `swarmlog_records_total{agent="reader",outcome="applied"} 1`) {
		t.Errorf("metrics: %d %s", w.Code, w.Body)
	}
	var d struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			Responses map[string]struct{ Content map[string]any }
		}
	}
	w := ask(h, http.MethodGet, "/openapi.json")
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil || !strings.HasPrefix(d.OpenAPI, "3.1") {
		t.Fatalf("description: %v, version %q", err, d.OpenAPI)
	}
	for path, content := range map[string]string{
		"/api/v1/status": "application/json", "/api/v1/search": "application/json", "/api/v1/events": "text/event-stream",
		"/api/v1/pages": "application/x-ndjson", "/healthz": "application/json", "/readyz": "application/json",
	} {
		op, ok := d.Paths[path]["get"]
		if !ok {
			t.Errorf("%s isn't described", path)
			continue
		}
		if _, ok := op.Responses["200"].Content[content]; !ok {
			t.Errorf("%s isn't described as %s: %v", path, content, op.Responses["200"])
		}
		if path != "/healthz" && len(op.Responses) < 2 {
			t.Errorf("%s describes no error", path)
		}
	}
}

func TestForeignNamesAndSitesAreRefused(t *testing.T) {
	h := httpapi.New(options())
	for _, c := range []struct {
		name    string
		host    string
		headers [3]string // Sec-Fetch-Site, -Mode, -Dest
		want    int
	}{
		{"an address", "127.0.0.1:7070", [3]string{}, 200},
		{"another loopback address", "127.8.0.1", [3]string{}, 200},
		{"IPv6", "[::1]:7070", [3]string{}, 200},
		{"IPv6 without port", "[::1]", [3]string{}, 200},
		{"mapped", "[::ffff:127.0.0.1]:7070", [3]string{}, 200},
		{"the name", "LocalHost:7070", [3]string{}, 200},
		{"a rebound name", "evil.example:7070", [3]string{}, 421},
		{"a name that only begins so", "localhost.evil.example", [3]string{}, 421},
		{"an address as part of a name", "127.0.0.1.evil.example", [3]string{}, 421},
		{"a network address", "192.168.1.4:7070", [3]string{}, 421},
		{"no name", "", [3]string{}, 421},
		{"our page", "127.0.0.1:7070", [3]string{"same-origin", "cors", "empty"}, 200},
		{"typed in", "127.0.0.1:7070", [3]string{"none", "navigate", "document"}, 200},
		{"a link on another page", "127.0.0.1:7070", [3]string{"cross-site", "navigate", "document"}, 200},
		{"a frame in another page", "127.0.0.1:7070", [3]string{"cross-site", "navigate", "iframe"}, 403},
		{"a script of another page", "127.0.0.1:7070", [3]string{"cross-site", "no-cors", "empty"}, 403},
		{"another port of this machine", "127.0.0.1:7070", [3]string{"same-site", "cors", "empty"}, 403},
	} {
		w := ask(h, http.MethodGet, "/api/v1/status", func(r *http.Request) {
			r.Host = c.host
			for i, name := range []string{"Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest"} {
				if c.headers[i] != "" {
					r.Header.Set(name, c.headers[i])
				}
			}
		})
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d", c.name, w.Code, c.want)
		}
		if c.want != 200 {
			problemOf(t, w)
		}
	}
}

func TestEveryAnswerCarriesTheSecurityHeadersAndNoneAllowsOtherOrigins(t *testing.T) {
	h := httpapi.New(options())
	for _, target := range []string{"/", "/assets/page.js", "/api/v1/status", "/metrics", "/healthz", "/openapi.json", "/nothing"} {
		w := ask(h, http.MethodGet, target, func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") })
		head := w.Header()
		for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin"} {
			if head.Get(name) != want {
				t.Errorf("%s: %s is %q", target, name, head.Get(name))
			}
		}
		policy := head.Get("Content-Security-Policy")
		if !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "frame-ancestors 'none'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: policy is %q", target, policy)
		}
		for name := range head {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s: %s is sent", target, name)
			}
		}
	}
}

func TestAuthenticationGuardsAllButHealth(t *testing.T) {
	o := options()
	o.Authenticate = func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	}
	h := httpapi.New(o)
	for target, want := range map[string]int{
		"/": 401, "/assets/page.js": 401, "/api/v1/status": 401, "/api/v1/search?q=a": 401, "/api/v1/pages": 401,
		"/api/v1/events": 401, "/metrics": 401, "/healthz": 200, "/readyz": 200,
	} {
		if w := ask(h, http.MethodGet, target); w.Code != want {
			t.Errorf("%s answers %d, want %d", target, w.Code, want)
		}
	}
}

// serve starts a real server and returns its address; stop ends it and returns Serve's error.
func serve(t *testing.T, o httpapi.Options) (url string, stop func() error) {
	t.Helper()
	l, err := httpapi.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- httpapi.Serve(ctx, l, httpapi.New(o), quiet()) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(patience):
			return errors.New("the server doesn't end")
		}
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String(), stop
}

func open(t *testing.T, url string, header http.Header) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		r.Header[k] = v
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// nextEvent reads one event of a stream: its id, name and data.
func nextEvent(t *testing.T, r *bufio.Reader) (id, name, data string) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
		line = strings.TrimSuffix(line, "\n")
		key, value, _ := strings.Cut(line, ": ")
		switch key {
		case "id":
			id = value
		case "event":
			name = value
		case "data":
			data = value
		case "":
			if name != "" {
				return id, name, data
			}
		}
	}
}

func TestEventsFollowAndGoOnWhereTheyStopped(t *testing.T) {
	o := options()
	url, _ := serve(t, o)
	for i := range 3 {
		o.Events.Add(recent.Happening{Kind: "document", Text: fmt.Sprintf("line\nbreak %d", i)})
	}
	resp := open(t, url+"/api/v1/events", nil)
	if ct := resp.Header.Get("Content-Type"); ct != "text/event-stream" {
		t.Fatalf("type is %q", ct)
	}
	r := bufio.NewReader(resp.Body)
	for want := 1; want <= 3; want++ {
		if id, name, data := nextEvent(t, r); id != fmt.Sprint(want) || name != "happening" || !strings.Contains(data, fmt.Sprintf(`line\nbreak %d`, want-1)) {
			t.Fatalf("event %d is %q %q %q", want, id, name, data)
		}
	}
	o.Events.Add(recent.Happening{Text: "later"})
	if id, _, data := nextEvent(t, r); id != "4" || !strings.Contains(data, "later") {
		t.Fatalf("the event that came while following is %q %q", id, data)
	}

	again := bufio.NewReader(open(t, url+"/api/v1/events", http.Header{"Last-Event-Id": {"3"}}).Body)
	if id, _, _ := nextEvent(t, again); id != "4" {
		t.Fatalf("after 3 comes %q", id)
	}
}

func TestAReaderThatComesLateIsToldWhatItMissed(t *testing.T) {
	o := options()
	url, _ := serve(t, o)
	for range 20 { // the ring holds 8
		o.Events.Add(recent.Happening{})
	}
	r := bufio.NewReader(open(t, url+"/api/v1/events", http.Header{"Last-Event-Id": {"5"}}).Body)
	if _, name, data := nextEvent(t, r); name != "missed" || data != `{"missed":7}` {
		t.Fatalf("first comes %q %q, want that 6 to 12 are gone", name, data)
	}
	if id, _, _ := nextEvent(t, r); id != "13" {
		t.Fatalf("then comes %q, want 13", id)
	}
}

func TestStreamsOutliveTheTimeForARequest(t *testing.T) {
	o := options()
	s := httptest.NewUnstartedServer(httpapi.New(o))
	s.Config.ReadTimeout, s.Config.WriteTimeout = 300*time.Millisecond, 300*time.Millisecond
	s.Start()
	defer s.Close()
	defer s.CloseClientConnections()
	r := bufio.NewReader(open(t, s.URL+"/api/v1/events", nil).Body)
	for i := 1; i <= 5; i++ { // the stream's own pace makes this last longer than a second
		o.Events.Add(recent.Happening{})
		if id, _, _ := nextEvent(t, r); id != fmt.Sprint(i) {
			t.Fatalf("event %d is %q", i, id)
		}
	}
}

// A client that takes no data is dropped, and its stream is free for another.
func TestASlowReaderOfPagesIsDropped(t *testing.T) {
	o := options()
	ended := make(chan struct{})
	o.Pages = func(context.Context) iter.Seq2[httpapi.Page, error] {
		return func(yield func(httpapi.Page, error) bool) {
			defer close(ended)
			p := httpapi.Page{Summary: strings.Repeat("x", 1<<16)}
			for yield(p, nil) {
			}
		}
	}
	url, _ := serve(t, o)
	resp := open(t, url+"/api/v1/pages", nil) // and its body is never read
	select {
	case <-ended:
	case <-time.After(3 * patience):
		t.Fatal("the list goes on for a client that takes nothing")
	}
	_ = resp.Body.Close()
}

func TestStreamsAreBounded(t *testing.T) {
	url, _ := serve(t, options())
	var refused *http.Response
	for range 33 {
		resp := open(t, url+"/api/v1/events", nil)
		if resp.StatusCode != http.StatusOK {
			refused = resp
			break
		}
	}
	if refused == nil {
		t.Fatal("33 streams are open at once")
	}
	var p httpapi.Problem
	if err := json.NewDecoder(refused.Body).Decode(&p); err != nil || p.Code != httpapi.CodeTooMany || p.Next == "" {
		t.Fatalf("refused with %+v, %v", p, err)
	}
}

func TestShutdownEndsStreamsAndIsBounded(t *testing.T) {
	o := options()
	entered := make(chan struct{})
	o.Search = func(ctx context.Context, _ string, _ int) ([]httpapi.Hit, error) {
		close(entered)
		<-ctx.Done() // never answers by itself
		return nil, ctx.Err()
	}
	url, stop := serve(t, o)
	stream := open(t, url+"/api/v1/events", nil)
	cut := make(chan error, 1)
	go func() {
		resp, err := http.Get(url + "/api/v1/search?q=a")
		if err == nil {
			_ = resp.Body.Close()
		}
		cut <- err
	}()
	<-entered
	start := time.Now()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("the server took %s to end", took)
	}
	if _, err := io.ReadAll(stream.Body); err != nil {
		t.Errorf("the stream was cut instead of ended: %v", err)
	}
	if err := <-cut; err == nil {
		t.Error("the request that never answers wasn't cut")
	}
}

func TestPagesAreJSONLines(t *testing.T) {
	w := ask(httpapi.New(options()), http.MethodGet, "/api/v1/pages")
	if ct := w.Header().Get("Content-Type"); ct != "application/x-ndjson" {
		t.Fatalf("type is %q", ct)
	}
	want := `{"document":"a.pdf","path":"","page":1,"part":0,"sha256":"","summary":"","steps":1}`
	lines := strings.Split(strings.TrimSuffix(w.Body.String(), "\n"), "\n")
	if len(lines) != 3 || lines[0] != want {
		t.Fatalf("lines are %q", lines)
	}
	o := options()
	o.Pages = func(context.Context) iter.Seq2[httpapi.Page, error] { return func(func(httpapi.Page, error) bool) {} }
	if w := ask(httpapi.New(o), http.MethodGet, "/api/v1/pages"); w.Code != http.StatusOK || w.Body.Len() != 0 || w.Header().Get("Content-Type") != "application/x-ndjson" {
		t.Fatalf("no page at all: %d %q", w.Code, w.Body)
	}
}

func TestAListOfPagesThatFailsIsNeverTakenForTheWhole(t *testing.T) {
	o := options()
	after := 0
	o.Pages = func(context.Context) iter.Seq2[httpapi.Page, error] {
		return func(yield func(httpapi.Page, error) bool) {
			for range after {
				if !yield(httpapi.Page{Document: "a.pdf"}, nil) {
					return
				}
			}
			yield(httpapi.Page{}, errors.New("disk gone"))
		}
	}
	if p := problemOf(t, ask(httpapi.New(o), http.MethodGet, "/api/v1/pages")); p.Code != httpapi.CodeInternal {
		t.Errorf("an error before the first page is %+v", p)
	}
	after = 5
	url, _ := serve(t, o)
	resp, err := http.Get(url + "/api/v1/pages")
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
	if err == nil {
		t.Error("a list that was cut off looks complete")
	}
}
