package fieldcases

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// P1: values that aren't UTF-8, as CloudEvents of both modes and as what other agents write. They're dead letters with
// the same bytes, and nothing of them is stored otherwise.
func TestP1InvalidUTF8(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		s := start(t, at, one, nil, noter("r", "in"))
		var sent []*kgo.Record
		for i, value := range []string{"7b2261223a22fffe227d", hex.EncodeToString([]byte("{\"a\":\"caf\xe9\"}")), "7b2261223a22fefe227d"} {
			b, err := hex.DecodeString(value)
			check(t, err)
			sent = append(sent, cloudEvent("in", fmt.Sprintf("binary-%d", i), fmt.Sprint(i), asJSON, b),
				&kgo.Record{Topic: "in", Key: fmt.Appendf(nil, "structured-%d", i), Value: slices.Concat([]byte(`{"specversion":"1.0","id":"1","source":"s","type":"t","data":`), b, []byte("}")),
					Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}}},
				&kgo.Record{Topic: "in", Key: fmt.Appendf(nil, "foreign-%d", i), Value: slices.Concat([]byte(`{"type":"t","payload":`), b, []byte("}"))})
		}
		s.produce(sent...)
		good := cloudEvent("in", "k", "good", asJSON, []byte(`{"a":"café"}`))
		s.produce(good)
		s.settle()
		if c := s.counters("r"); c != (ledger.Counters{Applied: 1, Dead: int64(len(sent))}) {
			t.Errorf("counters: %+v", c)
		}
		letters := map[string][]byte{}
		for _, r := range s.dead("in") {
			letters[string(r.Key)] = r.Value
			if !strings.Contains(header(r, engine.HeaderDeadReason), "UTF-8") {
				t.Errorf("%s is dead since %q", r.Key, header(r, engine.HeaderDeadReason))
			}
		}
		for _, r := range sent {
			if got := letters[string(r.Key)]; !bytes.Equal(got, r.Value) {
				t.Errorf("%s was %x and is %x in the dead letters", r.Key, r.Value, got)
			}
		}
		if rows := s.rows(); len(rows) != 1 || rows[0].body != `{"a":"café"}` {
			t.Errorf("stored is %q", rows)
		}
	})
}

// P2: what a JSON parser takes and a text column doesn't. Each is one dead letter at its first attempt, its neighbours
// commit, and a backslash that is text stays text.
func TestP2SurrogatesAndNul(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		reader := engine.Agent{Name: "r", Reads: []string{"in"}, Setup: notes, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			var data struct{ A string }
			if err := json.Unmarshal(e.Data, &data); err != nil {
				return err
			}
			note(s, e, data.A) // a text column
			return nil
		}}
		s := start(t, at, one, nil, reader)
		bad := map[string]string{
			"high":     `{"a":"\ud83d"}`,
			"low":      `{"a":"\udc59\ud835\udc5e2"}`,
			"nul":      `{"a":"x\u0000y"}`,
			"nul-byte": "{\"a\":\"x\x00y\"}",
		}
		good := map[string]string{`x\u0000y`: `{"a":"x\\u0000y"}`, "😀": `{"a":"\ud83d\ude00"}`, "plain": `{"a":"plain"}`}
		var batch []*kgo.Record
		for key, value := range bad {
			batch = append(batch, cloudEvent("in", key, key, asJSON, []byte(value)))
		}
		for a, value := range good {
			batch = append(batch, cloudEvent("in", "good "+a, a, asJSON, []byte(value)))
		}
		s.produce(batch...)
		s.settle()
		if c := s.counters("r"); c != (ledger.Counters{Applied: int64(len(good)), Dead: int64(len(bad))}) {
			t.Errorf("counters: %+v", c)
		}
		for _, r := range s.rows() {
			if good[r.body] == "" {
				t.Errorf("stored is %q", r.body)
			}
			delete(good, r.body)
		}
		if len(good) > 0 {
			t.Errorf("not stored: %v", good)
		}
		for _, r := range s.dead("in") {
			if string(r.Value) != bad[string(r.Key)] {
				t.Errorf("%s is %q in the dead letters", r.Key, r.Value)
			}
			if header(r, engine.HeaderDeadAttempts) != "1" || header(r, engine.HeaderDeadClass) != "permanent" {
				t.Errorf("%s died after %s attempts, as %s: %s", r.Key, header(r, engine.HeaderDeadAttempts), header(r, engine.HeaderDeadClass), header(r, engine.HeaderDeadReason))
			}
		}
	})
}

// P4: integers above 2^53 keep their digits from a foreign client through an agent's data, its table, what it emits and
// the dead letters; and two that a float would make equal stay two, also where they're all that tells events apart.
func TestP4BigIntegers(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		values := []string{`{"id":9007199254740993}`, `{"id":9007199254740992}`, `{"some":327267367867168100000}`}
		forward := engine.Agent{Name: "first", Reads: []string{"in"}, Emits: []string{"out"}, Setup: notes, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			note(s, e, string(e.Data))
			s.Emit(event.New("ForwardedEvent", e.Subject, json.RawMessage(e.Data)))
			return nil
		}}
		strict := engine.Agent{Name: "second", Reads: []string{"out"}, OnDead: engine.Skip, Setup: notes, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			var data struct {
				ID   int64 // 327267367867168100000 doesn't fit into any
				Some int64
			}
			if err := e.Decode(&data); err != nil {
				return fmt.Errorf("its schema wants an integer of 64 bits: %w", err)
			}
			note(s, e, fmt.Sprint(data.ID))
			return nil
		}}
		strict.Limits.Attempts = 1
		s := start(t, at, map[string]int32{"in": 1, "out": 1}, nil, forward, strict)
		for i, v := range values {
			s.produce(cloudEvent("in", "k", fmt.Sprint(i), asJSON, []byte(v)))
		}
		s.settle()
		var stored []string
		for _, r := range s.rows() {
			stored = append(stored, r.body)
		}
		slices.Sort(stored)
		want := append([]string{"9007199254740992", "9007199254740993"}, values...)
		slices.Sort(want)
		if !slices.Equal(stored, want) {
			t.Errorf("stored are %q, expected %q", stored, want)
		}
		var emitted []string
		for _, r := range s.held("out") {
			emitted = append(emitted, string(r.Value))
		}
		if !slices.Equal(emitted, values) {
			t.Errorf("emitted are %q", emitted)
		}
		dead := s.dead("out")
		if len(dead) != 1 || string(dead[0].Value) != values[2] {
			t.Errorf("%d dead letters of what doesn't fit: %v", len(dead), dead)
		}

		// Under one id they are two events, and neither is taken for a copy of the other.
		s.produce(cloudEvent("in", "k", "same", asJSON, []byte(values[0])), cloudEvent("in", "k", "same", asJSON, []byte(values[1])),
			cloudEvent("in", "k", "same", asJSON, []byte(values[0])))
		// As keys that foreign agents write they are two aggregates.
		for _, id := range []string{"9007199254740993", "9007199254740992"} {
			s.produce(&kgo.Record{Topic: "in", Value: []byte(`{"type":"TaskStartedEvent","payload":{"taskId":` + id + `}}`)})
		}
		s.settle()
		if c := s.counters("first"); c != (ledger.Counters{Applied: 6, Duplicate: 1, Dead: 1}) {
			t.Errorf("counters: %+v", c)
		}
		subjects := map[string]bool{}
		for _, r := range s.rows() {
			subjects[r.subject] = true
		}
		if !subjects["9007199254740993"] || !subjects["9007199254740992"] {
			t.Errorf("subjects: %v", subjects)
		}
	})
}

// T5: ten events in flight at once, of which the fourth has a text that no column takes. Nine commit, the fourth is dead
// with its own cause, once, and nothing is replayed.
func TestT5OneBadRowInABatch(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		var together sync.WaitGroup
		together.Add(10)
		var mu sync.Mutex
		runs := map[string]int{}
		agent := engine.Agent{Name: "r", Reads: []string{"in"}, Setup: notes, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			mu.Lock()
			runs[e.ID]++
			first := runs[e.ID] == 1
			mu.Unlock()
			if first {
				together.Done()
				together.Wait() // so that they're ready for one commit
			}
			text := "fine"
			if e.ID == "003" {
				text = "x\x00y"
			}
			note(s, e, text)
			return nil
		}}
		s := start(t, at, one, nil, agent)
		s.produce(records("in", 10)...)
		s.settle()
		if c := s.counters("r"); c != (ledger.Counters{Applied: 9, Dead: 1}) {
			t.Errorf("counters: %+v", c)
		}
		if rows := s.rows(); len(rows) != 9 || strings.Contains(ids(rows), "003") {
			t.Errorf("effects: %s", ids(rows))
		}
		dead := s.dead("in")
		if len(dead) != 1 || header(dead[0], "ce_id") != "003" || !regexp.MustCompile(`NUL|0x00`).MatchString(header(dead[0], engine.HeaderDeadReason)) {
			t.Errorf("dead letters: %v", dead)
		}
		for id, n := range runs {
			if n != 1 {
				t.Errorf("%s was handled %d times", id, n)
			}
		}
	})
}
