// Package inference owns calls to models: their addresses, the order of
// recording and sending, and the providers that answer.
//
// A call is marked as begun in the ledger before it's sent, and its answer is
// recorded before it's used. So an attempt that ends early, by a crash, a lost
// lease, a time-out or a broken connection, leaves one of three states: nothing was
// sent; the answer is recorded and answers again; or the call is in doubt, and
// is sent again with the same idempotency key and counted. Only complete
// answers are recorded. The built-in model is the exception: it's pure, so
// nothing of it is recorded or counted.
//
// It sees the ledger by the three calls of Recorder, and must not import an
// implementation of it, nor package agents. What survives a crash is what the
// ledger holds; the rest here, the flights in the air and the answers that
// couldn't be recorded yet, is only a short cut.
package inference

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/internal/inference/builtin"
	"github.com/swarmlog/swarmlog/ledger"
)

// Recorder is what a Service asks of a ledger.Ledger.
type Recorder interface {
	Recall(ctx context.Context, c ledger.Call) (ledger.Answer, ledger.CallState, error)
	Settle(ctx context.Context, c ledger.Call, a ledger.Answer) error
	Abandon(ctx context.Context, c ledger.Call) error
}

// Provider sends one request to a model's server and returns its complete answer.
type Provider interface {
	// Ask makes one attempt, bounded by ctx alone. An error is a *Failure where more is known than that there's no
	// answer.
	Ask(ctx context.Context, body []byte, embedding bool, key string) (inference.Answer, error)
	Close()
}

// Failure is an attempt that brought no answer.
type Failure struct {
	Err error // with its class
	// Ended says that the server isn't working on it any more, for certain.
	Ended bool
	// After is how long the server asks to be left alone; zero: it doesn't say.
	After time.Duration
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Options are what a Service is given. The zero value of a field means its default.
type Options struct {
	Tenant    string            // part of every address
	Transport http.RoundTripper // default: a copy of http.DefaultTransport
	Logger    *slog.Logger      // default: none
	Now       func() time.Time  // default: time.Now
}

// Service answers the model calls of steps; it implements engine.Inferrer.
type Service struct {
	recorder  Recorder
	models    map[string]*model
	names     []string
	tenant    string
	log       *slog.Logger
	now       func() time.Time
	flights   flights
	unsettled unsettled
}

var _ engine.Inferrer = (*Service)(nil)

type model struct {
	config.Model
	provider Provider // nil: built in
	host     string   // of its server: what people know the dependency by
	gate     gate
}

// settleTime bounds recording an answer after its step's context ended: it's paid for.
const settleTime = 30 * time.Second

// New makes a Service of the models of a swarm.yaml. It reads their keys; one that can't be read is an error.
func New(rec Recorder, models []config.Model, o Options) (*Service, error) {
	s := &Service{recorder: rec, models: make(map[string]*model, len(models)), tenant: o.Tenant, log: o.Logger, now: o.Now}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.now == nil {
		s.now = time.Now
	}
	for _, m := range models {
		entry := &model{Model: m, gate: gate{now: s.now}}
		if m.Provider == config.OpenAI {
			key, err := m.Key.Resolve()
			if err != nil {
				s.Close()
				return nil, fmt.Errorf("set up model %s: %w", m.Name, err)
			}
			entry.provider, entry.host = newOpenAI(m, key, o.Transport, s.now), hostOf(m)
		}
		s.models[m.Name] = entry
		s.names = append(s.names, m.Name)
	}
	return s, nil
}

// Close ends idle connections to the models' servers.
func (s *Service) Close() {
	for _, m := range s.models {
		if m.provider != nil {
			m.provider.Close()
		}
	}
}

// Infer answers a call: from its own record, from an equal request's answer where reuse is on, or by asking.
//
// name is the call's name within its event; where it's empty, address and occurrence are.
//
// Errors: a model that's down, overloaded or refuses our key is fault.Unavailable; a request that can't succeed is
// fault.Permanent; a cut or empty answer and a time-out are transient; a model that isn't configured is fault.Fatal.
func (s *Service) Infer(ctx context.Context, c engine.Call, name string, req inference.Request) (inference.Answer, error) {
	if req.Model == "" {
		req.Model = "default"
	}
	m := s.models[req.Model]
	if m == nil {
		return inference.Answer{}, fault.Fatalf("agent %s asks model %q, which isn't among the models of swarm.yaml (%s); add it, or name another",
			c.Agent, req.Model, strings.Join(s.names, ", "))
	}
	p, err := newPrompt(m.Model, s.tenant, req)
	if err != nil {
		return inference.Answer{}, err
	}
	if m.provider == nil {
		return answerBuiltin(req), nil
	}
	call := ledger.Call{Fence: c.Fence, Offset: c.Offset, Source: c.Source, EventID: c.EventID, Name: name, Address: p.address, Reuse: m.Reuse != config.ReuseOff}
	if name == "" {
		call.Name = fmt.Sprintf("%x#%d", p.address, c.Occurrence(p.address))
	}
	call.Key = idempotencyKey(call)
	land, err := s.flights.enter(ctx, flightOf(call))
	if err != nil {
		return inference.Answer{}, fmt.Errorf("wait for an equal request to model %s: %w", m.Name, err)
	}
	defer land()
	return s.recorded(ctx, m, call, p, c.Uses)
}

// hostOf names a model's server without what its address may hold besides, which could be a secret.
func hostOf(m config.Model) string {
	u, err := url.Parse(m.BaseURL)
	if err != nil || u.Host == "" {
		return "model " + m.Name
	}
	return u.Host
}

// Query embeds what a person looks for, by the model of a name. It belongs to no event, so it's neither recorded nor
// counted; an equal question asks again.
func (s *Service) Query(ctx context.Context, name, text string) (inference.Answer, error) {
	m := s.models[name]
	if m == nil {
		return inference.Answer{}, fmt.Errorf("embed a query: model %q isn't among the models of swarm.yaml", name)
	}
	req := inference.Request{Model: name, Input: text}
	if m.provider == nil {
		return answerBuiltin(req), nil
	}
	p, err := newPrompt(m.Model, s.tenant, req)
	if err != nil {
		return inference.Answer{}, err
	}
	a, err := m.provider.Ask(ctx, p.body, true, fmt.Sprintf("query-%x", p.address))
	if err != nil {
		return inference.Answer{}, fmt.Errorf("embed a query by model %s: %w", name, err)
	}
	return a, nil
}

// recorded is the order that promises hang on: recall or begin, send, settle, and only then the answer.
func (s *Service) recorded(ctx context.Context, m *model, call ledger.Call, p prompt, uses func(string)) (inference.Answer, error) {
	if a, ok := s.unsettled.take(call); ok {
		// What is recorded by then answers: another owner may have been first while the lease was lost.
		if _, err := s.settle(ctx, m, call, a); err != nil {
			return inference.Answer{}, err
		}
	}
	stored, state, err := s.recorder.Recall(ctx, call)
	if err != nil {
		return inference.Answer{}, fmt.Errorf("recall call %q to model %s: %w", call.Name, m.Name, err)
	}
	switch state {
	case ledger.CallRecorded, ledger.CallReused:
		return decodeAnswer(stored)
	case ledger.CallInDoubt:
		s.log.InfoContext(ctx, "model call in doubt, sent again with its key", "model", m.Name, "call", call.Name, "event", call.EventID)
	}
	if uses != nil {
		uses(m.host)
		if d := m.gate.left(); d > 0 { // the step waits for it, with all others that need this server
			s.abandon(ctx, m, call)
			return inference.Answer{}, fault.On(m.host, fault.After(d, fault.As(fault.Unavailable, fmt.Errorf("model %s asks to be left alone for another %s", m.Name, d.Round(time.Millisecond)))))
		}
	} else if err := m.gate.wait(ctx); err != nil {
		s.abandon(ctx, m, call) // nothing was sent
		return inference.Answer{}, fmt.Errorf("wait until model %s takes requests again: %w", m.Name, err)
	}
	answer, err := m.provider.Ask(ctx, p.body, p.embedding, call.Key)
	if err == nil && m.Version != "" && answer.Model != m.Version {
		err = &Failure{Ended: true, Err: fault.As(fault.Unavailable, fmt.Errorf("version %q answered, but version %q is pinned; change version in swarm.yaml", answer.Model, m.Version))}
	}
	if err != nil {
		return inference.Answer{}, s.failed(ctx, m, call, err)
	}
	return s.settle(ctx, m, call, answer)
}

// failed says what came of a request without an answer. It's named by the server, so that one that is down, or that
// refuses everything, is told from records that are wrong.
func (s *Service) failed(ctx context.Context, m *model, call ledger.Call, err error) error {
	var f *Failure
	if errors.As(err, &f) {
		m.gate.close(f.After)
		if f.Ended {
			s.abandon(ctx, m, call)
		}
		err = fault.After(f.After, f.Err)
	}
	return fault.On(m.host, fmt.Errorf("ask model %s: %w", m.Name, err))
}

// abandon isn't cut short by its step's context, which may have ended. Where it fails the call stays in doubt, which
// costs a count and no promise.
func (s *Service) abandon(ctx context.Context, m *model, call ledger.Call) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if err := s.recorder.Abandon(ctx, call); err != nil {
		s.log.WarnContext(ctx, "model call stays in doubt", "model", m.Name, "call", call.Name, "event", call.EventID, "error", err)
	}
}

// settle records the answer. Where it can't be recorded now it's kept for the step's next attempt, also where the lease
// was lost meanwhile: this worker may have it again in a moment.
func (s *Service) settle(ctx context.Context, m *model, call ledger.Call, a inference.Answer) (inference.Answer, error) {
	stored, err := encodeAnswer(a, s.now())
	if err != nil {
		return inference.Answer{}, fault.Permanentf("record the answer of model %s: %w", m.Name, err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
	defer cancel()
	if err := s.recorder.Settle(ctx, call, stored); err != nil {
		s.unsettled.put(call, a)
		return inference.Answer{}, fmt.Errorf("record the answer of model %s to call %q: %w", m.Name, call.Name, err)
	}
	return a, nil
}

// answerBuiltin is the built-in model's answer: pure, so neither recorded nor counted.
func answerBuiltin(req inference.Request) inference.Answer {
	if req.Input != "" {
		return inference.Answer{Vector: builtin.Vector(req.Input), Model: builtin.VectorModel}
	}
	return inference.Answer{Text: builtin.Chat(req.Messages[len(req.Messages)-1].Content), Model: builtin.SummaryModel}
}
