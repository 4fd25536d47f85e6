package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/internal/broker"
)

// closeWait bounds how long Close lets what was handed over reach the broker.
const closeWait = 5 * time.Second

// Broker is one cluster, through one connection pool for producing and
// administration and one more for each reader.
type Broker struct {
	opts   Options
	log    *slog.Logger
	client *kgo.Client
	admin  *kadm.Client
	pub    *publisher

	limits sync.Map // topic → largest batch in bytes, as an int
	counts sync.Map // of partitions, by topic, as Topics last found them

	mu      sync.Mutex
	readers map[*reader]struct{}
	members map[*member]struct{}
	closed  bool
}

var _ broker.Broker = (*Broker)(nil)

// Open connects to the cluster. It fails where no broker answers before ctx ends.
func Open(ctx context.Context, opts Options) (*Broker, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	b := &Broker{opts: opts, log: opts.Logger, readers: map[*reader]struct{}{}, members: map[*member]struct{}{}}
	b.client, err = kgo.NewClient(opts.producer(b.batchLimit)...)
	if err != nil {
		return nil, fmt.Errorf("connect to kafka at %s: %w", strings.Join(opts.Seeds, ", "), err)
	}
	b.admin = kadm.NewClient(b.client)
	b.pub = newPublisher(b)
	if err := b.client.Ping(ctx); err != nil {
		b.client.Close()
		return nil, fmt.Errorf("connect to kafka at %s: %w: check that the broker runs and that the address is right",
			strings.Join(opts.Seeds, ", "), err)
	}
	return b, nil
}

// Group is how members of groups behave.
func (b *Broker) Group() Group { return b.opts.Group }

// Publisher is the producer that all callers share.
func (b *Broker) Publisher() broker.Publisher { return b.pub }

// Reader opens a reader with a client of its own, so that one agent's pauses and fetches don't hold up another's.
func (b *Broker) Reader(name string) (broker.Reader, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("open reader %s: %w", name, broker.ErrClosed)
	}
	client, err := kgo.NewClient(b.opts.consumer(name)...)
	if err != nil {
		return nil, fmt.Errorf("open reader %s: %w", name, err)
	}
	r := newReader(client, name, func(r *reader) {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.readers, r)
	})
	b.readers[r] = struct{}{}
	return r, nil
}

// Report commits offsets for a group without being a member of it. A group that has members refuses.
func (b *Broker) Report(ctx context.Context, group string, next map[string]map[int32]int64) error {
	offsets := make(kadm.Offsets, len(next))
	for topic, partitions := range next {
		for partition, offset := range partitions {
			offsets.AddOffset(topic, partition, offset, -1)
		}
	}
	answer, err := b.admin.CommitOffsets(ctx, group, offsets)
	if err == nil {
		err = answer.Error()
	}
	if err != nil {
		return fmt.Errorf("report progress of group %s: %w", group, explain(err))
	}
	return nil
}

// Close leaves the groups, ends the readers, lets what was handed to the publisher reach the broker for at most five seconds, and ends
// the publisher: what is left then fails with ErrClosed, though the broker may have it. Close is idempotent.
func (b *Broker) Close() {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return
	}
	b.closed = true
	readers := make([]*reader, 0, len(b.readers))
	for r := range b.readers {
		readers = append(readers, r)
	}
	members := slices.Collect(maps.Keys(b.members))
	b.mu.Unlock()

	var leaving sync.WaitGroup
	for _, m := range members {
		leaving.Go(m.Close)
	}
	leaving.Wait()
	for _, r := range readers {
		r.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	if err := b.client.Flush(ctx); err != nil && errors.Is(err, context.DeadlineExceeded) {
		b.log.Warn("closed the producer before the broker acknowledged all records",
			"records", b.client.BufferedProduceRecords())
	}
	b.client.Close()
	b.pub.wait()
}
