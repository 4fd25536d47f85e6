package inference

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/fault"
)

// maxResponse bounds what is read of one response.
const maxResponse = 32 << 20

// openAI asks any server that speaks OpenAI's HTTP interface, through OpenAI's SDK. The SDK's own retries are off:
// retries are the engine's. Its services are made directly, since its client would take keys and addresses from the
// environment and send them to whatever server is configured.
type openAI struct {
	chat       openai.ChatCompletionService
	embeddings openai.EmbeddingService
	transport  http.RoundTripper
	endpoint   string
	key        config.Secret
	where      config.Key
	model      string
	now        func() time.Time
}

func newOpenAI(m config.Model, key config.Secret, transport http.RoundTripper, now func() time.Time) *openAI {
	if transport == nil {
		if t, ok := http.DefaultTransport.(*http.Transport); ok {
			t = t.Clone()
			t.MaxIdleConnsPerHost = 64
			transport = t
		}
	}
	client := &http.Client{
		Transport: bounded{transport},
		// A redirect would carry the request, and perhaps the key, elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	options := []option.RequestOption{option.WithBaseURL(m.BaseURL), option.WithHTTPClient(client), option.WithMaxRetries(0)}
	if key.Reveal() != "" {
		options = append(options, option.WithAPIKey(key.Reveal()))
	}
	return &openAI{openai.NewChatCompletionService(options...), openai.NewEmbeddingService(options...), transport, m.BaseURL, key, m.Key, m.Model, now}
}

func (o *openAI) Close() {
	if c, ok := o.transport.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// Ask sends the body as it stands: what was addressed is what is sent.
func (o *openAI) Ask(ctx context.Context, body []byte, embedding bool, key string) (inference.Answer, error) {
	var response *http.Response
	options := []option.RequestOption{option.WithRequestBody("application/json", body), option.WithHeader("Idempotency-Key", key), option.WithResponseInto(&response)}
	if embedding {
		r, err := o.embeddings.New(ctx, openai.EmbeddingNewParams{}, options...)
		if err != nil {
			return inference.Answer{}, o.failure(err, response)
		}
		return embeddingAnswer(r)
	}
	r, err := o.chat.New(ctx, openai.ChatCompletionNewParams{}, options...)
	if err != nil {
		return inference.Answer{}, o.failure(err, response)
	}
	return chatAnswer(r)
}

// chatAnswer takes a complete answer, and nothing else.
func chatAnswer(r *openai.ChatCompletion) (inference.Answer, error) {
	if len(r.Choices) == 0 {
		return inference.Answer{}, incomplete(fault.Transient, "the answer is empty")
	}
	choice := r.Choices[0]
	switch {
	case choice.FinishReason == "length":
		return inference.Answer{}, incomplete(fault.Permanent, "the answer was cut at its length limit; raise max_tokens or max_completion_tokens in params")
	case choice.FinishReason == "content_filter" || choice.Message.Refusal != "":
		return inference.Answer{}, incomplete(fault.Permanent, "the answer was refused by the provider's filter; look at the text, or use another model")
	case choice.FinishReason == "tool_calls" || choice.FinishReason == "function_call":
		return inference.Answer{}, incomplete(fault.Permanent, "the model called a tool instead of answering; remove tools from params")
	case choice.FinishReason != "stop":
		return inference.Answer{}, incomplete(fault.Transient, fmt.Sprintf("the answer isn't complete: finish_reason is %q", shorten(choice.FinishReason)))
	case strings.TrimSpace(choice.Message.Content) == "":
		return inference.Answer{}, incomplete(fault.Transient, "the answer is empty")
	}
	return inference.Answer{Text: choice.Message.Content, Model: r.Model, TokensIn: r.Usage.PromptTokens, TokensOut: r.Usage.CompletionTokens}, nil
}

func embeddingAnswer(r *openai.CreateEmbeddingResponse) (inference.Answer, error) {
	if len(r.Data) != 1 || len(r.Data[0].Embedding) == 0 {
		return inference.Answer{}, incomplete(fault.Transient, "the answer holds no vector")
	}
	v := make([]float32, len(r.Data[0].Embedding))
	for i, x := range r.Data[0].Embedding {
		v[i] = float32(x)
	}
	if _, err := DecodeVector(EncodeVector(v)); err != nil {
		return inference.Answer{}, incomplete(fault.Transient, err.Error())
	}
	return inference.Answer{Vector: v, Model: r.Model, TokensIn: r.Usage.PromptTokens}, nil
}

func incomplete(class fault.Class, text string) error {
	return &Failure{Err: fault.As(class, errors.New(text)), Ended: true}
}

// failure says what an error of the SDK means. The SDK's own errors aren't wrapped: they hold the request, key included.
func (o *openAI) failure(err error, response *http.Response) error {
	var api *openai.Error
	if errors.As(err, &api) {
		return o.refused(api)
	}
	var dial *net.OpError
	switch {
	case response != nil && response.StatusCode >= 300 && response.StatusCode < 400:
		return o.refused(&openai.Error{StatusCode: response.StatusCode})
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer from %s in time: %w", o.endpoint, context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("request to %s: %w", o.endpoint, context.Canceled)
	case errors.As(err, &dial) && dial.Op == "dial":
		return &Failure{Ended: true, Err: fault.As(fault.Unavailable, fmt.Errorf("%s can't be reached (%s); start the server, or correct base_url", o.endpoint, o.clean(dial.Err.Error())))}
	case errors.Is(err, errTooLarge):
		return &Failure{Ended: true, Err: fault.Permanentf("%s answered with more than %d MiB", o.endpoint, maxResponse>>20)}
	case isJSON(err) && response != nil && response.StatusCode < 300:
		return &Failure{Ended: true, Err: fault.As(fault.Unavailable, fmt.Errorf("%s answered with something else than JSON; correct base_url, which mostly ends in /v1", o.endpoint))}
	}
	// Cut off somewhere between sending and the end of the answer: in doubt.
	return fault.As(fault.Unavailable, fmt.Errorf("the connection to %s broke (%s); it's tried again", o.endpoint, o.clean(err.Error())))
}

func isJSON(err error) bool {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	return errors.As(err, &syntax) || errors.As(err, &typ) || strings.Contains(err.Error(), "content-type")
}

// refused says what a status means. Nothing of the server's text is shown for refused keys, since it may repeat them.
func (o *openAI) refused(e *openai.Error) *Failure {
	f := &Failure{Ended: true}
	says := ""
	if m := shorten(o.clean(e.Message)); m != "" {
		says = " (" + m + ")"
	}
	unavailable := func(format string, args ...any) {
		f.Err = fault.As(fault.Unavailable, fmt.Errorf(format, args...))
	}
	switch code := e.StatusCode; {
	case code == http.StatusUnauthorized || code == http.StatusForbidden:
		unavailable("%s refuses the key (HTTP %d): %s", o.endpoint, code, o.whatToSet())
	case code == http.StatusPaymentRequired || e.Code == "insufficient_quota":
		unavailable("%s asks for payment (HTTP %d): the account's quota is used up; raise it there", o.endpoint, code)
	case code == http.StatusNotFound && (e.Code == "model_not_found" || e.Message == "" || strings.Contains(strings.ToLower(e.Message), "model")):
		// No record is to blame for an address or a model that doesn't exist.
		unavailable("%s knows no model %q (HTTP 404)%s: correct base_url or model", o.endpoint, o.model, says)
	case code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable:
		f.After = retryAfter(e.Response, o.now())
		unavailable("%s is overloaded (HTTP %d)%s; it's tried again", o.endpoint, code, says)
	case code == http.StatusRequestTimeout || code == http.StatusBadGateway || code == http.StatusGatewayTimeout:
		f.Ended = false // a gateway gave up; the server behind it may not have
		unavailable("%s is out of reach behind its gateway (HTTP %d)%s; it's tried again", o.endpoint, code, says)
	case code >= 500 || code == http.StatusConflict || code == http.StatusTooEarly:
		f.After = retryAfter(e.Response, o.now())
		unavailable("%s failed (HTTP %d)%s; it's tried again", o.endpoint, code, says)
	case code < 400:
		unavailable("%s answered with HTTP %d; correct base_url, since redirects aren't followed", o.endpoint, code)
	default:
		f.Err = fault.Permanentf("%s refuses the request (HTTP %d)%s", o.endpoint, code, says)
	}
	return f
}

func (o *openAI) whatToSet() string {
	switch {
	case o.where.Env != "":
		return "set the environment variable " + o.where.Env + " to a key that it accepts"
	case o.where.File != "":
		return "write a key that it accepts into " + o.where.File
	}
	return "give the model a key with api_key: {env: NAME} in swarm.yaml, or set OPENAI_API_KEY"
}

// clean takes the key out of a text of others.
func (o *openAI) clean(s string) string {
	if k := o.key.Reveal(); k != "" {
		s = strings.ReplaceAll(s, k, "[secret]")
	}
	return s
}

// shorten keeps a server's text readable on one line.
func shorten(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	const most = 240
	if len(s) <= most {
		return s
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// retryAfter reads RFC 9110's Retry-After: seconds or a date.
func retryAfter(r *http.Response, now time.Time) time.Duration {
	if r == nil {
		return 0
	}
	text := strings.TrimSpace(r.Header.Get("Retry-After"))
	if n, err := strconv.Atoi(text); err == nil && n > 0 {
		return time.Duration(min(n, int(maxAfter/time.Second))) * time.Second
	}
	if t, err := http.ParseTime(text); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

var errTooLarge = errors.New("response too large")

// bounded ends a response that is larger than any answer.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	resp.Body = &boundedBody{resp.Body, maxResponse}
	return resp, nil
}

type boundedBody struct {
	io.ReadCloser
	left int
}

func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
