package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/ledger"
)

// topic is what the engine knows of a topic: what the broker says, and how many slots its keys have, which stays as it
// was first however the topic grows.
type topic struct {
	broker.Topic
	slots int32
}

// topics is what the engine knows of all topics that its agents read or emit to. Others may grow them, or delete them
// and create them anew, at any time: look asks.
type topics struct {
	broker broker.Broker
	ledger ledger.Ledger
	nudged chan struct{} // something failed that a topic's change would explain

	known atomic.Pointer[map[string]topic] // replaced, never changed

	mu      sync.Mutex // held by those who change known
	missing map[string]bool
}

func newTopics(o Options) *topics {
	t := &topics{broker: o.Broker, ledger: o.Ledger, nudged: make(chan struct{}, 1), missing: map[string]bool{}}
	t.known.Store(&map[string]topic{})
	return t
}

func (t *topics) of(name string) topic { return (*t.known.Load())[name] }

// nudge has the topics looked at soon, where an error says that one isn't what it was.
func (t *topics) nudge(err error) {
	if errors.Is(err, broker.ErrNoTopic) || errors.Is(err, broker.ErrTopicGone) {
		signal(t.nudged)
	}
}

// learn asks for topics that aren't known yet.
func (t *topics) learn(ctx context.Context, names ...string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := maps.Clone(*t.known.Load())
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { _, ok := known[n]; return ok })
	if len(names) == 0 {
		return nil
	}
	found, err := t.broker.Topics(ctx, names...)
	if err != nil {
		return err
	}
	for _, f := range found {
		if known[f.Name], err = t.route(ctx, f); err != nil {
			return err
		}
	}
	t.known.Store(&known)
	return nil
}

// route adds to what the broker says of a topic how many slots it has.
func (t *topics) route(ctx context.Context, of broker.Topic) (topic, error) {
	slots, err := t.ledger.Route(ctx, of.ID, of.Name, of.Partitions)
	if err != nil {
		return topic{}, fmt.Errorf("look up the route of topic %s: %w", of.Name, err)
	}
	return topic{of, slots}, nil
}

// change is how a topic differs from what it was. A topic that is missing has no partitions now.
type change struct{ was, is topic }

// look asks for all topics anew and returns those that have changed. One that is missing for a moment may be a broker
// that doesn't know it yet: it's told as missing when it is for the second time.
func (t *topics) look(ctx context.Context) ([]change, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := maps.Clone(*t.known.Load())
	found, err := t.found(ctx, slices.Sorted(maps.Keys(known)))
	if err != nil {
		return nil, err
	}
	var changes []change
	for name, was := range known {
		f, ok := found[name]
		switch {
		case !ok && t.missing[name] && was.Partitions > 0:
			known[name] = topic{Topic: broker.Topic{Name: name, ID: was.ID, MaxBytes: was.MaxBytes}, slots: was.slots}
		case !ok:
			t.missing[name] = true
			continue
		case f == was.Topic:
			delete(t.missing, name)
			continue
		default:
			delete(t.missing, name)
			is := topic{f, was.slots}
			if f.ID != was.ID {
				if is, err = t.route(ctx, f); err != nil {
					return nil, err
				}
			}
			known[name] = is
		}
		changes = append(changes, change{was, known[name]})
	}
	t.known.Store(&known)
	return changes, nil
}

// found asks for topics, all at once; only where one is missing it has to ask for each.
func (t *topics) found(ctx context.Context, names []string) (map[string]broker.Topic, error) {
	found := map[string]broker.Topic{}
	all, err := t.broker.Topics(ctx, names...)
	if err != nil && !errors.Is(err, broker.ErrNoTopic) {
		return nil, err
	}
	if err != nil {
		for _, name := range names {
			one, err := t.broker.Topics(ctx, name)
			if err != nil && !errors.Is(err, broker.ErrNoTopic) {
				return nil, err
			}
			all = append(all, one...)
		}
	}
	for _, f := range all {
		found[f.Name] = f
	}
	return found, nil
}

// nudgeDelay bounds how often errors have the topics looked at.
const nudgeDelay = 250 * time.Millisecond

// watchTopics looks now and then, and when something fails that it would explain, whether topics have changed, until
// ctx ends.
func (e *Engine) watchTopics(ctx context.Context) {
	e.settleEstates(ctx)
	told := false
	for {
		every := time.Duration(float64(e.opts.Look) * (0.8 + 0.4*e.opts.Rand()))
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		case <-e.topics.nudged:
			if !sleep(ctx, min(nudgeDelay, every)) {
				return
			}
		}
		_ = bounded(ctx, max(e.opts.Look, 5*time.Second), func(ctx context.Context) error {
			changes, err := e.topics.look(ctx)
			if err != nil && !told && ctx.Err() == nil {
				e.log.Warn("topics can't be looked at; trying again", "error", err)
			}
			told = err != nil
			for _, c := range changes {
				e.changed(c)
			}
			e.settleEstates(ctx)
			return nil
		})
	}
}

// changed acts on a topic that isn't what it was. A topic with another id is another topic: nobody has read anything
// of it, whatever its records' offsets are. New partitions are read from their beginning, like any others without a
// lease.
func (e *Engine) changed(c change) {
	text := ""
	switch {
	case c.is.Partitions == 0:
		text = "is missing; what reads it waits until it's there again"
	case c.is.ID != c.was.ID:
		text = "was created anew; it's read from its beginning"
	case c.was.Partitions == 0:
		text = "is there again"
	case c.is.Partitions != c.was.Partitions:
		text = fmt.Sprintf("has grown from %d partitions to %d", c.was.Partitions, c.is.Partitions)
	}
	if text != "" {
		e.log.Warn("topic "+text, "topic", c.is.Name)
		e.opts.Notify(Notice{Time: time.Now(), Kind: NoticeTopic, Topic: c.is.Name, Text: "topic " + text})
	}
	for _, g := range e.groups {
		g.renewed(c.is.Topic)
		if g.spec.forwards && c.is.Partitions > c.is.slots {
			g.cover(c.is.Name)
		}
	}
	e.relay.do(func() { e.relay.refile(c.is) })
}

// renewed takes on what a topic has become, and gives up the partitions of the one that it was.
func (g *group) renewed(t broker.Topic) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, ok := g.topics[t.Name]; !ok {
		return
	}
	if g.topics[t.Name].ID != t.ID {
		g.estates.settled = false
	}
	g.topics[t.Name] = t
	for _, p := range g.parts {
		if p.id.topic == t.Name && (p.topic.ID != t.ID || t.Partitions == 0) {
			g.dropLocked(p)
		}
	}
}

// refile has streams to a topic begin anew, where it's another one now: the partitions of its rows are others. In the
// relay's goroutine.
func (r *relay) refile(t topic) {
	for _, s := range r.streams {
		if s.id.topic == t.Name {
			s.stale = true
			r.reroute(s)
		}
	}
}

// reroute moves the rows of a stream to where they go by now. One that has rows under way is looked at again once they
// are answered. In the relay's goroutine.
func (r *relay) reroute(s *stream) {
	if !s.stale || s.underway > 0 || s.box.gone {
		return
	}
	s.stale = false
	rows := s.rows
	s.rows = nil
	for _, row := range rows {
		to := r.streamOf(s.box, row)
		at, _ := slices.BinarySearchFunc(to.rows[to.underway:], row.Seq, func(o ledger.Outgoing, seq int64) int { return int(o.Seq - seq) })
		to.rows = slices.Insert(to.rows, to.underway+at, row)
		if to.underway == 0 && to.failed == nil && !slices.Contains(r.due, to) {
			r.due = append(r.due, to)
		}
	}
	if len(s.rows) == 0 && s.failed == nil {
		delete(r.streams, s.id)
		r.due = slices.DeleteFunc(r.due, func(d *stream) bool { return d == s })
	}
}
