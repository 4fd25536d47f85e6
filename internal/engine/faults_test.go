package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/swarmlog/swarmlog/internal/broker"
)

// faulty is a broker that does what brokers do on bad days. What isn't set is done by the real one.
type faulty struct {
	broker.Broker
	publisher broker.Publisher
	compacted func(offset int64) bool // tells which records are gone, as compaction or the marks of transactions leave gaps

	mu      sync.Mutex
	offsets error                      // what asking for ranges answers
	trimmed map[string]map[int32]int64 // where a partition's log begins, since retention deleted what was below
	readers []*faultyReader
}

func (f *faulty) Publisher() broker.Publisher {
	if f.publisher != nil {
		return f.publisher
	}
	return f.Broker.Publisher()
}

func (f *faulty) failOffsets(err error) { f.mu.Lock(); f.offsets = err; f.mu.Unlock() }

// trim deletes what a partition holds below an offset, as retention does.
func (f *faulty) trim(topic string, partition int32, start int64) {
	f.mu.Lock()
	if f.trimmed == nil {
		f.trimmed = map[string]map[int32]int64{}
	}
	if f.trimmed[topic] == nil {
		f.trimmed[topic] = map[int32]int64{}
	}
	f.trimmed[topic][partition] = start
	readers := f.readers
	f.mu.Unlock()
	for _, r := range readers {
		r.trimmed(topic, partition, start)
	}
}

func (f *faulty) start(topic string, partition int32) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.trimmed[topic][partition]
}

// interrupt lets every reader answer an error for a partition and read it no further.
func (f *faulty) interrupt(topic string, partition int32, err error) {
	f.mu.Lock()
	readers := f.readers
	f.mu.Unlock()
	for _, r := range readers {
		r.interrupt(topic, partition, err)
	}
}

func (f *faulty) Offsets(ctx context.Context, topic string) ([]broker.Range, error) {
	ranges, err := f.Broker.Offsets(ctx, topic)
	if err != nil {
		return nil, err
	}
	for p := range ranges {
		ranges[p].Start = max(ranges[p].Start, f.start(topic, int32(p)))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return ranges, f.offsets
}

func (f *faulty) Reader(name string) (broker.Reader, error) {
	r, err := f.Broker.Reader(name)
	if err != nil {
		return nil, err
	}
	reader := &faultyReader{Reader: r, broker: f, next: map[string]map[int32]int64{}}
	f.mu.Lock()
	f.readers = append(f.readers, reader)
	f.mu.Unlock()
	return reader, nil
}

// faultyReader is a reader whose partitions can be made to fail. As the interface has it, one that failed is read no
// further until it's added again.
type faultyReader struct {
	broker.Reader
	broker *faulty

	mu      sync.Mutex
	next    map[string]map[int32]int64 // of the partitions that are read
	notices []broker.Fetch
	wake    context.CancelFunc
}

func (r *faultyReader) Add(topic broker.Topic, partition int32, offset int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if start := r.broker.start(topic.Name, partition); offset < start {
		r.tell(topic.Name, partition, fmt.Errorf("%w: the log begins at %d", broker.ErrOutOfRange, start))
		return
	}
	if r.next[topic.Name] == nil {
		r.next[topic.Name] = map[int32]int64{}
	}
	r.next[topic.Name][partition] = offset
	r.Reader.Add(topic, partition, offset)
}

func (r *faultyReader) Remove(topic string, partition int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.next[topic], partition)
	r.Reader.Remove(topic, partition)
}

func (r *faultyReader) trimmed(topic string, partition int32, start int64) {
	r.mu.Lock()
	next, ok := r.next[topic][partition]
	r.mu.Unlock()
	if ok && next < start {
		r.interrupt(topic, partition, fmt.Errorf("%w: the log begins at %d", broker.ErrOutOfRange, start))
	}
}

func (r *faultyReader) interrupt(topic string, partition int32, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.next[topic][partition]; !ok {
		return
	}
	delete(r.next[topic], partition)
	r.Reader.Remove(topic, partition)
	r.tell(topic, partition, err)
}

// tell queues an error for the next poll. r.mu is held.
func (r *faultyReader) tell(topic string, partition int32, err error) {
	r.notices = append(r.notices, broker.Fetch{Topic: topic, Partition: partition, Err: err})
	if r.wake != nil {
		r.wake()
	}
}

func (r *faultyReader) Poll(ctx context.Context) ([]broker.Fetch, error) {
	for {
		r.mu.Lock()
		if len(r.notices) > 0 {
			notices := r.notices
			r.notices = nil
			r.mu.Unlock()
			return notices, nil
		}
		wait, cancel := context.WithCancel(ctx)
		r.wake = cancel
		r.mu.Unlock()
		fetches, err := r.Reader.Poll(wait)
		cancel()
		if err != nil && ctx.Err() == nil && errors.Is(err, context.Canceled) {
			continue
		}
		r.mu.Lock()
		for i, f := range fetches {
			if r.broker.compacted != nil {
				fetches[i].Records = slices.DeleteFunc(slices.Clone(f.Records), func(x broker.Record) bool { return r.broker.compacted(x.Offset) })
			}
			if n := len(f.Records); n > 0 && r.next[f.Topic] != nil {
				if _, ok := r.next[f.Topic][f.Partition]; ok {
					r.next[f.Topic][f.Partition] = f.Records[n-1].Offset + 1
				}
			}
		}
		r.mu.Unlock()
		return fetches, err
	}
}

// flaky is a publisher that fails some records: either they never arrive, or they do and the answer is lost. As the
// interface has it, those behind a failed one of a partition, handed over before all was told, fail too; behind one that
// didn't arrive none does, since an idempotent producer's broker takes no later one.
type flaky struct {
	broker.Publisher
	fails func(n int, r broker.Record) (fail, arrives bool) // asked for each record, which is the nth

	mu     sync.Mutex
	n      int
	failed int
	places map[string]*flakyPlace
}

// flakyPlace is a partition, as long as there are records without an answer.
type flakyPlace struct {
	flying  int
	blocked bool // one didn't arrive
	lost    bool // an answer was lost
}

var errFlaky = errors.New("broker: the request was lost")

func (p *flaky) Publish(r broker.Record, done func(int64, error)) {
	p.mu.Lock()
	p.n++
	fail, arrives := p.fails(p.n, r)
	if p.places == nil {
		p.places = map[string]*flakyPlace{}
	}
	at := fmt.Sprint(r.Topic, "/", r.Partition)
	if p.places[at] == nil {
		p.places[at] = &flakyPlace{}
	}
	place := p.places[at]
	place.flying++
	behind := place.blocked
	place.blocked = place.blocked || fail && !arrives
	p.mu.Unlock()
	answer := func(offset int64, err error) {
		p.mu.Lock()
		switch {
		case err != nil:
		case fail:
			err, place.lost = errFlaky, true
		case place.lost:
			err = broker.ErrBehind
		}
		if err != nil {
			p.failed++
		}
		if place.flying--; place.flying == 0 {
			place.blocked, place.lost = false, false
		}
		p.mu.Unlock()
		done(offset, err)
	}
	switch {
	case behind:
		go answer(-1, broker.ErrBehind)
	case fail && !arrives:
		go answer(-1, errFlaky)
	default:
		p.Publisher.Publish(r, answer)
	}
}

func (p *flaky) failures() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}
