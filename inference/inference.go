// Package inference owns what a call to a model is: the request, its address
// and the answer. A step asks with Step.Infer; the answer is recorded before it
// is used, so that it's never paid for twice. It does no I/O.
package inference

import "encoding/json"

// Request is one call to a model, chat or embedding. Only what is set is sent, and all that is sent is part of its address.
type Request struct {
	// Model names an entry of models: in swarm.yaml; "" is the entry called default.
	Model string
	// System and Messages make a chat.
	System   string
	Messages []Message
	// Input makes an embedding instead: the text to embed.
	Input string
	// Params are further parameters as the provider names them, such as temperature or max_tokens.
	Params map[string]json.RawMessage
}

// Message is one turn of a chat.
type Message struct {
	Role    string `json:"role"` // "user" or "assistant"
	Content string `json:"content"`
}

// Answer is a complete answer.
type Answer struct {
	Text      string    `json:"text,omitempty"`
	Vector    []float32 `json:"vector,omitempty"`
	Model     string    `json:"model"` // the version that answered, as the provider reports it
	TokensIn  int64     `json:"tokens_in"`
	TokensOut int64     `json:"tokens_out"`
	Reused    bool      `json:"-"` // answered from a record or the cache
}
