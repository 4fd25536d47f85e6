package e2e

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

// models is a server that speaks OpenAI's interface, answers by the request alone, and remembers every call.
type models struct {
	*httptest.Server

	mu    sync.Mutex
	calls []*call
}

// call is one request, as the server saw it.
type call struct {
	key      string   // Idempotency-Key
	body     [32]byte // SHA-256
	begun    time.Time
	answered time.Time // zero: not
}

// startModels starts a server that takes from 5 to 20 ms for an answer.
func startModels(t testing.TB) *models {
	m := &models{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		m.answer(w, r, func(body []byte) (any, error) {
			var req struct {
				Model    string
				Messages []struct{ Role, Content string }
			}
			if err := json.Unmarshal(body, &req); err != nil || len(req.Messages) == 0 {
				return nil, fmt.Errorf("no chat: %w", err)
			}
			text := chatAnswer(req.Messages[len(req.Messages)-1].Content)
			return map[string]any{"id": "c", "object": "chat.completion", "created": 1, "model": req.Model + "-2026",
				"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": text}}},
				"usage":   map[string]any{"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}}, nil
		})
	})
	mux.HandleFunc("POST /v1/embeddings", func(w http.ResponseWriter, r *http.Request) {
		m.answer(w, r, func(body []byte) (any, error) {
			var req struct{ Model, Input string }
			if err := json.Unmarshal(body, &req); err != nil || req.Input == "" {
				return nil, fmt.Errorf("no embedding: %w", err)
			}
			return map[string]any{"object": "list", "model": req.Model + "-2026",
				"data":  []any{map[string]any{"object": "embedding", "index": 0, "embedding": vectorAnswer(req.Input)}},
				"usage": map[string]any{"prompt_tokens": 7, "total_tokens": 7}}, nil
		})
	})
	m.Server = httptest.NewServer(mux)
	t.Cleanup(m.Close)
	return m
}

// env makes a swarm use this server.
func (m *models) env() []string {
	return []string{"OPENAI_BASE_URL=" + m.URL + "/v1", "OPENAI_API_KEY=test", "OPENAI_MODEL=chat", "OPENAI_EMBEDDING_MODEL=vector"}
}

// chatAnswer tells by its words to what it is an answer.
func chatAnswer(text string) string {
	return "It says " + digest([]byte(text)) + ".\nTerms: one; two"
}

func vectorAnswer(text string) []float32 {
	sum := sha256.Sum256([]byte(text))
	vector := make([]float32, 16)
	for i := range vector {
		vector[i] = float32(int16(binary.BigEndian.Uint16(sum[2*i:]))) / 256
	}
	return vector
}

func (m *models) answer(w http.ResponseWriter, r *http.Request, respond func([]byte) (any, error)) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // it died while it asked, so nothing was asked
	}
	c := &call{key: r.Header.Get("Idempotency-Key"), body: sha256.Sum256(body), begun: time.Now()}
	m.mu.Lock()
	m.calls = append(m.calls, c)
	m.mu.Unlock()
	answer, err := respond(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	delay := time.NewTimer(5*time.Millisecond + time.Duration(c.body[0])*15*time.Millisecond/255)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-r.Context().Done():
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if json.NewEncoder(w).Encode(answer) != nil || http.NewResponseController(w).Flush() != nil {
		return
	}
	m.mu.Lock()
	c.answered = time.Now()
	m.mu.Unlock()
}

// seen are the calls until now.
func (m *models) seen() []call {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]call, len(m.calls))
	for i, c := range m.calls {
		all[i] = *c
	}
	return all
}

// distinct counts the different requests, and wants one idempotency key of each, and none of two.
func distinct(t testing.TB, calls []call) int {
	t.Helper()
	keyOf, bodyOf := map[[32]byte]string{}, map[string][32]byte{}
	for _, c := range calls {
		if c.key == "" {
			t.Errorf("request %x has no idempotency key", c.body[:6])
		}
		if k, ok := keyOf[c.body]; ok && k != c.key {
			t.Errorf("request %x came with the keys %s and %s", c.body[:6], k, c.key)
		}
		if b, ok := bodyOf[c.key]; ok && b != c.body {
			t.Errorf("key %s came with the requests %x and %x", c.key, b[:6], c.body[:6])
		}
		keyOf[c.body], bodyOf[c.key] = c.key, c.body
	}
	return len(keyOf)
}

// kill is what was in flight when a process was killed.
type kill struct {
	born, before time.Time // when the life began that it ended, and just before the signal
	over         time.Time // just before the next life
	pending      map[string]bool
}

// life are the calls of the life that a kill ended. One whose request lay in the socket when its sender died is read
// a moment later.
func (k kill) life(calls []call) []call {
	return slices.DeleteFunc(slices.Clone(calls), func(c call) bool { return c.begun.Before(k.born) || c.begun.After(k.over) })
}

// unanswered are the keys of calls that the server had begun and not answered.
func (k kill) unanswered(calls []call) map[string]bool {
	keys := map[string]bool{}
	for _, c := range calls {
		if c.answered.IsZero() || c.answered.After(k.before) {
			keys[c.key] = true
		}
	}
	return keys
}

// unrecorded are the keys of calls that the server had begun and the ledger not recorded: those in flight as the
// process sees it, the answers included that were on their way or waiting for their commit.
func (k kill) unrecorded(calls []call) map[string]bool {
	keys := map[string]bool{}
	for _, c := range calls {
		if k.pending[c.key] {
			keys[c.key] = true
		}
	}
	return keys
}

// checkCalls wants that a call was repeated only where a kill found it in flight.
func checkCalls(t testing.TB, calls []call, kills []kill) {
	t.Helper()
	n := distinct(t, calls)
	allowed := map[string]int{}
	unanswered, unrecorded := 0, 0
	var gaps []time.Duration // from an answer to the kill that lost it
	for _, k := range kills {
		life := k.life(calls)
		unanswered += len(k.unanswered(life))
		for _, c := range life {
			if k.pending[c.key] && !c.answered.IsZero() {
				gaps = append(gaps, max(0, k.before.Sub(c.answered)))
			}
		}
		for key := range k.unrecorded(life) {
			allowed[key]++
			unrecorded++
		}
	}
	counts := map[string]int{}
	for _, c := range calls {
		counts[c.key]++
	}
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		if counts[key] > 1+allowed[key] {
			t.Errorf("call %s was made %d times, and was in flight at %d kills", key, counts[key], allowed[key])
		}
	}
	if len(calls) > n+unrecorded {
		t.Errorf("%d calls, want at most %d distinct ones and %d in flight at kills", len(calls), n, unrecorded)
	}
	t.Logf("%d calls for %d distinct requests, %d repeated; in flight at %d kills: %d not answered by the server, %d not recorded by the ledger",
		len(calls), n, len(calls)-n, len(kills), unanswered, unrecorded)
	if len(gaps) > 0 {
		slices.Sort(gaps)
		t.Logf("%d answers were lost on their way into the ledger, given %s before the kill (median), %s (longest)", len(gaps), gaps[len(gaps)/2], gaps[len(gaps)-1])
	}
}
