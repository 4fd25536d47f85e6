package engine_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	api "github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/circuit"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/inference"
	"github.com/swarmlog/swarmlog/ledger"
)

// endpoint is a model's server that answers what it's told to.
type endpoint struct {
	*httptest.Server
	status atomic.Int64 // 0: complete answers
	after  string       // its Retry-After

	mu      sync.Mutex
	refused []time.Time // when it answered something else than 200
}

func newEndpoint(t *testing.T) *endpoint {
	s := &endpoint{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		status := int(s.status.Load())
		if strings.Contains(string(body), "malformed") {
			status = http.StatusBadRequest
		}
		w.Header().Set("Content-Type", "application/json")
		if status != 0 {
			s.mu.Lock()
			s.refused = append(s.refused, time.Now())
			s.mu.Unlock()
			if s.after != "" && status != http.StatusBadRequest {
				w.Header().Set("Retry-After", s.after)
			}
			w.WriteHeader(status)
			fmt.Fprint(w, `{"error":{"message":"not now"}}`)
			return
		}
		fmt.Fprint(w, `{"id":"x","object":"chat.completion","model":"m-1","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"yes"}}],"usage":{}}`)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *endpoint) refusals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.refused)
}

// asker is an agent that asks the endpoint about each event.
func (s *endpoint) asker(t *testing.T, w *world) (engine.Options, engine.Agent) {
	service, err := inference.New(w.ledger, []config.Model{{Name: "default", Provider: config.OpenAI, BaseURL: s.URL + "/v1", Model: "m", Reuse: config.ReuseOff}}, inference.Options{})
	must(t, err)
	t.Cleanup(service.Close)
	o := w.options("w")
	o.Inferrer = service
	return o, engine.Agent{Name: "asker", Reads: []string{"a"}, Handle: func(ctx context.Context, e event.Event, step *engine.Step) error {
		text := e.ID
		if strings.HasSuffix(e.ID, "000050") && e.Subject == "subject-0" {
			text = "malformed"
		}
		if _, err := step.Infer(ctx, "ask", api.Request{Messages: []api.Message{{Role: "user", Content: text}}}); err != nil {
			return err
		}
		record("asker", e, step)
		return nil
	}}
}

func (w *world) circuit(e *engine.Engine) engine.CircuitStatus {
	for _, a := range e.Status() {
		for _, c := range a.Circuits {
			return c
		}
	}
	return engine.CircuitStatus{}
}

// D7: a model that's down or overloaded kills no record, one that is wrong dies once, and all goes on by itself.
func TestD7OutageOfADependencyKillsNoRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	s := newEndpoint(t)
	s.after = "1"
	o, agent := s.asker(t, w)
	agent.OnDead = engine.Skip
	e, _ := w.start(o, agent)
	w.publish("a", numbered(10, 20)...)
	w.settle(e)
	s.status.Store(http.StatusServiceUnavailable)
	w.publish("a", numberedFrom(10, 20, 100)...)
	w.until("the circuit is open and nothing runs", func() bool { return w.circuit(e).State == circuit.Open && e.Status()[0].Running == 0 })
	s.status.Store(http.StatusTooManyRequests)
	opened := s.refusals()
	w.until("it was probed twice", func() bool { return s.refusals() >= opened+2 && w.circuit(e).State == circuit.Open })
	c := w.circuit(e)
	if c.Reason != circuit.Down || c.Dependency != strings.TrimPrefix(s.URL, "http://") || !strings.Contains(c.Cause, "429") || c.Held == 0 {
		t.Errorf("circuit: %+v", c)
	}
	s.status.Store(0)
	w.settle(e)
	if c := w.counters("asker"); c != (ledger.Counters{Applied: 999, Dead: 1}) {
		t.Errorf("counters: %+v", c)
	}
	if letters := w.dead("a"); len(letters) != 1 || !strings.Contains(header(letters[0], engine.HeaderDeadReason), "400") {
		t.Errorf("%d dead letters", len(letters))
	}
	if c := w.circuit(e); c.State != circuit.Closed {
		t.Errorf("circuit: %+v", c)
	}
	if n := w.count(engine.NoticeCircuit); n != 2 {
		t.Errorf("%d notices of the circuit, expected one for each change", n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Of a hundred thousand tries that an agent without a circuit makes, a few are left: those that were under way, and probes.
	if n := len(s.refused); n > 150 {
		t.Errorf("the model was asked %d times while it was down", n)
	}
	for i := opened; i < len(s.refused)-1; i++ {
		if gap := s.refused[i+1].Sub(s.refused[i]); gap < time.Second {
			t.Errorf("probed again after %s, asked for 1 s", gap)
		}
	}
}

// A dependency that refuses everything is more likely to be wrong than all records are.
func TestDependencyThatRefusesEverythingKillsAFewAtMost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	s := newEndpoint(t)
	s.status.Store(http.StatusBadRequest)
	o, agent := s.asker(t, w)
	e, _ := w.start(o, agent)
	w.publish("a", numbered(300, 1)...)
	w.until("the circuit is open and was probed", func() bool { return w.circuit(e).State == circuit.Open && s.refusals() > 80 || w.circuit(e).Held > 60 })
	if c := w.circuit(e); c.Reason != circuit.Refusing {
		t.Errorf("circuit: %+v", c)
	}
	if !w.said("answers nothing but errors") {
		t.Error("nobody was told")
	}
	s.status.Store(0)
	w.settle(e)
	if c := w.counters("asker"); c.Dead != circuit.Refusals-1 || c.Applied != 300-c.Dead {
		t.Errorf("counters: %+v", c)
	}
}

// What is held for a dependency goes to the next owner with its partition, and doesn't hold up who leaves.
func TestLeavingWhileADependencyIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "a")
	var down atomic.Bool
	down.Store(true)
	agent := engine.Agent{Name: "r", Reads: []string{"a"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		s.Uses("db")
		if down.Load() {
			return fault.On("db", fault.After(time.Hour, fault.As(fault.Unavailable, io.EOF)))
		}
		record("r", e, s)
		return nil
	}}
	e, stop := w.start(w.options("w"), agent)
	w.publish("a", numbered(20, 5)...)
	w.until("the circuit is open", func() bool { return w.circuit(e).State == circuit.Open })
	if at := w.circuit(e).Probe; time.Until(at) > circuit.MaxAsked+time.Minute || time.Until(at) < time.Minute {
		t.Errorf("probes at %s, asked to wait an hour", at)
	}
	stop()
	down.Store(false)
	e, _ = w.start(w.options("v"), agent)
	w.settle(e)
	checkOnce(t, w.rows("r"), 20, 5)
}

// numberedFrom makes events from to below to for each of a number of subjects that numbered begins with.
func numberedFrom(subjects, from, to int) []event.Event {
	return numbered(subjects, to)[subjects*from:]
}

func (w *world) count(kind engine.NoticeKind) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, each := range w.notices {
		if each.Kind == kind {
			n++
		}
	}
	return n
}

func (w *world) said(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.notices {
		if strings.Contains(n.Text, text) {
			return true
		}
	}
	return false
}
