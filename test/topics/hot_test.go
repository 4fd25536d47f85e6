package topics

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/salt"
	"github.com/swarmlog/swarmlog/ledger"
)

// K6: nine of ten events are of one aggregate, and the topic that they're emitted to is declared commutative. They spread
// over its partitions, each is handled once, and who handles them sees the aggregate's own name, also in records that are
// named by their key alone.
func TestK6HotKeyOfACommutativeTopicIsSpread(t *testing.T) {
	onBoth(t, func(p *pair) {
		in, clicks := p.topic("in", 2), p.topic("clicks", 6)
		o := p.options("w")
		o.Salts = salt.New(nil, salt.Options{Window: 100}, clicks)
		emitter := engine.Agent{Name: p.name + ".emitter", Reads: []string{in}, Emits: []string{clicks},
			Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
				var d struct{ Of string }
				if err := e.Decode(&d); err != nil {
					return err
				}
				s.Emit(event.New("Clicked", d.Of, nil))
				return nil
			}}
		counter := engine.Agent{Name: p.name + ".counter", Reads: []string{clicks}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			s.Tx(func(ctx context.Context, tx ledger.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO "+p.table()+" (agent, subject, id) VALUES ('counter', $1, $2)", e.Subject, e.ID)
				return err
			})
			return nil
		}}
		e, _ := p.run(o, emitter, counter)
		const n = 1000
		var all []*kgo.Record
		for i := range n {
			of := "tenant#a"
			if i%10 == 0 {
				of = fmt.Sprintf("tenant-%d", i)
			}
			r := named(in, fmt.Sprintf("source-%d", i), fmt.Sprintf("n-%04d", i))
			value, err := json.Marshal(map[string]string{"of": of})
			check(p.t, err)
			r.Value = value
			all = append(all, r)
		}
		p.produce(all...)
		p.until("all are counted", func() bool { return len(p.done("counter")) >= n })
		// One of the older kind, whose key is all that names its aggregate.
		p.produce(&kgo.Record{Topic: clicks, Key: []byte("tenant%23a"), Value: []byte(`{"type":"Clicked","payload":{}}`)})
		p.until("the last one is counted", func() bool { return len(p.done("counter")) > n })
		p.settle(e)
		of, hot := map[string]int{}, map[int32]int{}
		p.each("subject", "counter", func(subject string) { of[subject]++ })
		if of["tenant#a"] != n*9/10+1 || len(of) != n/10+1 {
			p.t.Errorf("%d aggregates, the hot one with %d events", len(of), of["tenant#a"])
		}
		check(p.t, broker.ReadAll(context.Background(), p.broker, clicks, func(r broker.Record) error {
			if string(o.Salts.ID(clicks, r.Key)) == "tenant#a" {
				hot[r.Partition]++
			}
			return nil
		}))
		for part := range int32(6) {
			if hot[part] < 90 {
				p.t.Errorf("the hot key's records stand so: %v", hot)
				break
			}
		}
		if c := p.counters(counter.Name); c != (ledger.Counters{Applied: n + 1}) {
			p.t.Errorf("counters: %+v", c)
		}
	})
}
