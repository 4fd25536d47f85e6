package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// BrokerAddr is where Kafka clients reach the broker: one address, or several with commas between.
func (a *App) BrokerAddr() string {
	if a.server == nil {
		return strings.Join(a.config.Kafka.Seeds, ",")
	}
	return a.server.Addr()
}

// HTTPAddr is the URL of the run's page, or "".
func (a *App) HTTPAddr() string { return a.httpAddr }

// Publish appends events to a topic and returns once all are accepted.
func (a *App) Publish(ctx context.Context, topic string, events ...event.Event) error {
	topics, err := a.broker.Topics(ctx, topic)
	if err != nil {
		return fmt.Errorf("publish to %s: %w", topic, err)
	}
	slots, err := a.ledger.Route(ctx, topics[0].ID, topic, topics[0].Partitions)
	if err != nil {
		return fmt.Errorf("publish to %s: look up its route: %w", topic, err)
	}
	records := make([]broker.Record, len(events))
	for i, e := range events {
		if records[i], err = a.record(topics[0], slots, e); err != nil {
			return fmt.Errorf("publish to %s: event %d: %w", topic, i, err)
		}
	}
	answers := make(chan error, len(records)) // publishing outlasts ctx: a record handed over is never taken back
	for _, r := range records {
		a.broker.Publisher().Publish(r, func(_ int64, err error) { answers <- err })
	}
	for range records {
		select {
		case err := <-answers:
			if err != nil {
				return fmt.Errorf("publish to %s: %w", topic, err)
			}
		case <-ctx.Done():
			return fmt.Errorf("publish to %s: %w; what was handed over may still be accepted", topic, ctx.Err())
		}
	}
	return nil
}

// record is an event's, where its key's slot leads.
func (a *App) record(topic broker.Topic, slots int32, e event.Event) (broker.Record, error) {
	if err := e.Err(); err != nil {
		return broker.Record{}, err
	}
	if e.ID == "" {
		e.ID = rand.Text()
	}
	if e.Source == "" {
		e.Source = "swarmlog://" + a.config.Name
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	m, err := e.Encode()
	if err != nil {
		return broker.Record{}, err
	}
	_, ordered := e.Sequence()
	m.Key = a.salts.Key(topic.Name, m.Key, slots, ordered)
	partition := mathrand.Int32N(topic.Partitions) // without a key it may stand anywhere
	if m.Key != nil {
		partition = route.Partition(m.Key, slots)
	}
	return broker.Record{Message: m, TopicID: topic.ID, Position: event.Position{Topic: topic.Name, Partition: partition}}, nil
}

// Settled waits until nothing is left that could settle by itself.
func (a *App) Settled(ctx context.Context) error {
	for {
		idle, err := a.Idle(ctx)
		if err == nil && idle {
			return a.agentFailure() // what such an agent reads isn't waited for, and isn't settled
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait for all records to be settled: %w", ctx.Err()), err)
		case <-a.done:
			return errors.New("wait for all records to be settled: the swarm has ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Idle tells whether no record is left that could settle by itself. An engine knows of its own commits; those of other
// processes show in what the ledger counts, before and after.
func (a *App) Idle(ctx context.Context) (bool, error) {
	if !a.shared() {
		return a.enginesIdle(ctx)
	}
	before, err := a.delivered(ctx)
	if err != nil {
		return false, err
	}
	if idle, err := a.enginesIdle(ctx); err != nil || !idle {
		return false, err
	}
	after, err := a.delivered(ctx)
	return before == after, err
}

// delivered counts all records that were delivered and all events that were emitted.
func (a *App) delivered(ctx context.Context) (n int64, err error) {
	totals, err := a.ledger.Totals(ctx)
	for _, l := range totals.Leases {
		n += l.Counters.Delivered() + l.Seq
	}
	return n, err
}

func (a *App) enginesIdle(ctx context.Context) (bool, error) {
	for _, e := range a.engines {
		idle, err := e.Idle(ctx)
		if err != nil || !idle {
			return false, err
		}
	}
	return true, nil
}

// Left is how many records there are that an agent reads and hasn't finished, those in outboxes included.
func (a *App) Left(ctx context.Context) (left int64, err error) {
	totals, err := a.ledger.Totals(ctx)
	if err != nil {
		return 0, fmt.Errorf("count records that are left: %w", err)
	}
	leases := map[ledger.Key]ledger.Lease{}
	for _, l := range totals.Leases {
		leases[l.Key] = l
	}
	left = totals.Outbox
	for _, g := range a.config.Agents {
		for _, name := range g.Reads {
			topics, err := a.broker.Topics(ctx, name)
			if err != nil {
				return 0, fmt.Errorf("count records that are left: %w", err)
			}
			ranges, err := a.broker.Offsets(ctx, name)
			if err != nil {
				return 0, fmt.Errorf("count records that are left: %w", err)
			}
			for p, r := range ranges {
				l := leases[ledger.Key{Group: g.Name, TopicID: topics[0].ID, Partition: int32(p)}]
				left += max(0, r.End-max(r.Start, l.Next))
				for _, s := range l.Finished {
					left -= s.To - s.From + 1
				}
			}
		}
	}
	return left, nil
}

// Read runs f in a read-only transaction.
func (a *App) Read(ctx context.Context, f func(context.Context, ledger.Tx) error) error {
	return a.ledger.Read(ctx, f)
}

// Counters counts what was delivered to an agent, by outcome.
func (a *App) Counters(ctx context.Context, agent string) (ledger.Counters, error) {
	leases, err := a.ledger.Leases(ctx, agent)
	if err != nil {
		return ledger.Counters{}, err
	}
	var c ledger.Counters
	for _, l := range leases {
		c.Add(l.Counters)
	}
	return c, nil
}

// Messages reads a topic from its beginning to its present end, partition by partition.
func (a *App) Messages(ctx context.Context, topic string) ([]event.Message, error) {
	byPartition := map[int32][]event.Message{}
	err := broker.ReadAll(ctx, a.broker, topic, func(r broker.Record) error {
		byPartition[r.Partition] = append(byPartition[r.Partition], r.Message)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read topic %s: %w", topic, err)
	}
	var all []event.Message
	for _, p := range slices.Sorted(maps.Keys(byPartition)) {
		all = append(all, byPartition[p]...)
	}
	return all, nil
}

// Size is how many records a topic holds.
func (a *App) Size(ctx context.Context, topic string) (int64, error) {
	ranges, err := a.broker.Offsets(ctx, topic)
	if err != nil {
		return 0, fmt.Errorf("size of topic %s: %w", topic, err)
	}
	var n int64
	for _, r := range ranges {
		n += r.End - r.Start
	}
	return n, nil
}
