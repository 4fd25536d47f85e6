package prove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/route"
)

// Names of the proof's topics.
const (
	topicIn  = "proof.in"
	topicOut = "proof.out"
)

// copyEvery is how often a producer sends a round of accepted events once more: copies that must not count.
const copyEvery = 23

// number is the data of a numbered event.
type number struct {
	N int64 `json:"n"`
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add(n int) { c.mu.Lock(); c.n += n; c.mu.Unlock() }
func (c *counter) value() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
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
func (p *proof) produce(ctx context.Context, accepted *counter) error {
	errs := make(chan error, p.Producers)
	for n := range p.Producers {
		go func() { errs <- p.producer(ctx, n, accepted) }()
	}
	var all []error
	for range p.Producers {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

// producer publishes in rounds of one event an aggregate, so that what has to be sent again can't overtake anything
// of its own aggregate.
func (p *proof) producer(ctx context.Context, n int, accepted *counter) error {
	b, topic, err := p.connect(ctx, n)
	if err != nil {
		return err
	}
	defer b.Close()
	started := time.Now()
	rounds := p.events(0)
	for round := int64(1); round <= rounds; round++ {
		var records []broker.Record
		for a := n; a < p.Aggregates; a += p.Producers {
			if round <= p.events(a) {
				r, err := numbered(topic, a, round)
				if err != nil {
					return err
				}
				records = append(records, r)
			}
		}
		if err := insist(ctx, b.Publisher(), records); err != nil {
			return err
		}
		accepted.add(len(records))
		if round%copyEvery == 0 {
			if err := insist(ctx, b.Publisher(), records); err != nil {
				return err
			}
		}
		if due := time.Duration(float64(p.Duration) * float64(round) / float64(rounds)); due > time.Since(started) {
			select {
			case <-time.After(due - time.Since(started)):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

func numbered(topic broker.Topic, aggregate int, n int64) (broker.Record, error) {
	data, err := json.Marshal(number{n})
	if err != nil {
		return broker.Record{}, err
	}
	e := event.New("NumberedEvent", aggregateName(aggregate), json.RawMessage(data))
	e.Source, e.ID = "//prove", fmt.Sprintf("%d.%d", aggregate, n)
	e.SetRecordedTime(time.Now())
	m, err := e.Encode()
	if err != nil {
		return broker.Record{}, err
	}
	return broker.Record{Message: m, TopicID: topic.ID, Position: event.Position{Topic: topic.Name,
		Partition: route.Partition(m.Key, topic.Partitions)}}, nil
}

// insist publishes records until all are accepted.
func insist(ctx context.Context, to broker.Publisher, records []broker.Record) error {
	for len(records) > 0 {
		failed := make([]bool, len(records))
		var wg sync.WaitGroup
		wg.Add(len(records))
		for i, r := range records {
			to.Publish(r, func(_ int64, err error) {
				failed[i] = err != nil
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
		var again []broker.Record
		for i, r := range records {
			if failed[i] {
				again = append(again, r)
			}
		}
		records = again
	}
	return nil
}

// connect waits for the node, which may be down for a moment.
func (p *proof) connect(ctx context.Context, n int) (*kafka.Broker, broker.Topic, error) {
	for {
		b, err := kafka.Open(ctx, kafka.Options{Seeds: []string{p.broker}, ClientID: fmt.Sprintf("prove-%d", n), OneInflight: true})
		if err == nil {
			var topics []broker.Topic
			if topics, err = b.Topics(ctx, topicIn); err == nil {
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
