package swarmlog

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// Option sets one property of a swarm that Run or Start runs.
type Option func(*app.Config)

// Name names the swarm; the default is "swarm". It's part of the source of every event that its agents emit.
func Name(name string) Option { return func(c *app.Config) { c.Name = name } }

// Agents adds agents.
func Agents(agents ...Agent) Option {
	return func(c *app.Config) {
		for _, a := range agents {
			c.Agents = append(c.Agents, a.spec)
		}
	}
}

// Topic declares a topic with a number of partitions. Topics that agents read or emit to and that aren't declared
// are created with 8.
func Topic(name string, partitions int32) Option {
	return func(c *app.Config) {
		c.Topics = append(c.Topics, broker.TopicSpec{Name: name, Partitions: partitions})
	}
}

// Data is the folder that the embedded broker and the embedded ledger live in; the default is ./.swarmlog.
func Data(dir string) Option { return func(c *app.Config) { c.Data = dir } }

// InMemory keeps everything in memory, for tests: nothing outlives the process.
func InMemory() Option { return func(c *app.Config) { c.InMemory = true } }

// Listen serves the page of the run, metrics and health on a loopback address, such as 127.0.0.1:8080; the default
// is not to.
func Listen(address string) Option { return func(c *app.Config) { c.Listen = address } }

// BrokerListen is the address on which the embedded broker serves any Kafka client; the default is a free port.
func BrokerListen(address string) Option { return func(c *app.Config) { c.BrokerListen = address } }

// Logger takes the log; the default is to log nothing.
func Logger(l *slog.Logger) Option { return func(c *app.Config) { c.Logger = l } }

// Swarm is a running swarm, made by Start.
type Swarm struct{ app *app.App }

// Run runs a swarm until ctx ends, drains it and returns nil; or returns why it couldn't start or go on.
func Run(ctx context.Context, options ...Option) error {
	s, err := Start(ctx, options...)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
	case <-s.app.Done():
	}
	return s.Stop(context.WithoutCancel(ctx))
}

// Start starts a swarm and returns once its agents work.
func Start(ctx context.Context, options ...Option) (*Swarm, error) {
	c := app.Config{Name: "swarm", Data: ".swarmlog"}
	for _, o := range options {
		o(&c)
	}
	a, err := app.Start(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("start the swarm: %w", err)
	}
	return &Swarm{a}, nil
}

// Publish appends events to a topic, in order, and returns once the log has accepted all of them. Each needs a Type;
// an empty ID gets a random one, so give your own where a publication may be repeated: the same source and id are
// handled once. On an error some may have been accepted.
func (s *Swarm) Publish(ctx context.Context, topic string, events ...event.Event) error {
	return s.app.Publish(ctx, topic, events...)
}

// Settled waits until every record is settled that can settle by itself: all that was published is handled, and so
// is all that was emitted in consequence, by whichever process. Aggregates that are parked behind a dead event don't count. It returns an
// error, as Stop does, where an agent stopped for good: what that one reads is neither handled nor waited for.
func (s *Swarm) Settled(ctx context.Context) error { return s.app.Settled(ctx) }

// Read runs f in a read-only transaction on what is committed.
func (s *Swarm) Read(ctx context.Context, f func(ctx context.Context, tx ledger.Tx) error) error {
	return s.app.Read(ctx, f)
}

// Counters counts the records that were delivered to an agent, by outcome, in all processes that share the work.
func (s *Swarm) Counters(ctx context.Context, agent string) (ledger.Counters, error) {
	return s.app.Counters(ctx, agent)
}

// Messages reads a topic from its beginning to its present end, in order within each partition.
func (s *Swarm) Messages(ctx context.Context, topic string) ([]event.Message, error) {
	return s.app.Messages(ctx, topic)
}

// DeadTopic is the name of the topic that dead letters of a topic go to.
func DeadTopic(topic string) string { return engine.DeadTopic(topic) }

// Broker is where any Kafka client reaches the broker: the embedded one's address, or those that were given.
func (s *Swarm) Broker() string { return s.app.BrokerAddr() }

// Address is the address of the run's page, or "" where there's none.
func (s *Swarm) Address() string { return s.app.HTTPAddr() }

// Stop drains the swarm: running steps may end, what they did is committed, and all is given back. It takes at most
// about a minute and a half, where a model, the disk and the broker all stand still, and a moment usually; it may be
// called more than once. The error says why an agent had stopped, if one had.
func (s *Swarm) Stop(ctx context.Context) error { return s.app.Stop(ctx) }
