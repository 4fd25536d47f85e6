package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/fair"
	"github.com/swarmlog/swarmlog/ledger"
)

// Bounds of one partition: over the upper one it is held back, under the lower one it goes on. They also bound the
// finished ranges that a lease row can hold.
const (
	partitionHigh = 4096
	partitionLow  = 2048
)

// group is one agent in this worker: the partitions that it owns and the lanes of their aggregates.
type group struct {
	eng    *Engine
	spec   Agent
	log    *slog.Logger
	topics map[string]broker.Topic
	reader broker.Reader

	mu              sync.Mutex
	parts           map[partID]*partition
	membership      membership
	freeSince       map[partID]time.Time    // partitions that were free at the last look
	atWork          map[*task]struct{}      // whose handlers run
	carrying        map[*partition]struct{} // partitions that were passed on, while steps of them run here
	births          int64                   // partitions taken so far
	ready           fair.Queue[*lane]       // lanes whose first task may run
	heavy           fair.Queue[*lane]       // the same, for tasks of more than a quarter of the weight limit
	running         int
	light           int64 // weight of running tasks, by budget
	heavyNow        int64
	queued          int64               // bytes of records admitted and not settled
	closed          bool                // no more work is started
	breakers        map[string]*breaker // by dependency
	openCircuits    int                 // of them, those that let nothing through
	paused          paused
	due             []*drive // aggregates whose backlog is to go on, as soon as few enough others do
	driving         int
	failed          error
	committed       committed
	estates         estates
	misrouted       int64         // records passed over
	covers          chan struct{} // of the forwarding agent: closed once it has a topic to read
	toldUnavailable time.Time     // when it was last told that something is down
	room            chan struct{} // signalled when queued falls
	changed         chan struct{} // closed and renewed when running or a partition's pending falls to zero
}

type partID struct {
	topic     string
	partition int32
}

// partition is a partition that this worker owns for the group.
type partition struct {
	id    partID
	topic broker.Topic
	fence ledger.Fence
	ctx   context.Context // ends when the partition is lost
	lose  context.CancelFunc

	born int64 // the group's count of births when it was taken

	// All below is guarded by group.mu.
	from     int64         // the offset after the last delivered one
	next     int64         // progress as committed
	finished ledger.Ranges // committed above next
	end      int64         // high watermark
	lanes    map[string]*lane
	ids      map[ident]int // events that are queued or running, to notice copies
	parked   map[string]string
	pending  int // tasks admitted and not settled
	bytes    int64
	reported int64
	held     bool // paused at the reader
	// What was read up to here, finished or not.
	delivered int64
	troubles  int   // reads that failed in a row
	leaving   bool  // no more is admitted: the lease is about to be given back
	pausing   bool  // that is so since the agent is paused
	full      bool  // not read: too much of it waits in the backlog
	known     int64 // what was finished of it when it was taken ends here
	waiting   int64
	gaps      map[string]*missing
	clog      *time.Timer
	drives    map[string]*drive
	flying    flights
	dead      bool // a record of it has died, at any time

	fenced  bool             // a step of it was refused since it has another owner
	handing bool             // its lease is just being passed on
	passed  bool             // its lease was passed on, and what still runs of it is carried
	after   []func()         // what waits until its lease is passed
	carried map[int64]string // lanes, by offset, of steps that a worker before this one still carries
	blocked map[string]int   // of them, by lane
}

func newGroup(e *Engine, spec Agent) *group {
	l := &spec.Limits
	setDefault(&l.Steps, 64)
	setDefault(&l.Bytes, 64<<20)
	setDefault(&l.Timeout, 5*time.Minute)
	setDefault(&l.Attempts, defaultAttempts)
	setDefault(&l.Backoff, 100*time.Millisecond)
	setDefault(&l.MaxWait, 30*time.Second)
	setDefault(&l.Hops, 64)
	setDefault(&l.Waiting, 100_000)
	setDefault(&l.GapWait, 15*time.Minute)
	setDefault(&spec.OnDead, Park)
	return &group{eng: e, spec: spec, log: e.log.With("agent", spec.Name), parts: map[partID]*partition{},
		carrying: map[*partition]struct{}{}, atWork: map[*task]struct{}{},
		topics: map[string]broker.Topic{}, room: make(chan struct{}, 1), changed: make(chan struct{}), covers: make(chan struct{})}
}

// targets are the topics that the agent's outbox may name.
func (g *group) targets() []string {
	targets := append([]string(nil), g.spec.Emits...)
	for _, t := range g.spec.Reads {
		targets = append(targets, DeadTopic(t))
	}
	return targets
}

// lookUp asks the broker for the topics that the agent reads.
func (g *group) lookUp(ctx context.Context) error {
	if err := g.eng.topics.learn(ctx, g.spec.Reads...); err != nil {
		return fmt.Errorf("agent %s: look up what it reads: %w", g.spec.Name, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, name := range g.spec.Reads {
		t := g.eng.topics.of(name)
		if !g.spec.forwards {
			g.topics[name] = t.Topic
		} else if t.Partitions > t.slots {
			g.coverLocked(name)
		}
	}
	return nil
}

// run reads and admits until ctx ends.
func (g *group) run(ctx context.Context) {
	if !g.awaitTopics(ctx) {
		return
	}
	reader, err := g.eng.opts.Broker.Reader(g.eng.opts.Swarm + "." + g.spec.Name)
	if err != nil {
		g.fail(fmt.Errorf("open a reader: %w", err))
		return
	}
	defer reader.Close()
	g.mu.Lock()
	g.reader = reader
	for _, p := range g.parts {
		reader.Add(p.topic, p.id.partition, p.from)
		if p.held || p.full {
			reader.Pause(p.id.topic, p.id.partition)
		}
	}
	g.mu.Unlock()
	for failures := 0; ctx.Err() == nil; {
		if !g.awaitRoom(ctx) {
			return
		}
		g.mu.Lock()
		births := g.births
		g.mu.Unlock()
		fetches, err := reader.Poll(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			failures++
			g.log.Warn("poll failed; trying again", "error", err, "failures", failures)
			if !sleep(ctx, backoff(failures, 100*time.Millisecond, 10*time.Second, g.eng.opts.Rand)) {
				return
			}
			continue
		}
		failures = 0
		g.admit(ctx, fetches, births)
	}
}

// awaitRoom waits until the weight that is queued leaves room for another fetch.
func (g *group) awaitRoom(ctx context.Context) bool {
	for {
		g.mu.Lock()
		room := g.queued < g.spec.Limits.Bytes && !g.closed
		g.mu.Unlock()
		if room {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-g.room:
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// askedAtOnce is how many records, about, one look at what was seen covers: few enough that handlers of a large fetch
// begin while the rest of it is looked up.
const askedAtOnce = 512

// arrival is what a fetch brought of one partition.
type arrival struct {
	p     *partition
	end   int64
	tasks []*task
}

// admit queues what a poll brought. Its fetches share looks at what was seen, each of which is a transaction, and
// dispatches, each of which may wake a thread: at low rates those would be most of a record's way to its handler.
func (g *group) admit(ctx context.Context, fetches []broker.Fetch, births int64) {
	var arrivals []arrival
	var tasks []*task
	queue := func() {
		g.askSeen(ctx, tasks)
		g.queue(arrivals)
		arrivals, tasks = arrivals[:0], tasks[:0]
	}
	for _, f := range fetches {
		a, ok := g.arrive(ctx, f, births)
		if !ok {
			continue
		}
		arrivals, tasks = append(arrivals, a), append(tasks, a.tasks...)
		if len(tasks) >= askedAtOnce {
			queue()
		}
	}
	if len(arrivals) > 0 {
		queue()
	}
}

// arrive decodes what a fetch brought, if it's to be worked on. births is the group's count from before the fetch was
// asked for: a partition that was taken since may get records here that were read for its earlier life, further on in
// the log, and taking those for the next ones would pass over what lies between. So it's read again from its own place.
func (g *group) arrive(ctx context.Context, f broker.Fetch, births int64) (a arrival, ok bool) {
	g.mu.Lock()
	p := g.parts[partID{f.Topic, f.Partition}]
	if p != nil && p.born > births {
		g.readFrom(p)
		p = nil
	}
	g.mu.Unlock()
	if p == nil || p.ctx.Err() != nil || (f.Err == nil && f.TopicID != p.fence.TopicID) {
		return arrival{}, false
	}
	if f.Err != nil {
		g.unreadable(ctx, p, f.Err)
		return arrival{}, false
	}
	return arrival{p, f.End, g.sort(f.Records)}, true
}

// queue puts what arrived into lanes, and starts what the limits allow.
func (g *group) queue(arrivals []arrival) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range arrivals {
		p := a.p
		if p.leaving || g.closed || g.parts[p.id] != p {
			continue
		}
		p.end = max(p.end, a.end)
		p.troubles = 0
		for _, t := range a.tasks {
			g.enqueue(p, t)
		}
		if !p.held && (p.pending >= partitionHigh || p.bytes > g.spec.Limits.Bytes/4) {
			p.held = true
			g.reader.Pause(p.id.topic, p.id.partition)
			g.watchClog(p)
		}
		g.limitBacklog(p)
		g.readOnward(p)
	}
	g.dispatch()
}

// open decodes a record. One that can't be decoded becomes a task that dies.
func (g *group) open(r broker.Record) *task {
	if g.spec.forwards {
		return g.openKey(r)
	}
	t := &task{record: r, bytes: int64(len(r.Key) + len(r.Value) + 64)}
	m := r.Message
	m.Key = g.eng.opts.Salts.ID(r.Topic, m.Key)
	t.event, t.broken = event.Decode(m, r.Position)
	if t.broken != nil {
		t.event = event.Event{ID: event.PositionID(r.Position), Source: "kafka:///" + r.Topic, Subject: t.event.Subject, Positional: true}
	}
	t.weight = t.bytes
	if g.spec.Weigh != nil && t.broken == nil {
		t.weight = max(t.bytes, g.spec.Weigh(t.event))
	}
	t.weight = min(t.weight, g.spec.Limits.Bytes*3/4)
	return t
}

// askSeen marks the tasks whose events were applied before, so that no work is done for them. That it can't be
// asked is no reason to wait: the commit asks again.
func (g *group) askSeen(ctx context.Context, tasks []*task) {
	ids := make([]ledger.Identity, 0, len(tasks))
	asked := make([]*task, 0, len(tasks))
	for _, t := range tasks {
		_, inSequence := t.event.Sequence() // which tells copies, at the commit
		if t.broken == nil && !t.misrouted && !t.event.Positional && !inSequence {
			ids = append(ids, ledger.Identity{Source: t.event.Source, ID: t.event.ID})
			asked = append(asked, t)
		}
	}
	if len(ids) == 0 {
		return
	}
	seen, err := g.eng.opts.Ledger.Seen(ctx, g.spec.Name, ids)
	if err != nil {
		g.log.Warn("could not ask what was seen; duplicates will be worked on and dropped at the commit", "error", err)
		return
	}
	for i, digest := range seen {
		asked[i].seen = digest
	}
}

// enqueue puts a task into the lane of its aggregate. g.mu is held.
func (g *group) enqueue(p *partition, t *task) {
	offset := t.record.Offset
	p.delivered = max(p.delivered, offset+1)
	if offset < p.from { // a reader that was added again may deliver what was delivered before
		return
	}
	if offset < p.next {
		p.from = offset + 1
		return
	}
	if p.finished.Contains(offset) {
		return // from stays: the next task also finishes a hole that compaction made below this record
	}
	t.from = p.from
	p.from = offset + 1
	g.account(p, t)
	g.place(p, t)
}

func (g *group) notice(kind NoticeKind, p *partition, offset int64, subject, text string) {
	n := Notice{Time: time.Now(), Kind: kind, Agent: g.spec.Name, Offset: offset, Subject: subject, Text: text}
	if p != nil {
		n.Topic, n.Partition = p.id.topic, p.id.partition
	}
	g.eng.opts.Notify(n)
}

// fail stops the agent for good; the others go on.
func (g *group) fail(err error) {
	g.mu.Lock()
	first := g.failed == nil
	if first {
		g.failed = err
	}
	g.closed = true
	for _, p := range g.parts {
		p.lose()
	}
	for p := range g.carrying {
		p.lose()
	}
	g.mu.Unlock()
	if first {
		g.log.Error("agent stopped", "error", err)
		g.notice(NoticeFailed, nil, 0, "", err.Error())
	}
}

func (g *group) failure() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}
