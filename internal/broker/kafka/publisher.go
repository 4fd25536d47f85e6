package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
)

// batchOverhead is what a record batch adds to its records, with the length of its array before it.
const batchOverhead = 65

// limitWait bounds how long the first record of an unknown topic waits for that topic's limit.
const limitWait = 5 * time.Second

// publisher is one idempotent producer for everybody. It tries for ever: there
// is no delivery time-out, no limit of retries, and no caller's context, so a
// broker that is away fails nothing. A record fails nevertheless when
//
//   - it's larger than its topic takes (ErrTooLarge), known before it's sent;
//   - its topic doesn't exist (ErrNoTopic), after some tries, or was created
//     anew (ErrTopicGone): published again, it goes to the new topic;
//   - its partition doesn't exist, or the broker refuses it: authorization,
//     policy, a record that it finds invalid, an error on its disk;
//   - the broker is closed (ErrClosed).
//
// When one fails, what kgo holds of that partition fails with it, with the same
// error, and an oversize record fails what is handed over behind it until its
// done function has returned, with ErrBehind. So a caller that stops a stream
// in done and starts again at the failed record keeps order, with one gap that
// the protocol leaves: a record handed over after kgo failed the others and
// before done was called may still be published.
//
// A failure isn't proof that the broker doesn't have the record: what timed out
// on the way may be there. Copies are for the reader to tell.
type publisher struct {
	b      *Broker
	client *kgo.Client

	held atomic.Int64 // failures that wait to be told, in queue or with done running
	wg   sync.WaitGroup

	mu      sync.Mutex
	queue   []failure
	running bool            // a goroutine is telling the queue
	blocked map[place]int   // failures that wait to be told, by partition
	purging map[string]bool // topics that kgo is being made to forget
}

type place struct {
	topic     string
	partition int32
}

type failure struct {
	place place
	done  func(int64, error)
	err   error
}

func newPublisher(b *Broker) *publisher {
	return &publisher{b: b, client: b.client, blocked: map[place]int{}, purging: map[string]bool{}}
}

// Publish hands a record over. It waits only while 100,000 records or 64 MiB are handed over and not acknowledged, and
// for the first record of a topic that Topics or Create wasn't asked about, while its limit is looked up. The record's
// bytes must not change before done is called. done must not block, and must not publish.
func (p *publisher) Publish(r broker.Record, done func(offset int64, err error)) {
	at := place{r.Topic, r.Partition}
	size, limit := batchSize(r.Message), p.limit(r.Topic)
	if size > limit || p.held.Load() > 0 {
		if p.hold(at, size, limit, done) {
			return
		}
	}
	k := &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Timestamp: r.Time}
	if len(r.Headers) > 0 {
		k.Headers = make([]kgo.RecordHeader, len(r.Headers))
		for i, h := range r.Headers {
			k.Headers[i] = kgo.RecordHeader(h)
		}
	}
	p.client.Produce(context.Background(), k, func(k *kgo.Record, err error) {
		if err != nil {
			err = p.failed(k, size, err)
		}
		done(k.Offset, err)
	})
}

// hold fails a record that is too large, and one that was handed over behind such a one. It answers whether it did.
func (p *publisher) hold(at place, size, limit int, done func(int64, error)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	switch {
	case p.blocked[at] > 0:
		err = fmt.Errorf("publish to %s/%d: %w", at.topic, at.partition, broker.ErrBehind)
	case size > limit:
		err = fmt.Errorf("publish to %s/%d: %w: it makes a batch of %d bytes where %s is %d: keep the value elsewhere and send a reference, or raise the limit",
			at.topic, at.partition, broker.ErrTooLarge, size, maxBytesKey, limit)
	default:
		return false
	}
	p.blocked[at]++
	p.held.Add(1)
	p.queue = append(p.queue, failure{at, done, err})
	if !p.running {
		p.running = true
		p.wg.Go(p.tell)
	}
	return true
}

// tell calls the done functions of held failures in the order in which they came, and ends when there are none.
func (p *publisher) tell() {
	for {
		p.mu.Lock()
		if len(p.queue) == 0 {
			p.running = false
			p.mu.Unlock()
			return
		}
		f := p.queue[0]
		p.queue = p.queue[1:]
		p.mu.Unlock()

		f.done(-1, f.err)

		p.mu.Lock()
		if p.blocked[f.place]--; p.blocked[f.place] == 0 {
			delete(p.blocked, f.place)
		}
		p.mu.Unlock()
		p.held.Add(-1)
	}
}

// failed explains why kgo gave a record up.
func (p *publisher) failed(k *kgo.Record, size int, err error) error {
	if errors.Is(err, kerr.UnknownTopicID) {
		p.forget(k.Topic)
	}
	if refused := (*kerr.Error)(nil); !errors.As(err, &refused) {
		p.client.ForceMetadataRefresh() // kgo itself gave up, perhaps on a partition that it doesn't know yet
	}
	if errors.Is(err, kerr.MessageTooLarge) && size <= p.limit(k.Topic) {
		// The broker refused a batch, and so did kgo all records of the partition: not this one's fault.
		return fmt.Errorf("publish to %s/%d: %w: the broker takes less than its %s says", k.Topic, k.Partition, broker.ErrBehind, maxBytesKey)
	}
	return fmt.Errorf("publish to %s/%d: %w", k.Topic, k.Partition, explain(err))
}

// forget makes kgo drop what it knows of a topic: it never takes on the id of a topic that was created anew, so
// without this nothing could be published to that one. It isn't done in the promise, since kgo runs those one by one
// and forgetting makes some.
func (p *publisher) forget(topic string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.purging[topic] {
		return
	}
	p.purging[topic] = true
	p.wg.Go(func() {
		p.client.PurgeTopicsFromProducing(topic)
		p.b.limits.Delete(topic)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.purging, topic)
	})
}

// limit is the largest batch that a topic takes.
func (p *publisher) limit(topic string) int {
	if n, ok := p.b.limits.Load(topic); ok {
		return min(n.(int), maxBatchBytes)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limitWait)
	defer cancel()
	if configs, err := p.b.configured(ctx, []string{topic}); err == nil && configs[topic].maxBytes > 0 {
		p.b.limits.Store(topic, configs[topic].maxBytes)
		return min(configs[topic].maxBytes, maxBatchBytes)
	}
	p.b.limits.Store(topic, defaultBatchBytes) // once is enough to wait for; Topics corrects it
	return defaultBatchBytes
}

// wait returns when no goroutine of the publisher is left; the client is closed before.
func (p *publisher) wait() { p.wg.Wait() }

// batchSize is the size of a batch that holds the message alone, before compression.
func batchSize(m event.Message) int {
	n := 3 + bytesSize(len(m.Key)) + bytesSize(len(m.Value)) + varintSize(len(m.Headers))
	for _, h := range m.Headers {
		n += bytesSize(len(h.Key)) + bytesSize(len(h.Value))
	}
	return batchOverhead + varintSize(n) + n
}

func bytesSize(n int) int { return varintSize(n) + n }

// varintSize is the size of a number as a zigzag varint.
func varintSize(n int) int { return (bits.Len64(uint64(n)<<1|1) + 6) / 7 }
