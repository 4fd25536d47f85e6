package fieldcases

import (
	"context"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// I1, I2: what agents emit goes where the producers of Java, kafkajs and franz-go put the same key, and not where a
// client without the sign mask or with another hash would.
func TestI1I2EmittedKeysGoWhereOtherClientsPutThem(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		vectors := []struct {
			key              string
			count, partition int32
		}{
			{"TT0124", 15, 10}, {"354afe16-939a-4ea8-8e17-8bb0840b6886", 10, 4}, {"f562ac3b-2224-4e25-a0ab-56094e10c239", 10, 5},
			{"fd7af248-ce5c-46a5-93d7-1c0c9005b99d", 32, 26}, {"1468509572224", 6, 3}, {"order-1", 6, 4}, {"order-2", 6, 3},
			{"order-3", 6, 3}, {"order-42", 6, 0}, {"tenant-a", 12, 3}, {"café", 6, 0},
		}
		topics := map[string]int32{"in": 1}
		agent := engine.Agent{Name: "r", Reads: []string{"in"}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			for _, v := range vectors {
				s.EmitTo(at.topic(fmt.Sprint("out-", v.count)), event.New("KeyedEvent", v.key, nil))
			}
			return nil
		}}
		for _, v := range vectors {
			topics[fmt.Sprint("out-", v.count)] = v.count
		}
		for name := range topics {
			if name != "in" {
				agent.Emits = append(agent.Emits, name)
			}
		}
		s := start(t, at, topics, nil, agent)
		s.produce(records("in", 1)...)
		s.settle()
		for _, v := range vectors {
			topic := fmt.Sprint("out-", v.count)
			foreign := s.produce(&kgo.Record{Topic: topic, Key: []byte(v.key), Value: []byte("by another client")})[0]
			for _, r := range s.held(topic) {
				if string(r.Key) == v.key && r.Partition != v.partition {
					t.Errorf("%q went to partition %d of %d, expected %d", v.key, r.Partition, v.count, v.partition)
				}
			}
			if foreign.Partition != v.partition {
				t.Errorf("another client puts %q to partition %d of %d", v.key, foreign.Partition, v.count)
			}
		}
	})
}

// I4: records without a key, with an empty one, and with two spellings of one name. None stops an agent; without a
// key and with an empty one there's no aggregate; agents see a foreign subject as it was written, and what they emit has
// one spelling, and never an empty key.
func TestI4Keys(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, at *place) {
		const nfc, nfd = "caf\u00e9", "cafe\u0301"
		agent := engine.Agent{Name: "r", Reads: []string{"in"}, Emits: []string{"out"}, Setup: notes, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			note(s, e, nil)
			s.Emit(event.New("DoneEvent", e.Subject, nil))
			return nil
		}}
		s := start(t, at, map[string]int32{"in": 6, "out": 6}, nil, agent)
		for i, key := range [][]byte{nil, {}, []byte(nfc), []byte(nfd)} {
			r := cloudEvent("in", "", fmt.Sprint(i), asJSON, []byte(`{}`))
			r.Key = key
			s.produce(r)
		}
		emitted := cloudEvent("in", "", "4", asJSON, []byte(`{}`)) // a subject that isn't the key
		emitted.Headers = append(emitted.Headers, kgo.RecordHeader{Key: "ce_subject", Value: []byte(nfd)})
		s.produce(emitted)
		s.settle()
		if c := s.counters("r"); c != (ledger.Counters{Applied: 5}) {
			t.Errorf("counters: %+v", c)
		}
		for _, r := range s.rows() {
			want := map[string]string{"0": "", "1": "", "2": nfc, "3": nfd, "4": nfd}[r.id]
			if r.subject != want {
				t.Errorf("record %s is about %q, expected %q", r.id, r.subject, want)
			}
		}
		keyless := 0
		for _, r := range s.held("out") {
			switch {
			case r.Key == nil:
				keyless++
			case string(r.Key) != nfc || r.Partition != 0:
				t.Errorf("emitted with the key %q to partition %d", r.Key, r.Partition)
			}
		}
		if keyless != 2 {
			t.Errorf("%d events without a key were emitted, expected 2", keyless)
		}
	})
}
