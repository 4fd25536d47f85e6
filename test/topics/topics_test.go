package topics

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// logger is to standard error where SWARMLOG_TEST_LOG is set, else none.
func logger() *slog.Logger {
	if os.Getenv("SWARMLOG_TEST_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// A topic that others grow is noticed while it's read: what its new partitions held before that was noticed is read
// too, from their beginning.
func TestNewPartitionsAreReadFromTheirBeginning(t *testing.T) {
	onBoth(t, func(p *pair) {
		in := p.topic("in", 3)
		e, _ := p.run(p.options("w"), p.noter("r", in))
		p.settle(e)
		p.grow(in, 5)
		var all []*kgo.Record
		for i := range 50 {
			r := named(in, "", fmt.Sprintf("n-%03d", i))
			r.Key = nil
			all = append(all, r)
		}
		byTurns, err := kgo.NewClient(kgo.SeedBrokers(p.seeds...), kgo.RecordPartitioner(kgo.RoundRobinPartitioner()))
		check(p.t, err)
		defer byTurns.Close()
		check(p.t, byTurns.ProduceSync(context.Background(), all...).FirstErr())
		p.until("all are handled", func() bool { return len(p.done("r")) == 50 })
		p.settle(e)
		ranges, err := p.broker.Offsets(context.Background(), in)
		check(p.t, err)
		if len(ranges) != 5 || ranges[3].End == 0 || ranges[4].End == 0 {
			p.t.Fatalf("the new partitions hold nothing: %v", ranges)
		}
		if text := p.told(engine.NoticeTopic); !strings.Contains(text, "grown from 3 partitions to 5") {
			p.t.Errorf("people are told %q", text)
		}
	})
}

// K3: retention overtakes a reader that has committed 10 of 100; it goes on at 50 and says what was lost. The embedded
// broker refuses DeleteRecords; the engine's own tests have this case there.
func TestK3RetentionOvertakesTheReader(t *testing.T) {
	t.Parallel()
	onKafka(t, func(p *pair) {
		in := p.topic("in", 1)
		all := numbered(in, "s", 0, 99)
		e, stop := p.run(p.options("w"), p.noter("r", in))
		p.produce(all[:10]...)
		p.settle(e)
		stop()
		p.produce(all[10:]...)
		var upTo kadm.Offsets
		upTo.AddOffset(in, 0, 50, -1)
		answer, err := p.admin.DeleteRecords(context.Background(), upTo)
		check(p.t, err)
		check(p.t, answer.Error())
		e, _ = p.run(p.options("w"), p.noter("r", in))
		p.settle(e)
		ids := p.done("r")
		if len(ids) != 60 || ids[9] != "s-v009" || ids[10] != "s-v050" || ids[59] != "s-v099" {
			p.t.Errorf("%d effects: %v", len(ids), ids)
		}
		if text := p.told(engine.NoticeLost); !strings.Contains(text, "40 records lost: offsets 10 to 49") {
			p.t.Errorf("people are told %q", text)
		}
		if s := e.Status()[0].Partitions[0]; s.Lag != 0 || s.Next != 100 {
			p.t.Errorf("status: %+v", s)
		}
	})
}

// K4 a and b: a topic is created anew while it's read, with fewer records than were read of the old one, and with more.
// All of them are handled. K4 c: a step of the old topic that commits after that moves the old one's progress alone.
func TestK4TopicCreatedAnew(t *testing.T) {
	for _, n := range []int{5, 25} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			onBoth(t, func(p *pair) {
				in := p.topic("in", 1)
				agent := p.noter("r", in)
				e, _ := p.run(p.options("w"), agent)
				p.produce(numbered(in, "old", 1, 10)...)
				p.settle(e)
				old, err := p.broker.Topics(context.Background(), in)
				check(p.t, err)
				leases, err := p.ledger.Leases(context.Background(), agent.Name)
				check(p.t, err)
				p.createAnew(in, 1)
				fresh := newClient(p)
				defer fresh.Close()
				check(p.t, fresh.ProduceSync(context.Background(), numbered(in, "new", 1, n)...).FirstErr())
				p.until("all of the new topic are handled", func() bool { return len(p.done("r")) == 10+n })
				// The commit in flight: it may land or be fenced, but not on the new topic's progress.
				results, err := p.ledger.Commit(context.Background(), &ledger.Batch{Steps: []*ledger.Step{{Fence: leases[0].Fence, From: 10, Offset: 400,
					Outcome: ledger.Ignored, Event: ledger.Identity{Source: "//test", ID: "late", Subject: "old"}}}})
				check(p.t, err)
				p.t.Log("the late commit:", results[0].Err)
				p.settle(e)
				leases, err = p.ledger.Leases(context.Background(), agent.Name)
				check(p.t, err)
				for _, l := range leases {
					if l.TopicID != old[0].ID && l.Next != int64(n) {
						p.t.Errorf("progress of the new topic is %d of %d", l.Next, n)
					}
				}
				if ids := p.done("r"); len(ids) != 10+n || !slices.IsSorted(ids[10:]) {
					p.t.Errorf("handled: %v", ids)
				}
				if text := p.told(engine.NoticeTopic); !strings.Contains(text, "created anew") && !strings.Contains(text, "there again") {
					p.t.Errorf("people are told %q", text)
				}
			})
		})
	}
}

// newClient is a producer that has never heard of a topic's earlier life.
func newClient(p *pair) *kgo.Client {
	c, err := kgo.NewClient(kgo.SeedBrokers(p.seeds...), kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)))
	check(p.t, err)
	return c
}
