package topics

import (
	"context"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// busy counts how many steps of a subject run at once, over all workers.
type busy struct {
	mu   sync.Mutex
	now  map[string]int
	most int
}

func (b *busy) enter(subject string) (leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.now == nil {
		b.now = map[string]int{}
	}
	b.now[subject]++
	b.most = max(b.most, b.now[subject])
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.now[subject]--
	}
}

// K1: events v1 and v2 of order-1 stand in partition 4 of 6 and are slow; the topic grows to 8, and v3 goes to partition 6,
// where it's read first. It's applied third nevertheless, and no two workers are at order-1 at once.
func TestK1TopicGrowsWhileKeysAreLive(t *testing.T) {
	onBoth(t, func(p *pair) {
		in := p.topic("in", 6)
		release := make(chan struct{})
		var at busy
		agent := engine.Agent{Name: p.name + ".r", Reads: []string{in}, Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
			defer at.enter(e.Subject)()
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
			p.note("r", e, s)
			return nil
		}}
		e1, _ := p.run(p.options("w1"), agent)
		e2, _ := p.run(p.options("w2"), agent)
		p.produce(numbered(in, "order-1", 1, 2)...)
		p.until("v1 runs", func() bool { return e1.Status()[0].Running+e2.Status()[0].Running == 1 })
		p.grow(in, 8)
		later := newClient(p)
		defer later.Close()
		v3 := later.ProduceSync(context.Background(), numbered(in, "order-1", 3, 3)...)
		check(p.t, v3.FirstErr())
		if got := v3[0].Record.Partition; got != 6 {
			p.t.Fatalf("v3 went to partition %d", got)
		}
		p.until("v3 is read, and passed over", func() bool { return p.counters(agent.Name).Misrouted == 1 })
		if ids := p.done("r"); len(ids) != 0 {
			p.t.Fatalf("handled before v1: %v", ids)
		}
		close(release)
		p.until("all three are handled", func() bool { return len(p.done("r")) >= 3 })
		p.settle(e1)
		if ids := p.done("r"); !slices.Equal(ids, []string{"order-1-v001", "order-1-v002", "order-1-v003"}) {
			p.t.Errorf("applied: %v", ids)
		}
		if at.most != 1 {
			p.t.Errorf("%d steps of order-1 ran at once", at.most)
		}
		if c := p.counters(agent.Name); c != (ledger.Counters{Applied: 3, Misrouted: 1}) {
			p.t.Errorf("counters: %+v", c)
		}
		if text := p.told(engine.NoticeMisrouted); !strings.Contains(text, "stand where their keys don't lead") {
			p.t.Errorf("people are told %q", text)
		}
	})
}

// K1, later: after a restart, and for what agents themselves emit, keys still lead where they led when there were six
// partitions.
func TestK1RouteOutlivesRestartsAndIsTheEmittersToo(t *testing.T) {
	onBoth(t, func(p *pair) {
		in, out := p.topic("in", 6), p.topic("out", 6)
		agent := engine.Agent{Name: p.name + ".r", Reads: []string{in}, Emits: []string{out}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			p.note("r", e, s)
			s.Emit(event.New("Next", e.Subject, nil))
			return nil
		}}
		last := p.noter("last", out)
		e, stop := p.run(p.options("w"), agent, last)
		p.produce(numbered(in, "order-1", 1, 2)...)
		p.settle(e)
		stop()
		p.grow(in, 8)
		p.grow(out, 8)
		later := newClient(p)
		defer later.Close()
		check(p.t, later.ProduceSync(context.Background(), numbered(in, "order-1", 3, 4)...).FirstErr())
		e, _ = p.run(p.options("w"), agent, last)
		p.until("all are handled", func() bool { return len(p.done("last")) >= 4 })
		p.settle(e)
		if ids := p.done("r"); !slices.Equal(ids, []string{"order-1-v001", "order-1-v002", "order-1-v003", "order-1-v004"}) {
			p.t.Errorf("applied: %v", ids)
		}
		ranges, err := p.broker.Offsets(context.Background(), out)
		check(p.t, err)
		if ranges[4].End < 4 || ranges[6].End != 0 {
			p.t.Errorf("what was emitted stands at %v", ranges)
		}
		if c := p.counters(last.Name); c.Misrouted != 0 || c.Applied != 4 {
			p.t.Errorf("counters of the next agent: %+v", c)
		}
	})
}

// I1: a fleet of which half partitions as librdkafka does by default. All is handled once, in each producer's order within
// its keys, by where Java's default puts the keys; and people are told. Half of the records have no id but their place.
func TestI1MixedFleetIsForwardedAndTold(t *testing.T) {
	onBoth(t, func(p *pair) {
		in := p.topic("in", 6)
		var at busy
		agent := engine.Agent{Name: p.name + ".r", Reads: []string{in}, Handle: func(_ context.Context, e event.Event, s *engine.Step) error {
			defer at.enter(e.Subject)()
			p.note("r", e, s)
			return nil
		}}
		e, _ := p.run(p.options("w"), agent)
		crc, err := kgo.NewClient(kgo.SeedBrokers(p.seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
		check(p.t, err)
		defer crc.Close()
		const keys, each = 20, 10
		var named, bare []*kgo.Record
		wrong := atomic.Int64{}
		for n := range each {
			for k := range keys {
				key := fmt.Sprintf("key-%d", k)
				r := numbered(in, key, n, n)[0]
				r.Partition = int32(crc32.ChecksumIEEE([]byte(key)) % 6)
				named = append(named, r)
				bare = append(bare, &kgo.Record{Topic: in, Key: []byte(key), Partition: r.Partition, Value: fmt.Appendf(nil, `{"type":"T","payload":{"n":%d}}`, n)})
			}
		}
		check(p.t, crc.ProduceSync(context.Background(), named...).FirstErr())
		check(p.t, crc.ProduceSync(context.Background(), bare...).FirstErr())
		p.produce(numbered(in, "java", 1, 10)...)
		for _, r := range named {
			if r.Partition != leads(string(r.Key)) {
				wrong.Add(2)
			}
		}
		p.until("all are handled", func() bool { return len(p.done("r")) >= 2*keys*each+10 })
		p.settle(e)
		last, seen := map[string]string{}, map[string]bool{}
		for _, id := range p.done("r") {
			if seen[id] {
				p.t.Errorf("%s was handled twice", id)
			}
			seen[id] = true
			if subject, _, ok := strings.Cut(id, "-v"); ok {
				if id <= last[subject] {
					p.t.Errorf("%s came after %s", id, last[subject])
				}
				last[subject] = id
			}
		}
		c := p.counters(agent.Name)
		if len(seen) != 2*keys*each+10 || c.Misrouted != wrong.Load() || c.Applied != 2*keys*each+10 || c.Dead != 0 {
			p.t.Errorf("%d events, %d of them sent elsewhere; counters %+v", len(seen), wrong.Load(), c)
		}
		if text := p.told(engine.NoticeMisrouted); !strings.Contains(text, "partitioner=murmur2_random") {
			p.t.Errorf("people are told %q", text)
		}
		if s := e.Status(); s[0].Misrouted != wrong.Load() || s[len(s)-1].Name != engine.ForwardAgent {
			p.t.Errorf("status: %d misrouted, last agent %s", s[0].Misrouted, s[len(s)-1].Name)
		}
	})
}

// leads is where Java's default partitioner puts a key among six partitions.
func leads(key string) int32 {
	return int32(kgo.StickyKeyPartitioner(nil).ForTopic("").Partition(&kgo.Record{Key: []byte(key)}, 6))
}

// In a fleet that partitions alike nothing is read twice: the forwarding agent takes no lease.
func TestNothingIsForwardedWithoutReason(t *testing.T) {
	onBoth(t, func(p *pair) {
		in := p.topic("in", 6)
		e, _ := p.run(p.options("w"), p.noter("r", in))
		for k := range 30 {
			p.produce(numbered(in, fmt.Sprintf("key-%d", k), 1, 3)...)
		}
		p.settle(e)
		leases, err := p.ledger.Leases(context.Background(), engine.ForwardAgent)
		check(p.t, err)
		if len(leases) != 0 || len(e.Status()) != 1 || len(p.done("r")) != 90 {
			p.t.Errorf("%d leases of the forwarding agent, %d agents, %d effects", len(leases), len(e.Status()), len(p.done("r")))
		}
	})
}

// What agents emit without a key goes to all partitions by turns, soon also to those that a topic has grown by.
func TestKeylessEventsGoToNewPartitionsToo(t *testing.T) {
	onBoth(t, func(p *pair) {
		in, out := p.topic("in", 2), p.topic("out", 3)
		agent := engine.Agent{Name: p.name + ".r", Reads: []string{in}, Emits: []string{out}, Handle: func(_ context.Context, _ event.Event, s *engine.Step) error {
			s.Emit(event.New("Next", "", nil))
			return nil
		}}
		e, _ := p.run(p.options("w"), agent)
		keyless := func(from, to int) (all []*kgo.Record) {
			for i := from; i <= to; i++ {
				r := named(in, "", fmt.Sprintf("n-%03d", i))
				r.Key = nil
				all = append(all, r)
			}
			return all
		}
		p.produce(keyless(1, 30)...)
		p.settle(e)
		p.grow(out, 5)
		p.until("it's noticed", func() bool { return p.told(engine.NoticeTopic) != "" })
		p.produce(keyless(31, 90)...)
		began := time.Now()
		p.until("all is published", func() bool {
			ranges, err := p.broker.Offsets(context.Background(), out)
			check(p.t, err)
			n := int64(0)
			for _, r := range ranges {
				n += r.End
			}
			return n == 90 && ranges[3].End > 0 && ranges[4].End > 0
		})
		p.t.Log("published after", time.Since(began))
	})
}
