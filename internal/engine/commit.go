package engine

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// deleteDelay is how long acknowledged outbox rows wait for a step's commit that takes them along.
const deleteDelay = 25 * time.Millisecond

// finish is a step on its way into a commit. The committer tells once what became of it: a group's steps all at once,
// so that their lock is taken once a commit, others each by its function.
type finish struct {
	step  *ledger.Step
	group *group
	task  *task
	done  func(ledger.Result) // where group is nil
}

// committer commits in groups: what arrives while one transaction is under way makes the next.
type committer struct {
	ledger ledger.Ledger
	log    *slog.Logger
	meter  Meter
	notify func(Notice)
	rand   func() float64
	batch  int

	mu        sync.Mutex
	waiting   []finish
	published []ledger.Published
	busy      bool // a transaction is under way
	count     int64
	stall     error
	wake      chan struct{}
	quiet     []chan struct{} // closed once nothing waits or is under way
}

func newCommitter(o Options) *committer {
	return &committer{ledger: o.Ledger, log: o.Logger, meter: o.Meter, notify: o.Notify, rand: o.Rand, batch: o.Batch,
		wake: make(chan struct{}, 1)}
}

// add queues a finished step.
func (c *committer) add(f finish) {
	c.mu.Lock()
	c.waiting = append(c.waiting, f)
	c.mu.Unlock()
	signal(c.wake)
}

// forget queues the deletion of published rows.
func (c *committer) forget(rows []ledger.Published) {
	c.mu.Lock()
	c.published = append(c.published, rows...)
	c.mu.Unlock()
	signal(c.wake)
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (c *committer) run(ctx context.Context) {
	for {
		fs, rows := c.take(ctx)
		if len(fs) == 0 && len(rows) == 0 {
			return
		}
		c.commit(ctx, fs, rows)
		c.mu.Lock()
		c.busy = false
		c.releaseQuiet()
		c.mu.Unlock()
	}
}

// take waits for something to commit; nothing means that ctx ended.
func (c *committer) take(ctx context.Context) ([]finish, []ledger.Published) {
	var patience <-chan time.Time
	late := false
	for {
		c.mu.Lock()
		if len(c.waiting) > 0 || (len(c.published) > 0 && (late || len(c.quiet) > 0)) {
			fs, rows := c.cut()
			c.mu.Unlock()
			return fs, rows
		}
		if len(c.published) > 0 && patience == nil {
			patience = time.After(deleteDelay)
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, nil
		case <-c.wake:
		case <-patience:
			late = true
		}
	}
}

// cut takes one batch off the queue. c.mu is held.
func (c *committer) cut() ([]finish, []ledger.Published) {
	n := min(len(c.waiting), c.batch)
	fs := c.waiting[:n:n]
	c.waiting = c.waiting[n:]
	if len(c.waiting) == 0 {
		c.waiting = nil
	}
	rows := c.published
	c.published = nil
	c.busy = true
	return fs, rows
}

// commit gets a batch committed, however long it takes, or gives up at the end of ctx: then nobody is settled, and
// the ledger decides at the next start what was done.
func (c *committer) commit(ctx context.Context, fs []finish, rows []ledger.Published) {
	b := &ledger.Batch{Published: rows, Steps: make([]*ledger.Step, len(fs))}
	for i, f := range fs {
		b.Steps[i] = f.step
	}
	start := time.Now()
	results, ok := c.insist(ctx, b)
	if !ok {
		return
	}
	c.mu.Lock()
	c.count++ // before anyone can act on it: who sees what a commit brought about sees that there was one
	c.mu.Unlock()
	c.meter.Committed(len(fs), time.Since(start))
	settle(fs, results)
}

// settle tells the owners of steps what became of these.
func settle(fs []finish, results []ledger.Result) {
	var groups []*group
	of := map[*group][]settlement{}
	for i, f := range fs {
		if f.group == nil {
			f.done(results[i])
			continue
		}
		if of[f.group] == nil {
			groups = append(groups, f.group)
		}
		of[f.group] = append(of[f.group], settlement{f.task, f.step, results[i]})
	}
	for _, g := range groups {
		g.settle(of[g])
	}
}

func (c *committer) insist(ctx context.Context, b *ledger.Batch) ([]ledger.Result, bool) {
	unknown := false
	for attempt := 1; ; attempt++ {
		results, err := c.try(ctx, b, &unknown)
		c.setStalled(err)
		if err == nil {
			return results, true
		}
		select {
		case <-ctx.Done():
			return nil, false
		case <-time.After(backoff(attempt, 100*time.Millisecond, 10*time.Second, c.rand)):
		}
	}
}

// try commits once. Where an earlier COMMIT's outcome is unknown, that is settled first.
func (c *committer) try(ctx context.Context, b *ledger.Batch, unknown *bool) ([]ledger.Result, error) {
	if *unknown {
		results, committed, err := c.ledger.Resolve(ctx, b)
		if err != nil {
			return nil, err
		}
		*unknown = false
		if committed {
			return results, nil
		}
	}
	results, err := c.ledger.Commit(ctx, b)
	*unknown = errors.Is(err, ledger.ErrUnknown)
	return results, err
}

func (c *committer) setStalled(err error) {
	c.mu.Lock()
	before := c.stall
	c.stall = err
	c.mu.Unlock()
	switch {
	case before == nil && err != nil:
		c.log.Error("commit failed; trying again", "error", err)
		c.notify(Notice{Time: time.Now(), Kind: NoticeStall, Text: "commits stand still: " + err.Error()})
	case before != nil && err == nil:
		c.log.Info("commits go on")
		c.notify(Notice{Time: time.Now(), Kind: NoticeStall, Text: "commits go on"})
	}
}

func (c *committer) stalled() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stall
}

// commits counts transactions; while it stands still, nothing new can have been published.
func (c *committer) commits() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// flush waits until all that was added is committed, at most until ctx ends.
func (c *committer) flush(ctx context.Context) {
	done := make(chan struct{})
	c.mu.Lock()
	c.quiet = append(c.quiet, done)
	c.releaseQuiet()
	c.mu.Unlock()
	signal(c.wake)
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// releaseQuiet wakes those who wait in flush. c.mu is held.
func (c *committer) releaseQuiet() {
	if c.busy || len(c.waiting) > 0 || len(c.published) > 0 {
		return
	}
	for _, done := range c.quiet {
		close(done)
	}
	c.quiet = nil
}
