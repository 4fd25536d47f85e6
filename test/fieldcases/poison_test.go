package fieldcases

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// P7: no value is a deletion, which is for those who ask for it; an empty one and the word null are malformed; none of
// them stops an agent. Without a key there's no aggregate.
func TestP7NullEmptyAndTheWordNull(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		agent := engine.Agent{Name: "r", Reads: []string{"in"}, Setup: notes, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			var data struct{ A int }
			if err := e.Decode(&data); err != nil {
				return err
			}
			note(s, e, string(e.Data))
			return nil
		}}
		s := start(t, at, one, nil, agent)
		sent := []*kgo.Record{
			{Topic: "in", Key: []byte("k"), Value: nil},
			{Topic: "in", Key: []byte("k2"), Value: []byte{}},
			{Topic: "in", Key: []byte("k3"), Value: []byte("null")},
			{Topic: "in", Value: []byte("{}")},
			{Topic: "in"},
		}
		s.produce(sent...)
		s.produce(cloudEvent("in", "k", "after", asJSON, []byte(`{"a":1}`)))
		s.settle()
		letters := map[string]string{}
		for _, r := range s.dead("in") {
			letters[string(r.Key)+"="+hex.EncodeToString(r.Value)] = header(r, engine.HeaderDeadReason)
		}
		for _, key := range []string{"k2=", "k3=6e756c6c", "=7b7d"} { // {} has no type: it's no event either
			if letters[key] == "" {
				t.Errorf("%s isn't among the dead letters: %v", key, letters)
			}
		}
		if c := s.counters("r"); c != (ledger.Counters{Applied: 1, Ignored: 2, Dead: 3}) {
			t.Errorf("counters %+v; dead letters %v", c, letters)
		}
		if rows := s.rows(); len(rows) != 1 || rows[0].id != "after" {
			t.Errorf("effects: %v", rows)
		}
	})
}

// P7, the last line: an event without a key can't go to a compacted topic. It dies at once, with what to do, and what has
// a key goes on.
func TestP7KeylessToACompactedTopic(t *testing.T) {
	t.Parallel()
	agent := engine.Agent{Name: "r", Reads: []string{"in"}, Emits: []string{"out"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
		s.Emit(event.New("DoneEvent", "", nil))
		return nil
	}}
	s := start(t, newPair(t), one, func(c *app.Config) {
		c.Topics = append(c.Topics, broker.TopicSpec{Name: "out", Partitions: 1, Config: map[string]string{"cleanup.policy": "compact"}})
	}, agent)
	s.produce(cloudEvent("in", "", "keyless", asJSON, []byte(`{}`)), cloudEvent("in", "k", "keyed", asJSON, []byte(`{}`)))
	s.settle()
	dead := s.dead("in")
	if len(dead) != 1 || header(dead[0], "ce_id") != "keyless" || header(dead[0], engine.HeaderDeadAttempts) != "1" ||
		!strings.Contains(header(dead[0], engine.HeaderDeadReason), "give the event a subject") {
		t.Errorf("dead letters: %v", dead)
	}
	if out := s.held("out"); len(out) != 1 {
		t.Errorf("%d events were published", len(out))
	}
}

// P9: an id comes again with the same content in other spelling, and with other content.
func TestP9SameIDOtherPayload(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		s := start(t, at, one, nil, noter("r", "in"))
		for _, value := range []string{`{"id":"e1","amount":10}`, `{"amount":10,"id":"e1"}`, `{"id":"e1","amount":99}`} {
			s.produce(cloudEvent("in", "account", "e1", asJSON, []byte(value)))
		}
		s.produce(cloudEvent("in", "account", "e2", asJSON, []byte(`{"amount":1}`)))
		s.settle()
		if c := s.counters("r"); c != (ledger.Counters{Applied: 2, Duplicate: 1, Dead: 1}) {
			t.Errorf("counters: %+v", c)
		}
		dead := s.dead("in")
		if len(dead) != 1 || string(dead[0].Value) != `{"id":"e1","amount":99}` || strings.Count(header(dead[0], engine.HeaderDeadReason), "digest") < 1 {
			t.Errorf("dead letters: %v", dead)
		}
		if rows := s.rows(); ids(rows) != "e1 e2" || rows[0].body != `{"id":"e1","amount":10}` {
			t.Errorf("effects: %v", rows)
		}
	})
}

// P12: one emitted event is too large for its topic. It fails alone, for good; the small ones of the same commit arrive
// once, in order.
func TestP12OversizeFailsAlone(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		agent := engine.Agent{Name: "r", Reads: []string{"in"}, Emits: []string{"out"}, OnDead: engine.Skip,
			Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
				size := 100
				if e.ID == "000" {
					size = 2500
				}
				s.Emit(event.New("SizedEvent", "one", strings.Repeat("x", size)))
				return nil
			}}
		s := start(t, at, one, func(c *app.Config) {
			c.Topics = append(c.Topics, broker.TopicSpec{Name: "out", Partitions: 1, Config: map[string]string{"max.message.bytes": "2000"}})
		}, agent)
		s.produce(records("in", 4)...)
		s.settle()
		var out []string
		for _, r := range s.held("out") {
			out = append(out, string(r.Key))
		}
		if len(out) != 3 {
			t.Errorf("%d events were emitted, expected 3", len(out))
		}
		dead := s.dead("in")
		if len(dead) != 1 || header(dead[0], "ce_id") != "000" || header(dead[0], engine.HeaderDeadAttempts) != "1" {
			t.Errorf("dead letters: %v", dead)
		}
	})
}

// D1: what dies is nearly as large as a record may be, and its reason is long. The letter is cut down to what fits and
// says so; other aggregates flow.
func TestD1LetterThatIsTooLarge(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		agent := engine.Agent{Name: "r", Reads: []string{"in"}, Setup: notes, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			if e.ID == "large" {
				return fault.As(fault.Permanent, errors.New(strings.Repeat("long ", 13<<10)))
			}
			note(s, e, nil)
			return nil
		}}
		const limit = 20000
		s := start(t, at, nil, func(c *app.Config) {
			for _, name := range []string{"in", engine.DeadTopic("in")} {
				c.Topics = append(c.Topics, broker.TopicSpec{Name: name, Partitions: 1, Config: map[string]string{"max.message.bytes": fmt.Sprint(limit)}})
			}
		}, agent)
		s.produce(cloudEvent("in", "k", "large", "text/plain", bytes.Repeat([]byte("x"), limit-350)), cloudEvent("in", "other", "small", asJSON, []byte(`{}`)))
		s.settle()
		dead := s.dead("in")
		if len(dead) != 1 {
			t.Fatalf("%d dead letters", len(dead))
		}
		if header(dead[0], engine.HeaderDeadOmitted) == "" || len(header(dead[0], engine.HeaderDeadReason)) > 4<<10 || header(dead[0], engine.HeaderDeadOffset) != "0" {
			t.Errorf("the letter: %v", dead[0].Headers)
		}
		if rows := s.rows(); ids(rows) != "small" {
			t.Errorf("effects: %s", ids(rows))
		}
		if c := s.counters("r"); c != (ledger.Counters{Applied: 1, Dead: 1}) {
			t.Errorf("counters: %+v", c)
		}
	})
}

// D5: an aggregate's first event fails twice and then succeeds, another's dies: what follows each waits, and others don't.
func TestD5LaterEventsDoNotPassAFailedOne(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		var mu sync.Mutex
		tries := map[string]int{}
		agent := engine.Agent{Name: "r", Reads: []string{"in"}, Setup: notes, Limits: engine.Limits{Backoff: 10 * time.Millisecond},
			Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
				mu.Lock()
				tries[e.ID]++
				n := tries[e.ID]
				mu.Unlock()
				switch {
				case e.ID == "K1" && n < 3:
					return errors.New("not yet")
				case e.ID == "D1":
					return fault.Permanentf("never")
				}
				note(s, e, nil)
				return nil
			}}
		s := start(t, at, one, nil, agent)
		var batch []*kgo.Record
		for _, id := range []string{"K1", "K2", "K3", "D1", "D2", "D3"} {
			batch = append(batch, cloudEvent("in", id[:1], id, asJSON, []byte(`{}`)))
		}
		for n := range 100 {
			batch = append(batch, cloudEvent("in", "L", fmt.Sprintf("L%02d", n), asJSON, []byte(`{}`)))
		}
		s.produce(batch...)
		s.settle()
		of := map[string][]string{}
		for _, r := range s.rows() {
			of[r.subject] = append(of[r.subject], r.id)
		}
		if got := strings.Join(of["K"], " "); got != "K1 K2 K3" {
			t.Errorf("K: %s", got)
		}
		if len(of["L"]) != 100 || of["D"] != nil {
			t.Errorf("L has %d effects, D %v", len(of["L"]), of["D"])
		}
		if c := s.counters("r"); c != (ledger.Counters{Applied: 103, Dead: 1, Waiting: 2}) {
			t.Errorf("counters: %+v", c)
		}
	})
}

// K6: one key has 9,000 records that take 50 ms each, and behind them in the same partition are 100 of other keys and 100
// without a key. Those are done long before the hot key is, which stays in order; memory holds a few thousand records.
func TestK6HotKey(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		agent := noter("r", "in")
		handle := agent.Handle
		agent.Limits.Steps = 16
		agent.Handle = func(ctx context.Context, e event.Event, s *engine.Step) error {
			if e.Subject == "tenant-a" {
				select {
				case <-time.After(50 * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return handle(ctx, e, s)
		}
		s := start(t, at, one, nil, agent)
		var batch []*kgo.Record
		for n := range 9000 {
			batch = append(batch, cloudEvent("in", "tenant-a", fmt.Sprintf("a%04d", n), asJSON, []byte(`{}`)))
		}
		for n := range 100 {
			batch = append(batch, cloudEvent("in", fmt.Sprintf("key-%d", n), fmt.Sprintf("k%02d", n), asJSON, []byte(`{}`)),
				cloudEvent("in", "", fmt.Sprintf("n%02d", n), asJSON, []byte(`{}`)))
		}
		s.produce(batch...)
		var hot []string
		began := time.Now()
		until(t, "all others are done", func() bool {
			rest := 0
			hot = hot[:0]
			for _, r := range s.rows() {
				if r.subject == "tenant-a" {
					hot = append(hot, r.id)
				} else {
					rest++
				}
			}
			return rest == 200
		})
		// One after the other, 9,000 of the hot key take 450 s.
		if len(hot) > 600 {
			t.Errorf("the hot key had %d records done when the others were: they waited for it", len(hot))
		}
		t.Logf("the others were done after %s and %d records of the hot key", time.Since(began).Round(10*time.Millisecond), len(hot))
		// It goes on from the backlog, in order.
		until(t, "the hot key goes on", func() bool { return len(s.rows()) > 200+len(hot)+100 })
		next := 0
		for _, r := range s.rows() {
			if r.subject == "tenant-a" {
				if want := fmt.Sprintf("a%04d", next); r.id != want {
					t.Fatalf("%s came where %s should", r.id, want)
				}
				next++
			}
		}
	})
}
