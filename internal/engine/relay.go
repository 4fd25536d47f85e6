package engine

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/internal/sabotage"
	"github.com/swarmlog/swarmlog/ledger"
)

// Bounds of what the relay holds of one lease. What is above stays in the outbox until there's room.
const (
	outboxRows  = 16384
	outboxBytes = 16 << 20
	outboxPage  = 512 // rows of one read
)

// Bounds of what is handed to the publisher and not yet answered: below those at which Publish itself would wait, so
// that a broker which is away can't hold the relay's goroutine.
const (
	flyingRows  = 32768
	flyingBytes = 32 << 20
)

// relay publishes what committed. Each (lease, target partition) is a stream with one run of records under way at
// a time, so that an error can't let a later record pass an earlier one; what arrives meanwhile makes the next run.
// A stream that fails stands still and starts again at its lowest row; the others go on. What was acknowledged is
// deleted in a later commit, so a crash between the two publishes copies, which have the same ids.
type relay struct {
	ledger    ledger.Ledger
	publisher broker.Publisher
	commits   *committer
	log       *slog.Logger
	meter     Meter
	notify    func(Notice)
	rand      func() float64
	topics    *topics

	mu      sync.Mutex
	inbox   []func() // what others want done, in order; run by the relay's goroutine
	pending int      // rows handed over or known of, and not yet acknowledged
	boxed   map[ledger.Key]load
	changed chan struct{}
	wake    chan struct{}

	// Only the relay's goroutine touches these.
	boxes   map[ledger.Key]*outbox
	streams map[streamID]*stream
	due     []*stream // streams with rows and nothing under way
	short   []*outbox // outboxes with rows that aren't in memory, and room for them
	rows    int       // handed to the publisher and not answered
	bytes   int
	halted  chan struct{} // closed once nothing is under way any more; nil: going on
}

// load is what a lease's outbox holds in memory, and since when it hasn't been empty.
type load struct {
	rows  int
	since time.Time
}

// outbox is one lease's, as far as it's in memory.
type outbox struct {
	fence   ledger.Fence
	top     int64 // highest number known to be committed
	loaded  int64 // highest number that was put into a stream
	held    int   // rows in streams
	bytes   int   // of them
	deleted int64 // all rows up to here are gone
	swept   int64 // what was acknowledged up to here is gone too, though gaps are left
	acked   ledger.Ranges
	gone    bool
	queued  bool // in relay.short
}

type streamID struct {
	lease     ledger.Key
	topic     string
	partition int32
}

type stream struct {
	id       streamID
	box      *outbox
	rows     []ledger.Outgoing // the first of which are under way
	underway int
	stale    bool  // its topic has changed: its rows may go elsewhere
	failed   error // why the last run failed, until the stream starts again
	attempt  int
}

// flight counts the answers of one run of a stream, which come from the publisher's goroutines; the relay's hears of
// the last one alone.
type flight struct {
	rows, bytes int
	left        atomic.Int64

	mu       sync.Mutex
	failed   error // of the first row that failed
	failedAt int
}

func (f *flight) fail(i int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil || i < f.failedAt {
		f.failed, f.failedAt = err, i
	}
}

func newRelay(o Options, c *committer, t *topics) *relay {
	return &relay{ledger: o.Ledger, publisher: o.Broker.Publisher(), topics: t, commits: c, log: o.Logger,
		meter: o.Meter, notify: o.Notify, rand: o.Rand, changed: make(chan struct{}),
		wake: make(chan struct{}, 1), boxed: map[ledger.Key]load{}, boxes: map[ledger.Key]*outbox{}, streams: map[streamID]*stream{}}
}

func (r *relay) lookUp(ctx context.Context, names map[string]bool) error {
	for name := range names {
		if err := r.topics.learn(ctx, name); err != nil {
			return fmt.Errorf("look up topic %s, which is emitted to: %w", name, err)
		}
	}
	return nil
}

// limit is the largest record, in bytes, that may be emitted to a topic.
func (r *relay) limit(topic string) int {
	const client = 1_000_000 // below the default largest batch of brokers and of clients
	if n := r.topics.of(topic).MaxBytes; n > 0 {
		return min(n, client)
	}
	return client
}

// do has f run by the relay's goroutine.
func (r *relay) do(f func()) {
	r.mu.Lock()
	r.inbox = append(r.inbox, f)
	r.mu.Unlock()
	signal(r.wake)
}

// adopt takes over a lease's outbox, with what an earlier owner left in it.
func (r *relay) adopt(f ledger.Fence, top int64) {
	r.do(func() {
		box := &outbox{fence: f, top: top}
		if sabotage.Is(sabotage.RelayTrailsID) {
			box.loaded, box.deleted = top, top
		}
		r.boxes[f.Key] = box
		r.wantRows(box)
	})
}

// leave forgets a lease's outbox: its next owner publishes what is left.
func (r *relay) leave(f ledger.Fence) {
	r.do(func() {
		box := r.boxes[f.Key]
		if box == nil || box.fence.Epoch != f.Epoch {
			return
		}
		box.gone = true
		delete(r.boxes, f.Key)
		r.settle(f.Key, -box.held)
		for id, s := range r.streams {
			if s.box == box {
				delete(r.streams, id)
			}
		}
	})
}

// add hands over rows that were just committed.
func (r *relay) add(f ledger.Fence, rows []ledger.Outgoing) {
	r.settle(f.Key, len(rows))
	r.do(func() {
		box := r.boxes[f.Key]
		if box == nil || box.fence.Epoch != f.Epoch {
			r.settle(f.Key, -len(rows))
			return
		}
		box.top = max(box.top, rows[len(rows)-1].Seq)
		room := 0
		if box.loaded+1 == rows[0].Seq {
			// Numbers that a carried step took in the same commit leave a gap: what is behind it is read back.
			for bytes := box.bytes; room < len(rows) && rows[room].Seq == rows[0].Seq+int64(room) && box.held+room < outboxRows && bytes < outboxBytes; room++ {
				bytes += size(rows[room].Message)
			}
		}
		r.load(box, rows[:room])
		r.settle(f.Key, room-len(rows)) // the rest is read back once there's room
		r.wantRows(box)
	})
}

// learn says how high a lease's numbers go: others that carry steps of it commit rows too, for this worker to publish.
func (r *relay) learn(f ledger.Fence, top int64) {
	r.do(func() {
		if box := r.boxes[f.Key]; box != nil && box.fence.Epoch == f.Epoch {
			box.top = max(box.top, top)
			r.wantRows(box)
		}
	})
}

// settle changes the number of a lease's pending rows and tells those who wait for there to be none at all.
func (r *relay) settle(k ledger.Key, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending += n
	l := r.boxed[k]
	if l.rows == 0 {
		l.since = time.Now()
	}
	if l.rows += n; l.rows > 0 {
		r.boxed[k] = l
	} else {
		delete(r.boxed, k)
	}
	if r.pending == 0 {
		close(r.changed)
		r.changed = make(chan struct{})
	}
}

// held is what the outbox of a lease holds.
func (r *relay) held(k ledger.Key) load {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.boxed[k]
}

func (r *relay) run(ctx context.Context) {
	for {
		r.mu.Lock()
		inbox := r.inbox
		r.inbox = nil
		r.mu.Unlock()
		for _, f := range inbox {
			f()
		}
		r.readBack(ctx)
		r.due = slices.DeleteFunc(r.due, r.send)
		r.mu.Lock()
		more := len(r.inbox) > 0 || len(r.short) > 0
		r.mu.Unlock()
		if more {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
	}
}

// load puts rows into their streams.
func (r *relay) load(box *outbox, rows []ledger.Outgoing) {
	for _, row := range rows {
		if row.Seq > box.loaded+1 { // rows between were deleted before: not to be waited for
			r.mark(box, box.loaded+1, row.Seq-1)
		}
		box.loaded = row.Seq
		box.held++
		box.bytes += size(row.Message)
		s := r.streamOf(box, row)
		s.rows = append(s.rows, row)
		if s.underway == 0 && s.failed == nil && len(s.rows) == 1 {
			r.due = append(r.due, s)
		}
	}
}

// streamOf finds or makes the stream of a row.
func (r *relay) streamOf(box *outbox, row ledger.Outgoing) *stream {
	id := streamID{box.fence.Key, row.Topic, r.partition(row)}
	s := r.streams[id]
	if s == nil {
		s = &stream{id: id, box: box}
		r.streams[id] = s
	}
	return s
}

// partition is where a row goes: where it says, else where its key's slot leads; without a key they take turns. A topic
// that has fewer partitions than the row says is another one than it was.
func (r *relay) partition(row ledger.Outgoing) int32 {
	t := r.topics.of(row.Topic)
	switch {
	case row.Partition >= 0 && t.Partitions > 0:
		return row.Partition % t.Partitions
	case row.Partition >= 0:
		return row.Partition
	case row.Message.Key == nil:
		return route.Record(nil, row.Seq, max(1, t.Partitions))
	}
	return route.Partition(row.Message.Key, max(1, t.slots))
}

func (r *relay) wantRows(box *outbox) {
	if !box.queued && !box.gone && box.loaded < box.top && box.held < outboxRows && box.bytes < outboxBytes {
		box.queued = true
		r.short = append(r.short, box)
	}
}

// readBack reads rows that aren't in memory, a page for each outbox that has room.
func (r *relay) readBack(ctx context.Context) {
	boxes := r.short
	r.short = nil
	for _, box := range boxes {
		box.queued = false
		if box.gone || box.loaded >= box.top {
			continue
		}
		rows, err := r.ledger.Outbox(ctx, box.fence, box.loaded, outboxPage)
		if err != nil {
			if ctx.Err() == nil {
				r.log.Warn("outbox can't be read; trying again", "group", box.fence.Group, "error", err)
				time.AfterFunc(time.Second, func() { r.do(func() { r.wantRows(box) }) })
			}
			continue
		}
		r.settle(box.fence.Key, len(rows))
		r.load(box, rows)
		if len(rows) < outboxPage {
			r.mark(box, box.loaded+1, box.top)
			box.loaded = max(box.loaded, box.top)
		}
		r.trim(box)
		r.wantRows(box)
	}
}

// send starts a stream's next run, as far as there's room; without any the stream stays due.
func (r *relay) send(s *stream) (sent bool) {
	if s.underway > 0 || len(s.rows) == 0 || s.box.gone {
		return true
	}
	if r.halted != nil {
		return false
	}
	f := &flight{}
	for f.rows < len(s.rows) && r.rows+f.rows < flyingRows && r.bytes+f.bytes < flyingBytes {
		f.bytes += size(s.rows[f.rows].Message)
		f.rows++
	}
	if f.rows == 0 {
		return false
	}
	r.rows += f.rows
	r.bytes += f.bytes
	f.left.Store(int64(f.rows))
	s.underway, s.failed = f.rows, nil
	topic := r.topics.of(s.id.topic)
	for i, row := range s.rows[:f.rows] {
		rec := broker.Record{Message: row.Message, TopicID: topic.ID,
			Position: event.Position{Topic: s.id.topic, Partition: s.id.partition}}
		r.publisher.Publish(rec, func(_ int64, err error) {
			if err != nil {
				f.fail(i, err)
			}
			if f.left.Add(-1) == 0 {
				r.do(func() { r.acknowledged(s, f) })
			}
		})
	}
	return true
}

// acknowledged lets a stream go on once its run has all its answers.
func (r *relay) acknowledged(s *stream, f *flight) {
	r.rows -= f.rows
	r.bytes -= f.bytes
	if r.halted != nil && r.rows == 0 {
		defer close(r.halted)
	}
	if s.box.gone {
		return
	}
	done := f.rows
	if s.failed = f.failed; s.failed != nil {
		done = f.failedAt
	}
	for _, row := range s.rows[:done] {
		r.mark(s.box, row.Seq, row.Seq)
		s.box.bytes -= size(row.Message)
	}
	r.trim(s.box)
	r.meter.Published(done)
	clear(s.rows[:done])
	s.rows = s.rows[done:]
	s.underway = 0
	s.box.held -= done
	r.settle(s.id.lease, -done)
	r.wantRows(s.box)
	if s.failed != nil {
		r.topics.nudge(s.failed)
		r.standStill(s)
		return
	}
	s.attempt = 0
	r.reroute(s)
	if len(s.rows) > 0 {
		r.due = append(r.due, s)
	} else {
		delete(r.streams, s.id)
	}
}

// standStill lets a failed stream wait before it starts again at its lowest row.
func (r *relay) standStill(s *stream) {
	s.attempt++
	wait := backoff(s.attempt, 100*time.Millisecond, 10*time.Second, r.rand)
	r.log.Warn("publishing failed; the stream starts again at its lowest row", "group", s.id.lease.Group, "topic", s.id.topic,
		"partition", s.id.partition, "attempt", s.attempt, "error", s.failed)
	r.notify(Notice{Time: time.Now(), Kind: NoticeStall, Agent: s.id.lease.Group, Topic: s.id.topic, Partition: s.id.partition,
		Text: "publishing stands still: " + FirstLine(s.failed.Error())})
	time.AfterFunc(wait, func() {
		r.do(func() {
			s.failed = nil
			r.due = append(r.due, s)
			r.reroute(s)
		})
	})
}

// mark notes the rows from one number to another as published.
func (r *relay) mark(box *outbox, from, to int64) {
	if from <= to {
		box.acked = box.acked.Add(ledger.Span{From: from, To: to})
	}
}

// trim has the rows deleted that leave no gap below them. While a stream stands still its rows hold such a gap open;
// then what is scattered above goes now and then, and stays noted, since it will have to join up later.
func (r *relay) trim(box *outbox) {
	var gone []ledger.Published
	if next, rest := box.acked.Advance(box.deleted + 1); next > box.deleted+1 {
		gone = append(gone, ledger.Published{Fence: box.fence, From: box.deleted + 1, To: next - 1})
		box.deleted, box.acked = next-1, rest
	}
	if n := len(box.acked); n > 0 && box.acked[n-1].To > max(box.swept, box.deleted)+outboxPage {
		for _, s := range box.acked {
			if s.To > box.swept {
				gone = append(gone, ledger.Published{Fence: box.fence, From: s.From, To: s.To})
			}
		}
		box.swept = box.acked[n-1].To
	}
	if len(gone) > 0 {
		r.commits.forget(gone)
	}
}

// flush waits until all that was handed over is published, at most until ctx ends.
func (r *relay) flush(ctx context.Context) {
	for {
		r.mu.Lock()
		done, changed := r.pending == 0, r.changed
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// haltTime bounds waiting for the broker's answers at the end.
const haltTime = 3 * time.Second

// halt lets nothing more out and waits for what is under way, so that what the broker has is also deleted: an end in
// order makes no copies.
func (r *relay) halt() {
	done := make(chan struct{})
	r.do(func() {
		r.halted = done
		if r.rows == 0 {
			close(done)
		}
	})
	select {
	case <-done:
	case <-time.After(haltTime):
	}
}

// backlog is the number of rows known of and not yet published.
func (r *relay) backlog() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending
}
