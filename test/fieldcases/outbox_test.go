package fieldcases

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/fault"
	"github.com/swarmlog/swarmlog/ledger"
)

// refusing is a place whose brokers refuse writes to a topic (NOT_ENOUGH_REPLICAS), as real ones do when too few replicas
// are in sync, until mend is called. The ledger is real.
func refusing(t *testing.T, topic string) (at *place, mend func()) {
	t.Helper()
	at = newPair(t)
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	check(t, err)
	t.Cleanup(cluster.Close)
	at.Brokers = cluster.ListenAddrs()
	var mended atomic.Bool
	cluster.ControlKey(kmsg.Produce.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		req := r.(*kmsg.ProduceRequest)
		hit := false
		for _, rt := range req.Topics {
			name := rt.Topic
			if name == "" {
				name = cluster.TopicIDInfo(rt.TopicID).Topic
			}
			hit = hit || name == at.topic(topic)
		}
		if mended.Load() || !hit {
			return nil, nil, false
		}
		answer := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range req.Topics {
			at := kmsg.NewProduceResponseTopic()
			at.Topic, at.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				p := kmsg.NewProduceResponseTopicPartition()
				p.Partition, p.ErrorCode = rp.Partition, kerr.NotEnoughReplicas.Code
				at.Partitions = append(at.Partitions, p)
			}
			answer.Topics = append(answer.Topics, at)
		}
		return answer, nil, true
	})
	return at, func() { mended.Store(true) }
}

// waiting is how many rows the outboxes hold.
func (s *swarm) waiting() int64 {
	s.t.Helper()
	status, err := s.Look(context.Background())
	check(s.t, err)
	var n int64
	for _, a := range status.Agents {
		for _, p := range a.Partitions {
			n += p.Outbox
		}
	}
	return n
}

// T7 a: the brokers refuse what is published (NOT_ENOUGH_REPLICAS). The rows stay, over a restart too, and go out once in
// order when writes come through again. (T7 b, a kill between acknowledgement and deletion, is what proofs do all the time.)
func TestT7RefusedEventsStayInTheOutbox(t *testing.T) {
	t.Parallel()
	at, mend := refusing(t, "out")
	agent := noter("r", "in", "out")
	handle := agent.Handle
	agent.Handle = func(ctx context.Context, e event.Event, s *engine.Step) error {
		s.Emit(event.New("DoneEvent", "all", e.ID))
		return handle(ctx, e, s)
	}
	short := func(c *app.Config) { c.Drain = 500 * time.Millisecond }
	s := start(t, at, map[string]int32{"in": 1, "out": 1}, short, agent)
	s.produce(records("in", 10)...)
	until(t, "all effects are there", func() bool { return len(s.rows()) == 10 })
	until(t, "all events wait in the outbox", func() bool { return s.waiting() == 10 })
	s.stop()
	s = start(t, at, map[string]int32{"in": 1, "out": 1}, short, agent)
	until(t, "they wait still", func() bool { return s.waiting() == 10 })
	if c := s.counters("r"); c != (ledger.Counters{Applied: 10}) {
		t.Errorf("counters: %+v", c)
	}
	mend()
	s.settle()
	// One life of the producer was closed with records handed over: the brokers never had them.
	if got := s.held("out"); len(got) != 10 {
		t.Errorf("%d events were published", len(got))
	}
}

// D3: a dead letter can't be written. It's in the outbox from the commit that finishes its record, so it's neither lost
// nor said to be written, its aggregate is parked at once, and others go on.
func TestD3LetterThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	at, mend := refusing(t, engine.DeadTopic("in"))
	agent := noter("r", "in")
	handle := agent.Handle
	agent.Handle = func(ctx context.Context, e event.Event, s *engine.Step) error {
		if e.ID == "003" {
			return fault.Permanentf("never")
		}
		return handle(ctx, e, s)
	}
	short := func(c *app.Config) { c.Drain = 500 * time.Millisecond }
	s := start(t, at, map[string]int32{"in": 1, "out": 1}, short, agent)
	s.produce(records("in", 10)...)
	until(t, "the others are done", func() bool { return len(s.rows()) == 9 })
	until(t, "the letter waits in the outbox", func() bool { return s.waiting() == 1 })
	s.stop()
	s = start(t, at, map[string]int32{"in": 1, "out": 1}, short, agent)
	mend()
	s.settle()
	dead := s.dead("in")
	if len(dead) != 1 || header(dead[0], "ce_id") != "003" {
		t.Errorf("dead letters: %v", dead)
	}
	if c := s.counters("r"); c != (ledger.Counters{Applied: 9, Dead: 1}) {
		t.Errorf("counters: %+v", c)
	}
}
