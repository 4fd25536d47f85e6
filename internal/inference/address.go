package inference

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/swarmlog/swarmlog/inference"
	"github.com/swarmlog/swarmlog/internal/canonical"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// addressVersion is part of every address: a change of how addresses are made is a new version, so that no answer
// is found under an address that means something else.
const addressVersion = "1"

// prompt is a request as it's sent, with its address.
type prompt struct {
	embedding bool
	body      []byte // canonical JSON, the same bytes on every attempt
	address   [32]byte
}

// taken are the names that a request sets itself.
var taken = []string{"model", "messages", "input", "stream", "stream_options", "n"}

// newPrompt makes the body that is sent and the address: SHA-256 over the canonical JSON of all that changes the
// answer, in which the lexemes of numbers stay verbatim. What isn't set isn't in it, so an omitted temperature isn't
// temperature 0 and null is neither; a parameter that nobody knows yet changes it too.
func newPrompt(m config.Model, tenant string, req inference.Request) (prompt, error) {
	var p prompt
	if (req.Input == "") == (len(req.Messages) == 0) {
		return p, fault.Permanentf("ask model %s: a request needs either messages or an input; set one of them", m.Name)
	}
	p.embedding = req.Input != ""
	body := map[string]any{"model": m.Model}
	for _, params := range []map[string]json.RawMessage{m.Params, req.Params} { // the request's win
		for name, value := range params {
			if slices.Contains(taken, name) {
				return p, fault.Permanentf("ask model %s: params hold %q, which the request sets itself; remove it", m.Name, name)
			}
			body[name] = value
		}
	}
	if p.embedding {
		body["input"] = req.Input
	} else {
		body["messages"] = messages(req)
	}
	if err := checkText(req); err != nil {
		return p, fault.Permanentf("ask model %s: %w", m.Name, err)
	}
	var err error
	if p.body, err = canonicalJSON(body); err != nil {
		return p, fault.Permanentf("ask model %s: write the request: %w", m.Name, err)
	}
	described, err := canonicalJSON(map[string]any{
		"address": addressVersion, "provider": m.Provider, "endpoint": m.BaseURL, "version": m.Version, "tenant": tenant,
		"embedding": p.embedding, "request": json.RawMessage(p.body),
	})
	if err != nil {
		return p, fault.Permanentf("ask model %s: make the address: %w", m.Name, err)
	}
	p.address = sha256.Sum256(described)
	return p, nil
}

func messages(req inference.Request) []inference.Message {
	if req.System == "" {
		return req.Messages
	}
	return append([]inference.Message{{Role: "system", Content: req.System}}, req.Messages...)
}

// checkText refuses what encoding/json would rewrite: two different texts must not get one address.
func checkText(req inference.Request) error {
	texts := []string{req.System, req.Input}
	for _, m := range req.Messages {
		texts = append(texts, m.Role, m.Content)
	}
	for _, t := range texts {
		if !utf8.ValidString(t) {
			return fmt.Errorf("the text isn't valid UTF-8; decode it before it's sent")
		}
	}
	return nil
}

func canonicalJSON(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return canonical.JSON(b)
}

// idempotencyKey is the same on every attempt. With reuse on, equal requests are one call, so the address makes it;
// else the event's call does, together with the address, since a server refuses a key that comes with another body.
func idempotencyKey(c ledger.Call) string {
	h := sha256.New()
	write := func(parts ...string) {
		for _, p := range parts {
			_, _ = fmt.Fprintf(h, "%d:%s", len(p), p) // a hash never fails to write
		}
	}
	write("swarmlog", addressVersion, string(c.Address[:]))
	if !c.Reuse {
		write(c.Fence.Group, c.Source, c.EventID, c.Name)
	}
	return "swarmlog-" + hex.EncodeToString(h.Sum(nil)[:20])
}
