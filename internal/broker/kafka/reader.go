package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
)

// reader reads partitions with a kgo client of its own, without a group.
//
// Records alias kgo's buffers: a key, value or header keeps the whole batch
// that it came in alive (up to 1 MiB as fetched), so what is kept for long
// should be copied. kgo never writes to them again.
//
// A partition whose Fetch carried an Err is not read any further until it's
// added again.
//
// What kgo answers is checked against what was asked for, since kgo moves an
// offset into the log's range where it had to list offsets first (its topic was
// not loaded when the partition was added), and since a poll may be under way
// while its partitions change:
//
//  1. Poll asks kgo, which takes partition 3's records from its buffer.
//  2. Remove(3): kgo forgets the partition; its later polls don't have it.
//  3. Add(3, elsewhere).
//  4. Poll goes on with what it took in step 1: stale, though 3 is assigned.
//
// So an assignment that follows another one within one poll knows that poll;
// what it brings of the partition may be either, is dropped, and is read again.
type reader struct {
	client  *kgo.Client
	name    string
	onClose func(*reader)

	mu       sync.Mutex
	assigned map[place]*assignment
	ids      map[string]broker.TopicID // what kgo holds each topic to be
	notices  []broker.Fetch            // errors that didn't come out of a fetch
	polls    uint64                    // polls begun
	left     map[place]bool            // what kgo was made to forget since the last poll began
	wake     context.CancelFunc        // ends the wait of the poll under way
	hurrying bool                      // fetches are about to be ended for what was added
	closed   bool
}

type assignment struct {
	id    broker.TopicID
	next  int64  // the lowest offset that may come
	stale uint64 // the poll that may still bring records of an earlier assignment; 0: none
	over  bool   // it was answered with an error
}

func newReader(client *kgo.Client, name string, onClose func(*reader)) *reader {
	return &reader{
		client:   client,
		name:     name,
		onClose:  onClose,
		assigned: map[place]*assignment{},
		ids:      map[string]broker.TopicID{},
		left:     map[place]bool{},
	}
}

// Add starts reading a partition; where it was being read already, it goes on from the new offset.
func (r *reader) Add(topic broker.Topic, partition int32, offset int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if id, ok := r.ids[topic.Name]; ok && id != topic.ID {
		r.replace(topic.Name)
	}
	r.ids[topic.Name] = topic.ID
	at := place{topic.Name, partition}
	if _, ok := r.assigned[at]; ok {
		r.forget(at)
	}
	a := &assignment{id: topic.ID, next: offset}
	if r.left[at] {
		a.stale = r.polls
	}
	r.assigned[at] = a
	r.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic.Name: {partition: kgo.NewOffset().At(offset)}})
	if len(r.assigned) > 1 && !r.hurrying {
		r.hurrying = true
		time.AfterFunc(addSettles, r.hurry)
	}
}

// addSettles is how long kgo has to take up partitions that were added, some of them at a time.
const addSettles = 25 * time.Millisecond

// hurry ends the fetches that brokers hold for partitions which have nothing, so that what was added since is asked for
// at once, and not only when they're answered (Options.MaxWait). To remove a partition that isn't there is the one way to
// have kgo do so that changes nothing else; it costs a connection.
func (r *reader) hurry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hurrying = false
	if r.closed {
		return
	}
	for at := range r.assigned {
		r.client.RemoveConsumePartitions(map[string][]int32{at.topic: {-1}})
		return
	}
}

// replace makes kgo drop a topic whose name now belongs to another one; it never takes on a new id by itself. What
// was read of the old topic is told that it's gone.
func (r *reader) replace(name string) {
	r.client.PurgeTopicsFromConsuming(name)
	for at, a := range r.assigned {
		if at.topic != name {
			continue
		}
		r.client.ResumeFetchPartitions(map[string][]int32{name: {at.partition}})
		if !a.over {
			a.over = true
			r.notices = append(r.notices, broker.Fetch{Topic: name, TopicID: a.id, Partition: at.partition,
				Err: fmt.Errorf("read %s/%d: %w", name, at.partition, broker.ErrTopicGone)})
		}
	}
	r.rouse()
}

// Remove ends the reading of a partition. A Poll that begins after it brings no record of it; one that is returning
// at that moment may.
func (r *reader) Remove(topic string, partition int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := place{topic, partition}
	if _, ok := r.assigned[at]; !ok || r.closed {
		return
	}
	delete(r.assigned, at)
	r.forget(at)
}

// forget takes a partition from kgo, with what it has buffered of it and what there is to tell.
func (r *reader) forget(at place) {
	r.left[at] = true
	r.notices = slices.DeleteFunc(r.notices, func(f broker.Fetch) bool {
		return f.Topic == at.topic && f.Partition == at.partition
	})
	r.client.RemoveConsumePartitions(map[string][]int32{at.topic: {at.partition}})
	r.client.ResumeFetchPartitions(map[string][]int32{at.topic: {at.partition}}) // a pause outlives the removal
}

// Pause holds a partition back; a Poll under way may still bring records of it. What is fetched of it and not polled
// is dropped and fetched again after Resume.
func (r *reader) Pause(topic string, partition int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.assigned[place{topic, partition}] == nil {
		return
	}
	r.client.PauseFetchPartitions(map[string][]int32{topic: {partition}})
}

// Resume lets a partition go on, at the latest after Options.MaxWait.
func (r *reader) Resume(topic string, partition int32) {
	r.client.ResumeFetchPartitions(map[string][]int32{topic: {partition}})
}

// Poll waits for records. It returns ctx's error where ctx ends first, and ErrClosed after Close.
func (r *reader) Poll(ctx context.Context) ([]broker.Fetch, error) {
	for {
		wait, round, ready, err := r.begin(ctx)
		if err != nil || len(ready) > 0 {
			return ready, err
		}
		fetches := r.client.PollFetches(wait)
		ready, err = r.take(fetches, round)
		if err != nil || len(ready) > 0 {
			return ready, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// begin starts a round of polling, unless there is something to tell already.
func (r *reader) begin(ctx context.Context) (wait context.Context, round uint64, ready []broker.Fetch, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, 0, nil, fmt.Errorf("poll for %s: %w", r.name, broker.ErrClosed)
	}
	if err := ctx.Err(); err != nil {
		return nil, 0, nil, err
	}
	if len(r.notices) > 0 {
		ready, r.notices = r.notices, nil
		return nil, 0, ready, nil
	}
	r.polls++
	clear(r.left)
	wait, r.wake = context.WithCancel(ctx)
	return wait, r.polls, nil, nil
}

// rouse ends the wait of the poll under way, so that it sees the notices.
func (r *reader) rouse() {
	if r.wake != nil {
		r.wake()
	}
}

// take turns what kgo polled into fetches of what is assigned.
func (r *reader) take(polled kgo.Fetches, round uint64) ([]broker.Fetch, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wake()
	r.wake = nil
	var (
		ready []broker.Fetch
		fatal error
	)
	for i := range polled {
		for j := range polled[i].Topics {
			topic := &polled[i].Topics[j]
			for k := range topic.Partitions {
				p := &topic.Partitions[k]
				if p.Partition < 0 { // kgo's way to report what concerns no partition
					if p.Err != nil && !over(p.Err) {
						fatal = fmt.Errorf("poll for %s: %w", r.name, explain(p.Err))
					}
					continue
				}
				if f, ok := r.partition(topic, p, round); ok {
					ready = append(ready, f)
				}
			}
		}
	}
	if len(ready) > 0 {
		return ready, nil // an error comes again
	}
	return nil, fatal
}

// partition checks one partition's answer and converts it.
func (r *reader) partition(topic *kgo.FetchTopic, p *kgo.FetchPartition, round uint64) (broker.Fetch, bool) {
	at := place{topic.Topic, p.Partition}
	a := r.assigned[at]
	if a == nil || a.over {
		return broker.Fetch{}, false
	}
	if a.stale == round {
		a.stale = 0
		r.client.RemoveConsumePartitions(map[string][]int32{at.topic: {at.partition}})
		r.client.AddConsumePartitions(map[string]map[int32]kgo.Offset{at.topic: {at.partition: kgo.NewOffset().At(a.next)}})
		return broker.Fetch{}, false
	}
	f := broker.Fetch{Topic: at.topic, TopicID: a.id, Partition: at.partition, End: p.HighWatermark}
	if f.Err = a.check(topic, p); f.Err != nil {
		f.Err = fmt.Errorf("read %s/%d from offset %d: %w", at.topic, at.partition, a.next, f.Err)
		a.over = true
		r.forget(at)
		return f, true
	}
	if len(p.Records) == 0 {
		return f, false
	}
	f.Records = convert(p.Records, a.id)
	a.next = p.Records[len(p.Records)-1].Offset + 1
	return f, true
}

var noID broker.TopicID

// check tells whether an answer is what the assignment asked for.
func (a *assignment) check(topic *kgo.FetchTopic, p *kgo.FetchPartition) error {
	id := broker.TopicID(topic.TopicID)
	switch {
	case id != noID && a.id != noID && id != a.id:
		return fmt.Errorf("%w: its id is %s where %s was asked for", broker.ErrTopicGone, id, a.id)
	case p.Err != nil:
		err := explain(p.Err)
		if errors.Is(err, broker.ErrOutOfRange) {
			return fmt.Errorf("the log is from %d to %d: %w", p.LogStartOffset, p.HighWatermark, err)
		}
		return err
	case p.LogStartOffset > a.next:
		return fmt.Errorf("%w: the log begins at %d", broker.ErrOutOfRange, p.LogStartOffset)
	case len(p.Records) > 0 && p.Records[0].Offset < a.next:
		return fmt.Errorf("%w: the log went back to %d", broker.ErrOutOfRange, p.Records[0].Offset)
	}
	return nil
}

func convert(in []*kgo.Record, id broker.TopicID) []broker.Record {
	out := make([]broker.Record, len(in))
	for i, k := range in {
		r := &out[i]
		r.Key, r.Value, r.Time = k.Key, k.Value, k.Timestamp
		r.Topic, r.Partition, r.Offset, r.TopicID = k.Topic, k.Partition, k.Offset, id
		if len(k.Headers) > 0 {
			r.Headers = make([]event.Header, len(k.Headers))
			for j, h := range k.Headers {
				r.Headers[j] = event.Header(h)
			}
		}
	}
	return out
}

// Close ends the reader; a Poll under way returns ErrClosed. It is idempotent.
func (r *reader) Close() {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return
	}
	r.closed = true
	r.rouse()
	r.mu.Unlock()
	r.client.Close()
	r.onClose(r)
}
