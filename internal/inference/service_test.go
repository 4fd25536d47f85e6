package inference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "sk-verysecret"

// server answers as an OpenAI-compatible one and keeps what it was asked.
type server struct {
	*httptest.Server
	mu     sync.Mutex
	keys   []string
	bodies []string
	auth   []string
	answer http.HandlerFunc // nil: a complete answer
}

func newServer(t *testing.T, answer http.HandlerFunc) *server {
	t.Helper()
	s := &server{answer: answer}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Errorf("read the request: %v", err)
		}
		s.mu.Lock()
		s.keys = append(s.keys, r.Header.Get("Idempotency-Key"))
		s.bodies = append(s.bodies, string(body))
		s.auth = append(s.auth, r.Header.Get("Authorization"))
		s.mu.Unlock()
		if s.answer != nil {
			s.answer(w, r)
			return
		}
		complete(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.keys)
}

func complete(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/embeddings") {
		reply(w, 200, `{"object":"list","model":"vec-2026","data":[{"object":"embedding","index":0,"embedding":[0.5,-0.25,1]}],"usage":{"prompt_tokens":3,"total_tokens":3}}`)
		return
	}
	reply(w, 200, chatReply("stop", "An answer."))
}

func chatReply(finish, content string) string {
	return fmt.Sprintf(`{"id":"x","object":"chat.completion","model":"chat-2026","choices":[{"index":0,"finish_reason":%q,"message":{"role":"assistant","content":%q}}],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}`, finish, content)
}

func reply(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

func newService(t *testing.T, rec Recorder, base string, change ...func(*config.Model)) *Service {
	t.Helper()
	t.Setenv("SWARM_TEST_KEY", secret)
	m := config.Model{Name: "default", Provider: config.OpenAI, BaseURL: base + "/v1", Model: "chat", Key: config.Key{Env: "SWARM_TEST_KEY"}, Reuse: config.ReuseByAddress}
	for _, c := range change {
		c(&m)
	}
	s, err := New(rec, []config.Model{m, {Name: "builtin", Provider: config.Builtin}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func call(event string) engine.Call {
	unnamed := map[[32]byte]int{}
	return engine.Call{Fence: ledger.Fence{Key: ledger.Key{Group: "reader"}, Owner: "w", Epoch: 1}, Source: "s", EventID: event, Agent: "reader",
		Occurrence: func(a [32]byte) int { unnamed[a]++; return unnamed[a] }}
}

func ask(text string) inference.Request {
	return inference.Request{System: "Sum up.", Messages: []inference.Message{{Role: "user", Content: text}}}
}

func TestAnswerIsRecordedBeforeItIsUsed(t *testing.T) {
	srv, rec := newServer(t, nil), newMemory()
	s := newService(t, rec, srv.URL)
	a, err := s.Infer(t.Context(), call("e1"), "notes", ask("page"))
	if err != nil || a.Text != "An answer." || a.Model != "chat-2026" || a.TokensIn != 7 || a.TokensOut != 2 || a.Reused {
		t.Fatalf("answer %+v, %v", a, err)
	}
	// Another process, after a crash: the record answers.
	again, err := newService(t, rec, srv.URL).Infer(t.Context(), call("e1"), "notes", ask("page"))
	if err != nil || again.Text != a.Text || again.Model != a.Model || !again.Reused || srv.calls() != 1 {
		t.Errorf("again %+v, %v after %d calls", again, err, srv.calls())
	}
	if srv.auth[0] != "Bearer "+secret {
		t.Errorf("authorization %q", srv.auth[0])
	}
	if want := `{"messages":[{"content":"Sum up.","role":"system"},{"content":"page","role":"user"}],"model":"chat"}`; srv.bodies[0] != want {
		t.Errorf("body %s", srv.bodies[0])
	}
}

// A crash between the call and its record: the call is in doubt and goes out once more, with the same key.
func TestCrashBetweenCallAndRecord(t *testing.T) {
	for _, reuse := range []config.Reuse{config.ReuseByAddress, config.ReuseOff} {
		t.Run(string(reuse), func(t *testing.T) {
			srv, rec := newServer(t, nil), newMemory()
			rec.failSettle(errDown)
			set := func(m *config.Model) { m.Reuse = reuse }
			if _, err := newService(t, rec, srv.URL, set).Infer(t.Context(), call("e1"), "notes", ask("page")); !errors.Is(err, errDown) {
				t.Fatalf("the answer was used without a record: %v", err)
			}
			rec.failSettle(nil)
			s := newService(t, rec, srv.URL, set)
			a, err := s.Infer(t.Context(), call("e1"), "notes", ask("page"))
			if err != nil || a.Reused || rec.inDoubt != 1 || srv.calls() != 2 {
				t.Fatalf("answer %+v, %v, in doubt %d, calls %d", a, err, rec.inDoubt, srv.calls())
			}
			if srv.keys[0] == "" || srv.keys[0] != srv.keys[1] || srv.bodies[0] != srv.bodies[1] {
				t.Errorf("keys %q, bodies %q", srv.keys, srv.bodies)
			}
			if _, err := s.Infer(t.Context(), call("e1"), "notes", ask("page")); err != nil || srv.calls() != 2 {
				t.Errorf("paid again: %d calls, %v", srv.calls(), err)
			}
		})
	}
}

// Where the process lives on, an answer that couldn't be recorded isn't paid again.
func TestLedgerDownWhileRecording(t *testing.T) {
	srv, rec := newServer(t, nil), newMemory()
	s := newService(t, rec, srv.URL)
	rec.failSettle(errDown)
	for range 3 {
		if _, err := s.Infer(t.Context(), call("e1"), "notes", ask("page")); !errors.Is(err, errDown) || fault.ClassOf(err) != fault.Transient {
			t.Fatalf("error %v", err)
		}
	}
	rec.failSettle(nil)
	if a, err := s.Infer(t.Context(), call("e1"), "notes", ask("page")); err != nil || a.Text == "" || srv.calls() != 1 {
		t.Errorf("answer %+v, %v, calls %d", a, err, srv.calls())
	}
}

// A lease that was lost while its answer came is often this worker's again: then the answer is recorded under the new
// fence, unless the owner between has recorded another one.
func TestAnswerOutlivesItsLease(t *testing.T) {
	srv, rec := newServer(t, nil), newMemory()
	s := newService(t, rec, srv.URL)
	again := func(event string) engine.Call {
		c := call(event)
		c.Fence.Epoch = 2
		return c
	}
	for _, other := range []string{"", "Of the owner between."} {
		calls, event := srv.calls(), "e"+other
		rec.failSettle(ledger.ErrFenced)
		if _, err := s.Infer(t.Context(), call(event), "notes", ask("page"+other)); !errors.Is(err, ledger.ErrFenced) {
			t.Fatalf("error %v", err)
		}
		rec.failSettle(nil)
		want := "An answer."
		if other != "" {
			want = other
			c := again(event)
			rec.settled(t, ledger.Call{Fence: c.Fence, Source: c.Source, EventID: c.EventID, Name: "notes"}, other)
		}
		a, err := s.Infer(t.Context(), again(event), "notes", ask("page"+other))
		if err != nil || a.Text != want || srv.calls() != calls+1 {
			t.Errorf("answer %+v, %v after %d calls, want %q after one", a, err, srv.calls()-calls, want)
		}
		if len(s.unsettled.answers) != 0 {
			t.Error("the answer is kept though it's recorded")
		}
	}
}

func TestEqualRequestsAreOneCall(t *testing.T) {
	release := make(chan struct{})
	srv := newServer(t, func(w http.ResponseWriter, r *http.Request) { <-release; complete(w, r) })
	rec := newMemory()
	s := newService(t, rec, srv.URL)
	const steps = 16
	results := make(chan inference.Answer, steps)
	var group sync.WaitGroup
	for i := range steps {
		group.Go(func() {
			a, err := s.Infer(t.Context(), call(fmt.Sprint("e", i)), "notes", ask("page"))
			if err != nil {
				t.Errorf("step %d: %v", i, err)
			}
			results <- a
		})
	}
	// All of them wait for the one in the air before it lands.
	waitFor(t, func() bool {
		s.flights.mu.Lock()
		defer s.flights.mu.Unlock()
		for _, f := range s.flights.air {
			return f.waiting == steps
		}
		return false
	})
	close(release)
	group.Wait()
	close(results)
	fresh := 0
	for a := range results {
		if !a.Reused {
			fresh++
		}
	}
	if srv.calls() != 1 || fresh != 1 || len(rec.recorded) != steps {
		t.Errorf("%d calls, %d fresh answers, %d records", srv.calls(), fresh, len(rec.recorded))
	}
	if len(s.flights.air) != 0 {
		t.Error("flights are kept")
	}
}

func waitFor(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
		time.Sleep(time.Millisecond) // polling, bounded by the deadline
	}
}

func TestWithoutReuseEachEventAsks(t *testing.T) {
	srv, rec := newServer(t, nil), newMemory()
	s := newService(t, rec, srv.URL, func(m *config.Model) { m.Reuse = config.ReuseOff })
	first := call("e1")
	for _, c := range []struct {
		call engine.Call
		name string
	}{{first, "a"}, {call("e2"), "a"}, {first, "b"}, {first, ""}, {first, ""}} {
		if _, err := s.Infer(t.Context(), c.call, c.name, ask("page")); err != nil {
			t.Fatal(err)
		}
	}
	// Another attempt that makes its unnamed calls behind one for something else is answered by their records.
	again := call("e1")
	for _, text := range []string{"other", "page", "page"} {
		if _, err := s.Infer(t.Context(), again, "", ask(text)); err != nil {
			t.Fatal(err)
		}
	}
	keys := slices.Clone(srv.keys)
	slices.Sort(keys)
	if srv.calls() != 6 || len(slices.Compact(keys)) != 6 {
		t.Errorf("%d calls, keys %q", srv.calls(), srv.keys)
	}
}

// Copies of an event may run at once, say from two partitions: the second waits and is answered by the record.
func TestWithoutReuseCopiesOfAnEventAskOnce(t *testing.T) {
	release := make(chan struct{})
	srv := newServer(t, func(w http.ResponseWriter, r *http.Request) { <-release; complete(w, r) })
	rec := newMemory()
	s := newService(t, rec, srv.URL, func(m *config.Model) { m.Reuse = config.ReuseOff })
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			if _, err := s.Infer(t.Context(), call("e1"), "notes", ask("page")); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, func() bool { // the second has either asked or waits
		s.flights.mu.Lock()
		defer s.flights.mu.Unlock()
		waiting := 0
		for _, f := range s.flights.air {
			waiting += f.waiting
		}
		return waiting == 2 || srv.calls() == 2
	})
	close(release)
	group.Wait()
	if srv.calls() != 1 || rec.inDoubt != 0 {
		t.Errorf("%d calls, %d in doubt", srv.calls(), rec.inDoubt)
	}
}

func TestOnlyCompleteAnswersAreStored(t *testing.T) {
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "500")
		_, _ = io.WriteString(w, chatReply("stop", "An")[:60])
	}
	chat := func(finish, content string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, chatReply(finish, content)) }
	}
	text := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, body) }
	}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		class  fault.Class
		embed  bool
	}{
		"length":         {chat("length", "An ans"), fault.Permanent, false},
		"content_filter": {chat("content_filter", "An"), fault.Permanent, false},
		"tool_calls":     {chat("tool_calls", ""), fault.Permanent, false},
		"no finish":      {chat("", "An ans"), fault.Transient, false},
		"empty":          {chat("stop", " \n"), fault.Transient, false},
		"no choices":     {text(`{"model":"m","choices":[]}`), fault.Transient, false},
		"refusal":        {text(`{"model":"m","choices":[{"finish_reason":"stop","message":{"content":"x","refusal":"no"}}]}`), fault.Permanent, false},
		"cut body":       {cut, fault.Unavailable, false},
		"no vector":      {text(`{"model":"m","data":[]}`), fault.Transient, true},
		"huge number":    {text(`{"model":"m","data":[{"embedding":[1e300]}]}`), fault.Transient, true},
	} {
		t.Run(name, func(t *testing.T) {
			srv, rec := newServer(t, c.answer), newMemory()
			s := newService(t, rec, srv.URL)
			req := ask("page")
			if c.embed {
				req = inference.Request{Input: "page"}
			}
			for range 2 {
				_, err := s.Infer(t.Context(), call("e1"), "notes", req)
				if err == nil || fault.ClassOf(err) != c.class {
					t.Fatalf("error %v of class %s, want %s", err, fault.ClassOf(err), c.class)
				}
			}
			if rec.stored() != 0 || srv.calls() != 2 {
				t.Errorf("%d stored, %d calls", rec.stored(), srv.calls())
			}
		})
	}
}

func TestStatuses(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		class  fault.Class
		ended  bool
		says   string
	}{
		{400, `{"error":{"message":"bad param ` + secret + `","type":"x"}}`, fault.Permanent, true, "bad param"},
		{401, `{"error":{"message":"Incorrect API key provided: ` + secret + `"}}`, fault.Unavailable, true, "SWARM_TEST_KEY"},
		{403, `{}`, fault.Unavailable, true, "SWARM_TEST_KEY"},
		{404, `{"error":{"message":"The model does not exist","code":"model_not_found"}}`, fault.Unavailable, true, "base_url or model"},
		{404, `{"error":{"message":"no such file id"}}`, fault.Permanent, true, "404"},
		{408, `{}`, fault.Unavailable, false, "408"},
		{422, `{"error":{"message":"unprocessable"}}`, fault.Permanent, true, "unprocessable"},
		{429, `{"error":{"message":"slow down"}}`, fault.Unavailable, true, "slow down"},
		{429, `{"error":{"message":"quota","code":"insufficient_quota"}}`, fault.Unavailable, true, "quota"},
		{500, `oops`, fault.Unavailable, true, "500"},
		{502, `<html>`, fault.Unavailable, false, "502"},
		{503, ``, fault.Unavailable, true, "503"},
		{504, ``, fault.Unavailable, false, "504"},
		{302, ``, fault.Unavailable, true, "base_url"},
		{200, `<html>hello</html>`, fault.Unavailable, true, "base_url"},
	} {
		t.Run(fmt.Sprint(c.status, c.says), func(t *testing.T) {
			srv := newServer(t, func(w http.ResponseWriter, _ *http.Request) {
				if c.status == 302 {
					w.Header().Set("Location", "http://127.0.0.1:1/")
				}
				reply(w, c.status, c.body)
			})
			rec := newMemory()
			_, err := newService(t, rec, srv.URL).Infer(t.Context(), call("e1"), "notes", ask("page"))
			if err == nil || fault.ClassOf(err) != c.class || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("error %v of class %s", err, fault.ClassOf(err))
			}
			if strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), "verysecret") {
				t.Errorf("the secret is shown: %v", err)
			}
			if (rec.abandoned == 1) != c.ended || srv.calls() != 1 {
				t.Errorf("abandoned %d times, %d calls", rec.abandoned, srv.calls())
			}
		})
	}
}

func TestServerThatIsntThere(t *testing.T) {
	srv := httptest.NewServer(nil)
	srv.Close()
	rec := newMemory()
	_, err := newService(t, rec, srv.URL).Infer(t.Context(), call("e1"), "notes", ask("page"))
	if fault.ClassOf(err) != fault.Unavailable || rec.abandoned != 1 || !strings.Contains(err.Error(), "can't be reached") {
		t.Errorf("error %v of class %s, abandoned %d times", err, fault.ClassOf(err), rec.abandoned)
	}
}

// A step that is cancelled while its call is in the air leaves it in doubt: the server may have worked on it.
func TestCancelledCallIsInDoubt(t *testing.T) {
	arrived := make(chan struct{}, 4)
	srv := newServer(t, func(_ http.ResponseWriter, r *http.Request) { arrived <- struct{}{}; <-r.Context().Done() })
	rec := newMemory()
	s := newService(t, rec, srv.URL)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	_, err := s.Infer(ctx, call("e1"), "notes", ask("page"))
	if !errors.Is(err, context.Canceled) || rec.abandoned != 0 || len(rec.pending) != 1 {
		t.Errorf("error %v, abandoned %d times, %d pending", err, rec.abandoned, len(rec.pending))
	}
}

func TestRetryAfterHoldsRequestsBack(t *testing.T) {
	busy := true
	srv := newServer(t, func(w http.ResponseWriter, r *http.Request) {
		if busy {
			busy = false
			w.Header().Set("Retry-After", "1")
			reply(w, 429, `{}`)
			return
		}
		complete(w, r)
	})
	rec := newMemory()
	s := newService(t, rec, srv.URL)
	begun := time.Now()
	if _, err := s.Infer(t.Context(), call("e1"), "notes", ask("page")); fault.ClassOf(err) != fault.Unavailable || fault.AfterOf(err) != time.Second {
		t.Fatalf("error %v, to wait %s", err, fault.AfterOf(err))
	}
	// A step that can tell of it doesn't wait here: its agent does.
	host := strings.TrimPrefix(srv.URL, "http://")
	var used string
	c := call("e2")
	c.Uses = func(dependency string) { used = dependency }
	if _, err := s.Infer(t.Context(), c, "notes", ask("other page")); fault.AfterOf(err) <= 0 || fault.DependencyOf(err) != host || used != host {
		t.Errorf("asks to wait %s for %q: %v; uses %q", fault.AfterOf(err), fault.DependencyOf(err), err, used)
	}
	if _, err := s.Infer(t.Context(), call("e1"), "notes", ask("page")); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < 900*time.Millisecond {
		t.Errorf("asked again after %s", took)
	}
	for text, want := range map[string]time.Duration{"7": 7 * time.Second, "999999999999": 0, "-1": 0, "soon": 0, "Wed, 21 Oct 2015 07:28:10 GMT": 10 * time.Second} {
		now := time.Date(2015, 10, 21, 7, 28, 0, 0, time.UTC)
		if got := retryAfter(&http.Response{Header: http.Header{"Retry-After": {text}}}, now); got != want && text != "999999999999" {
			t.Errorf("Retry-After %s is %s", text, got)
		} else if got > maxAfter {
			t.Errorf("Retry-After %s is %s", text, got)
		}
	}
}

// The environment's key belongs to OpenAI's server, not to whatever base_url names.
func TestKeyOfTheEnvironmentGoesNowhereElse(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", secret)
	t.Setenv("OPENAI_ORG_ID", "org")
	t.Setenv("OPENAI_CUSTOM_HEADERS", "Authorization: "+secret)
	srv := newServer(t, nil)
	s := newService(t, newMemory(), srv.URL, func(m *config.Model) { m.Key = config.Key{} })
	if _, err := s.Infer(t.Context(), call("e1"), "notes", ask("page")); err != nil {
		t.Fatal(err)
	}
	if srv.auth[0] != "" {
		t.Errorf("authorization %q", srv.auth[0])
	}
}

func TestEmbedding(t *testing.T) {
	srv, rec := newServer(t, nil), newMemory()
	s := newService(t, rec, srv.URL)
	for i := range 2 {
		a, err := s.Infer(t.Context(), call("e1"), "vector", inference.Request{Input: "page"})
		if err != nil || !slices.Equal(a.Vector, []float32{0.5, -0.25, 1}) || a.Model != "vec-2026" || a.Reused != (i == 1) {
			t.Errorf("answer %+v, %v", a, err)
		}
	}
}

func TestBuiltinIsNotRecorded(t *testing.T) {
	rec := newMemory()
	s := newService(t, rec, "http://127.0.0.1:1")
	req := ask("A lease says who owns a partition. The epoch of a lease only rises.")
	req.Model = "builtin"
	a, err := s.Infer(t.Context(), call("e1"), "notes", req)
	if err != nil || !strings.Contains(a.Text, "Terms:") || len(rec.pending) != 0 {
		t.Errorf("answer %+v, %v", a, err)
	}
	a, err = s.Infer(t.Context(), call("e1"), "vector", inference.Request{Model: "builtin", Input: "lease"})
	if err != nil || len(a.Vector) != 256 {
		t.Errorf("vector %+v, %v", a, err)
	}
}

func TestPinnedVersion(t *testing.T) {
	srv, rec := newServer(t, nil), newMemory()
	s := newService(t, rec, srv.URL, func(m *config.Model) { m.Version = "chat-2025" })
	if _, err := s.Infer(t.Context(), call("e1"), "notes", ask("page")); fault.ClassOf(err) != fault.Unavailable || rec.stored() != 0 {
		t.Errorf("another version: %v", err)
	}
	s = newService(t, rec, srv.URL, func(m *config.Model) { m.Version = "chat-2026" })
	if _, err := s.Infer(t.Context(), call("e1"), "notes", ask("page")); err != nil {
		t.Errorf("the pinned version: %v", err)
	}
}

func TestMistakesAreToldApart(t *testing.T) {
	s := newService(t, newMemory(), "http://127.0.0.1:1")
	for name, c := range map[string]struct {
		req   inference.Request
		class fault.Class
	}{
		"unknown model": {inference.Request{Model: "none", Input: "x"}, fault.Fatal},
		"nothing":       {inference.Request{}, fault.Permanent},
		"both":          {inference.Request{Input: "x", Messages: ask("y").Messages}, fault.Permanent},
		"not UTF-8":     {ask("caf\xe9"), fault.Permanent},
		"taken param":   {inference.Request{Input: "x", Params: map[string]json.RawMessage{"model": json.RawMessage(`"y"`)}}, fault.Permanent},
		"broken param":  {inference.Request{Input: "x", Params: map[string]json.RawMessage{"top": json.RawMessage(`{`)}}, fault.Permanent},
	} {
		if _, err := s.Infer(t.Context(), call("e1"), "", c.req); fault.ClassOf(err) != c.class {
			t.Errorf("%s: %v of class %s", name, err, fault.ClassOf(err))
		}
	}
	if _, err := New(newMemory(), []config.Model{{Name: "x", Provider: config.OpenAI, Key: config.Key{Env: "SWARM_TEST_NONE"}}}, Options{}); err == nil {
		t.Error("a missing key was accepted")
	}
}

func TestQueryIsNotRecorded(t *testing.T) {
	srv, rec := newServer(t, nil), newMemory()
	s := newService(t, rec, srv.URL)
	for range 2 {
		a, err := s.Query(t.Context(), "default", "what a person looks for")
		if err != nil || len(a.Vector) == 0 {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	if srv.calls() != 2 || len(rec.recorded)+len(rec.pending) != 0 {
		t.Errorf("%d calls, %d records", srv.calls(), len(rec.recorded))
	}
	if _, err := s.Query(t.Context(), "none", "x"); err == nil {
		t.Error("a model that isn't there answered")
	}
}
