package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/swarmlog/swarmlog/internal/control"
	"github.com/swarmlog/swarmlog/internal/letters"
)

// Hands are what people may do with a swarm.
type Hands interface {
	Letters(ctx context.Context, f letters.Filter, o letters.Options, yield func(*letters.Letter) error) error
	// Act redrives or skips dead letters; visit may be nil.
	Act(ctx context.Context, verb letters.Verb, f letters.Filter, dry bool, o letters.Options, visit func(*letters.Letter) error) (letters.Account, error)
	Agents(ctx context.Context) ([]control.AgentRow, error)
	Pause(ctx context.Context, agent, reason string) error
	Resume(ctx context.Context, agent string) error
	// Rewind moves an agent's progress, or with dry tells what that would do. It waits for workers until ctx ends.
	Rewind(ctx context.Context, r control.Rewinding, dry bool) (control.RewindReport, error)
	// Shadow compares what a shadow would have emitted with what its agent did.
	Shadow(ctx context.Context, agent, shadow string, examples int) (control.ShadowReport, error)
	// Recover compares the ledger with Kafka and, with reset, takes the ledger as the truth. Agents are compared besides
	// those that the ledger knows.
	Recover(ctx context.Context, agents []string, reset bool) (control.Recovery, error)
}

// holdLimit is how long a rewinding waits for workers before it is answered; whoever wants to wait longer asks again.
const holdLimit = 20 * time.Second

// intended refuses what changes something unless it is sent as JSON: a page of another site can't send that without
// asking first, and is never allowed to.
func intended(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
				writeProblem(w, newProblem(CodeMedia, "what changes something must be sent with Content-Type: application/json"))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func acting(id, path, summary, description string) huma.Operation {
	op := operation(id, path, summary, description)
	op.Method = http.MethodPost
	op.Errors = append(op.Errors, http.StatusNotFound, http.StatusConflict, http.StatusUnsupportedMediaType)
	return op
}

// LettersRequest chooses letters; its zero fields choose all.
type LettersRequest struct {
	Agent         string `query:"agent" maxLength:"500"`
	Topic         string `query:"topic" maxLength:"500"`
	Subject       string `query:"subject" doc:"An aggregate"`
	Reason        string `query:"reason" doc:"Text that the reason holds"`
	ReasonMatches string `query:"reason_matches" doc:"Regular expression (RE2) that the reason matches"`
	Since         string `query:"since" doc:"RFC 3339"`
	Until         string `query:"until" doc:"RFC 3339"`
	Partition     int32  `query:"partition" default:"-1" minimum:"-1" doc:"-1: all"`
	Offset        int64  `query:"offset" default:"-1" minimum:"-1" doc:"-1: all"`
	Settled       bool   `query:"settled" doc:"Also those about which nobody needs to act any more"`
	Content       bool   `query:"content" doc:"With the records themselves"`
}

func (in *LettersRequest) filter() (f letters.Filter, err error) {
	f = letters.Filter{Agent: in.Agent, Topic: in.Topic, Subject: in.Subject, Reason: in.Reason, ReasonMatches: in.ReasonMatches}
	if in.Partition >= 0 {
		f.Partition = &in.Partition
	}
	if in.Offset >= 0 {
		f.Offset = &in.Offset
	}
	for name, t := range map[string]struct {
		said string
		to   **time.Time
	}{"since": {in.Since, &f.Since}, "until": {in.Until, &f.Until}} {
		if t.said == "" {
			continue
		}
		at, err := time.Parse(time.RFC3339Nano, t.said)
		if err != nil {
			p := newProblem(CodeInvalid, "a time can't be read")
			p.Errors = []*huma.ErrorDetail{{Message: "expected RFC 3339", Location: "query." + name, Value: t.said}}
			return f, p
		}
		*t.to = &at
	}
	return f, nil
}

// ActRequest is what a redrive or skip is asked by.
type ActRequest struct {
	Body struct {
		Filter letters.Filter `json:"filter,omitempty" doc:"Which letters; all where it's left out"`
		DryRun bool           `json:"dry_run,omitempty" doc:"Only tell what would be done"`
	}
}

// ActLine is one line of a redrive's or skip's answer: progress, or at the end the account.
type ActLine struct {
	Progress *letters.Progress `json:"progress,omitempty"`
	Letter   *letters.Letter   `json:"letter,omitempty" doc:"One that is done; told in a dry run only"`
	Account  *letters.Account  `json:"account,omitempty"`
	Error    string            `json:"error,omitempty" doc:"Why it ended early; account says what was done until then"`
}

func (a *api) registerLetters(api huma.API) {
	lines := func(op huma.Operation, of reflect.Type, what string) huma.Operation {
		op.Responses = map[string]*huma.Response{"200": {Description: what, Content: map[string]*huma.MediaType{
			"application/x-ndjson": {Schema: huma.SchemaFromType(api.OpenAPI().Components.Schemas, of)}}}}
		return op
	}
	huma.Register(api, lines(operation("letters", "/api/v1/letters", "List dead letters",
		"One JSON object a line. An answer that is cut off without its last chunk is incomplete."), reflect.TypeFor[letters.Letter](), "Dead letters as JSON lines"),
		func(_ context.Context, in *LettersRequest) (*huma.StreamResponse, error) {
			f, err := in.filter()
			if err != nil {
				return nil, err
			}
			return &huma.StreamResponse{Body: func(hctx huma.Context) { a.listLetters(hctx, f, in) }}, nil
		})
	for _, verb := range []letters.Verb{letters.Redrive, letters.Skip} {
		what := map[letters.Verb]string{
			letters.Redrive: "They are handled again, and what waits behind them after them, by the owners of their partitions.",
			letters.Skip:    "They stay counted as dead; what waits behind them goes on."}[verb]
		huma.Register(api, lines(acting(string(verb), "/api/v1/letters/"+string(verb), string(verb)+" dead letters", what+
			" It may be done twice. JSON lines: progress, and the account as the last one."), reflect.TypeFor[ActLine](), "Progress and an account as JSON lines"),
			func(_ context.Context, in *ActRequest) (*huma.StreamResponse, error) {
				return &huma.StreamResponse{Body: func(hctx huma.Context) { a.act(hctx, verb, in) }}, nil
			})
	}
}

// lineStream writes JSON lines; it begins with the first one, so that an error before that is a problem document.
type lineStream struct {
	hctx huma.Context
	s    stream
	enc  *json.Encoder
	n    int
}

func (l *lineStream) write(line any) error {
	if l.enc == nil {
		l.s = newStream(l.hctx, "application/x-ndjson")
		l.enc = json.NewEncoder(l.s.buf)
		l.enc.SetEscapeHTML(false)
	}
	if l.n%64 == 0 {
		l.s.extend()
	}
	l.n++
	return l.enc.Encode(line)
}

// end finishes the answer. After an error that came behind the first line the connection is cut, so that nobody takes a
// part for the whole.
func (l *lineStream) end(ctx context.Context, a *api, doing string, err error) {
	switch {
	case err != nil && l.enc == nil:
		_, w := humachi.Unwrap(l.hctx)
		writeProblem(w, a.handsFailure(ctx, doing, err))
	case err != nil:
		a.Logger.Warn("answer was cut off: "+doing, "error", err)
		panic(http.ErrAbortHandler)
	case l.enc == nil:
		_ = newStream(l.hctx, "application/x-ndjson").flush() // the client may be gone
	default:
		_ = l.s.flush()
	}
}

func (a *api) listLetters(hctx huma.Context, f letters.Filter, in *LettersRequest) {
	ctx, cancel := untilClosing(hctx.Context())
	defer cancel()
	out := &lineStream{hctx: hctx}
	keep := func(letters.Progress) {
		if out.enc != nil {
			out.s.extend()
		}
	}
	err := a.Hands.Letters(ctx, f, letters.Options{Settled: in.Settled, Content: in.Content, Progress: keep}, func(l *letters.Letter) error { return out.write(l) })
	out.end(ctx, a, "listing dead letters", err)
}

func (a *api) act(hctx huma.Context, verb letters.Verb, in *ActRequest) {
	ctx, cancel := untilClosing(hctx.Context())
	defer cancel()
	out := &lineStream{hctx: hctx}
	tell := func(p letters.Progress) {
		if out.write(ActLine{Progress: &p}) == nil {
			_ = out.s.flush() // a client that left is noticed by ctx
		}
	}
	var visit func(*letters.Letter) error
	if in.Body.DryRun {
		visit = func(l *letters.Letter) error { return out.write(ActLine{Letter: l}) }
	}
	account, err := a.Hands.Act(ctx, verb, in.Body.Filter, in.Body.DryRun, letters.Options{Progress: tell}, visit)
	if err != nil && out.enc != nil && ctx.Err() == nil { // what was done isn't lost with the error
		_ = out.write(ActLine{Account: &account, Error: a.handsFailure(ctx, string(verb)+" of dead letters", err).Detail})
		_ = out.s.flush()
		return
	}
	if err == nil {
		err = out.write(ActLine{Account: &account})
	}
	out.end(ctx, a, string(verb)+" of dead letters", err)
}

type agentsAnswer struct{ Body []control.AgentRow }

type pauseRequest struct {
	Agent string `path:"agent"`
	Body  struct {
		Reason string `json:"reason,omitempty" maxLength:"1000" doc:"For people"`
	}
}

type resumeRequest struct {
	Agent string `path:"agent"`
	Body  struct{}
}

type rewindRequest struct {
	Agent string `path:"agent"`
	Body  struct {
		To            time.Time `json:"to"`
		Topics        []string  `json:"topics,omitempty"`
		RepeatEffects bool      `json:"repeat_effects,omitempty"`
		DryRun        bool      `json:"dry_run,omitempty" doc:"Only tell what would be done"`
	}
}

type rewindAnswer struct{ Body control.RewindReport }

type shadowRequest struct {
	Agent    string `path:"agent"`
	Shadow   string `query:"shadow" required:"true" minLength:"1" doc:"The agent that is its shadow"`
	Examples int    `query:"examples" minimum:"0" maximum:"100" default:"5" doc:"Of each kind of difference"`
}

type shadowAnswer struct{ Body control.ShadowReport }

type recoverRequest struct {
	Body struct {
		Agents []string `json:"agents,omitempty" doc:"To compare besides those that the ledger knows"`
		Reset  bool     `json:"reset,omitempty" doc:"Take the ledger as the truth"`
	}
}

type recoverAnswer struct{ Body control.Recovery }

func (a *api) registerAgents(api huma.API) {
	huma.Register(api, operation("agents", "/api/v1/agents", "List agents", "All that have worked on the ledger, in whatever process."),
		func(ctx context.Context, _ *struct{}) (*agentsAnswer, error) {
			all, err := a.Hands.Agents(ctx)
			if err != nil {
				return nil, a.handsFailure(ctx, "listing agents", err)
			}
			if all == nil {
				all = []control.AgentRow{}
			}
			return &agentsAnswer{all}, nil
		})
	huma.Register(api, acting("pause", "/api/v1/agents/{agent}/pause", "Pause an agent", "Its running steps end, and nothing new begins, on any worker."),
		func(ctx context.Context, in *pauseRequest) (*struct{}, error) {
			if err := a.Hands.Pause(ctx, in.Agent, in.Body.Reason); err != nil {
				return nil, a.handsFailure(ctx, "pausing the agent", err)
			}
			return nil, nil
		})
	huma.Register(api, acting("resume", "/api/v1/agents/{agent}/resume", "Let a paused agent go on", ""),
		func(ctx context.Context, in *resumeRequest) (*struct{}, error) {
			if err := a.Hands.Resume(ctx, in.Agent); err != nil {
				return nil, a.handsFailure(ctx, "resuming the agent", err)
			}
			return nil, nil
		})
	huma.Register(api, acting("rewind", "/api/v1/agents/{agent}/rewind", "Rewind a paused agent to a time",
		"409 while workers still hold its partitions: ask again."),
		func(ctx context.Context, in *rewindRequest) (*rewindAnswer, error) {
			ctx, cancel := context.WithTimeout(ctx, holdLimit)
			defer cancel()
			report, err := a.Hands.Rewind(ctx, control.Rewinding{Agent: in.Agent, To: in.Body.To, Topics: in.Body.Topics, Repeat: in.Body.RepeatEffects}, in.Body.DryRun)
			if err != nil {
				return nil, a.handsFailure(ctx, "rewinding the agent", err)
			}
			return &rewindAnswer{report}, nil
		})
	huma.Register(api, operation("shadow", "/api/v1/agents/{agent}/shadow", "Compare a shadow with its agent", "By what it would have emitted."),
		func(ctx context.Context, in *shadowRequest) (*shadowAnswer, error) {
			r, err := a.Hands.Shadow(ctx, in.Agent, in.Shadow, in.Examples)
			if err != nil {
				return nil, a.handsFailure(ctx, "comparing the shadow", err)
			}
			return &shadowAnswer{r}, nil
		})
	huma.Register(api, acting("recover", "/api/v1/recover", "Compare the ledger with Kafka after it went back", "With reset, workers go on from the ledger as it is."),
		func(ctx context.Context, in *recoverRequest) (*recoverAnswer, error) {
			r, err := a.Hands.Recover(ctx, in.Body.Agents, in.Body.Reset)
			if err != nil {
				return nil, a.handsFailure(ctx, "comparing the ledger with Kafka", err)
			}
			return &recoverAnswer{r}, nil
		})
}

// handsFailure answers what a person asked for wrongly, or too early, in its own words.
func (a *api) handsFailure(ctx context.Context, doing string, err error) *Problem {
	for _, c := range []struct {
		is   error
		code Code
	}{{control.ErrNoAgent, CodeNoAgent}, {control.ErrAtWork, CodeConflict}, {control.ErrRunning, CodeNotPaused}, {control.ErrNothing, CodeInvalid},
		{control.ErrInFuture, CodeInvalid}, {control.ErrNoSwarm, CodeInvalid}, {letters.ErrFilter, CodeInvalid}} {
		if errors.Is(err, c.is) {
			return newProblem(c.code, err.Error())
		}
	}
	return a.failure(ctx, doing, err)
}
