package prove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/route"
)

// names are the topics and tables of a proof: on servers that others use too, each proof has its own.
type names struct{ in, out, effect, last string }

var plainNames = names{in: "proof.in", out: "proof.out", effect: "proof_effect", last: "proof_last"}

// namesOf are the names of the proof of an id, which has letters and digits alone.
func namesOf(id string) names {
	return names{in: "proof." + id + ".in", out: "proof." + id + ".out", effect: "proof_" + id + "_effect", last: "proof_" + id + "_last"}
}

const eventType = "NumberedEvent"

// copyEvery is how many rounds lie between two in which a producer sends accepted events once more, those of this round
// and those of an earlier one: copies that must not count, however late they come.
const copyEvery = 23

// number is the data of a numbered event.
type number struct {
	N int64 `json:"n"`
}

// tally is what the log has acknowledged: the one measure of what may not be lost.
type tally struct {
	mu   sync.Mutex
	last []int64 // by aggregate, the number up to which all its events are acknowledged
	n    int     // all of them
}

func newTally(aggregates int) *tally { return &tally{last: make([]int64, aggregates)} }

// accept notes the acknowledgement of an event; one of a copy changes nothing.
func (t *tally) accept(p publication) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p.n == t.last[p.aggregate]+1 {
		t.last[p.aggregate] = p.n
		t.n++
	}
}

func (t *tally) value() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// events is how many events an aggregate gets: the first ones get one more where they can't all get the same.
func (c Config) events(aggregate int) int64 {
	n := c.Events / c.Aggregates
	if aggregate < c.Events%c.Aggregates {
		n++
	}
	return int64(n)
}

func aggregateName(i int) string { return fmt.Sprintf("aggregate-%06d", i) }

// produce publishes all events and returns once each is accepted. An aggregate's events come from one producer.
func (p *proof) produce(ctx context.Context) error {
	errs := make(chan error, p.Producers)
	for n := range p.Producers {
		go func() { errs <- p.producer(ctx, n) }()
	}
	var all []error
	for range p.Producers {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// publication is one numbered event on its way to the log.
type publication struct {
	broker.Record
	aggregate int
	n         int64
}

// producer publishes in rounds of one event an aggregate, so that what has to be sent again can't overtake anything
// of its own aggregate.
func (p *proof) producer(ctx context.Context, n int) error {
	b, topic, err := p.connect(ctx, n)
	if err != nil {
		return err
	}
	defer b.Close()
	started := time.Now()
	random := rand.New(rand.NewPCG(p.Seed, uint64(n)))
	rounds := p.events(0)
	for round := int64(1); round <= rounds; round++ {
		send := []int64{round}
		if round%copyEvery == 0 {
			send = append(send, round, 1+random.Int64N(round))
		}
		for _, r := range send {
			all, err := p.round(topic, n, r)
			if err != nil {
				return err
			}
			for part := range slices.Chunk(all, p.burst()) {
				if err := p.insist(ctx, b.Publisher(), part); err != nil {
					return err
				}
				if r == round && p.Pair != nil { // spread evenly: what stands still for a moment then shows
					done := float64(round-1) + float64(part[len(part)-1].aggregate)/float64(p.Aggregates)
					if !wait(ctx, nil, time.Until(started.Add(time.Duration(float64(p.Duration)*done/float64(rounds))))) {
						return ctx.Err()
					}
				}
			}
		}
		if !wait(ctx, nil, time.Until(started.Add(time.Duration(float64(p.Duration)*float64(round)/float64(rounds))))) {
			return ctx.Err()
		}
	}
	return nil
}

// burst is how many events a producer publishes at a time.
func (p *proof) burst() int {
	if p.Pair != nil {
		return 10
	}
	return p.Aggregates
}

// round makes the next event of each aggregate of a producer.
func (p *proof) round(topic broker.Topic, producer int, round int64) ([]publication, error) {
	var all []publication
	for a := producer; a < p.Aggregates; a += p.Producers {
		if round > p.events(a) {
			continue
		}
		r, err := numbered(topic, a, round)
		if err != nil {
			return nil, err
		}
		all = append(all, publication{r, a, round})
	}
	return all, nil
}

func numbered(topic broker.Topic, aggregate int, n int64) (broker.Record, error) {
	data, err := json.Marshal(number{n})
	if err != nil {
		return broker.Record{}, err
	}
	e := event.New(eventType, aggregateName(aggregate), json.RawMessage(data))
	e.Source, e.ID = "//prove", fmt.Sprintf("%d.%d", aggregate, n)
	e.SetRecordedTime(time.Now())
	m, err := e.Encode()
	if err != nil {
		return broker.Record{}, err
	}
	return broker.Record{Message: m, TopicID: topic.ID, Position: event.Position{Topic: topic.Name,
		Partition: route.Partition(m.Key, topic.Partitions)}}, nil
}

// insist publishes events until all are acknowledged; only those count as accepted.
func (p *proof) insist(ctx context.Context, to broker.Publisher, all []publication) error {
	for len(all) > 0 {
		acknowledged := make([]bool, len(all))
		var wg sync.WaitGroup
		wg.Add(len(all))
		for i := range all {
			to.Publish(all[i].Record, func(_ int64, err error) {
				acknowledged[i] = err == nil
				wg.Done()
			})
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
		var again []publication
		for i, ok := range acknowledged {
			if ok {
				p.accepted.accept(all[i])
			} else {
				again = append(again, all[i])
			}
		}
		all = again
	}
	return nil
}

// connect waits for the node, which may be down for a moment.
func (p *proof) connect(ctx context.Context, n int) (*kafka.Broker, broker.Topic, error) {
	for {
		b, err := kafka.Open(ctx, kafka.Options{Seeds: p.brokers, ClientID: fmt.Sprintf("prove-%d", n), OneInflight: p.Pair == nil})
		if err == nil {
			var topics []broker.Topic
			if topics, err = b.Topics(ctx, p.names.in); err == nil {
				return b, topics[0], nil
			}
			b.Close()
		}
		select {
		case <-ctx.Done():
			return nil, broker.Topic{}, errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
