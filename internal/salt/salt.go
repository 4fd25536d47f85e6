// Package salt owns which keys are salted: on topics whose events are declared
// commutative, the id of an aggregate that dominates what is emitted, so that
// its records spread over the partitions. How a salted key is written is package
// route's. It does no I/O; what it has counted is lost in a crash and is soon
// counted anew, since nobody who reads depends on it.
package salt

import (
	"sync"

	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/internal/sketch"
)

// Bounds are the shares of what is emitted to a topic above which a key begins to be salted, and below which it no longer
// is. Between them it stays as it is.
type Bounds struct{ On, Off float64 }

// Next decides whether a key that is salted now, or isn't, is to be, by the least and the most that its share may be.
func (b Bounds) Next(on bool, least, most float64) bool {
	if on {
		return most >= b.Off
	}
	return least > b.On
}

// Options bound the salting of one topic. The zero value of a field means its default.
type Options struct {
	Bounds Bounds // default 0.3 and 0.15
	Salts  int    // of one key; default 16, and never more than there are slots
	Window int    // records after which all counts are halved; default 1024. Nothing is decided before half as many.
	Keys   int    // that are counted; default 64
}

func (o *Options) setDefaults() {
	if o.Bounds == (Bounds{}) {
		o.Bounds = Bounds{On: 0.30, Off: 0.15}
	}
	if o.Salts <= 0 {
		o.Salts = 16
	}
	if o.Window <= 0 {
		o.Window = 1024
	}
	if o.Keys <= 0 {
		o.Keys = 64
	}
}

// Change is told where a key begins to be salted or no longer is.
type Change struct {
	Topic string
	Key   string
	On    bool
	Share float64 // of what was emitted lately
}

// Topics are the topics whose events are declared commutative. Nil is none. It's safe for concurrent use.
type Topics struct {
	tell func(Change)
	mu   sync.Mutex
	by   map[string]*salter
}

// New makes them of their names. tell, which may be nil, is called with a lock held and must not block.
func New(tell func(Change), o Options, names ...string) *Topics {
	o.setDefaults()
	t := &Topics{tell: tell, by: map[string]*salter{}}
	for _, n := range names {
		t.by[n] = &salter{opts: o, counts: sketch.NewTopK(o.Keys), hot: map[string]*hot{}}
	}
	return t
}

// Has tells whether a topic's events are declared commutative.
func (t *Topics) Has(topic string) bool { return t != nil && t.by[topic] != nil }

// Key is the key that a record of an aggregate gets which is about to be emitted to a topic with a number of slots. On
// other topics, and without an aggregate, that is the id itself. ordered says that the event is part of a sequence,
// which salting would tear apart: then it's escaped alone.
func (t *Topics) Key(topic string, id []byte, slots int32, ordered bool) []byte {
	if !t.Has(topic) || id == nil {
		return id
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.by[topic]
	for _, c := range s.count(string(id)) {
		c.Topic = topic
		if t.tell != nil {
			t.tell(c)
		}
	}
	h := s.hot[string(id)]
	if h == nil || ordered || slots < 2 {
		return route.Escaped(id)
	}
	if h.salts == nil || h.slots != slots {
		h.salts, h.slots = route.Salts(id, slots, s.opts.Salts), slots
	}
	h.next++
	return route.Salted(id, h.salts[h.next%len(h.salts)])
}

// ID is the aggregate's id of a key that was read from a topic.
func (t *Topics) ID(topic string, key []byte) []byte {
	if !t.Has(topic) || key == nil {
		return key
	}
	id, _ := route.Unsalted(key)
	return id
}

// Hot lists the keys of a topic that are salted at present.
func (t *Topics) Hot(topic string) (keys []string) {
	if !t.Has(topic) {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.by[topic].hot {
		keys = append(keys, key)
	}
	return keys
}

// salter counts what is emitted to one topic.
type salter struct {
	opts   Options
	counts *sketch.TopK
	since  int // records since counts were halved
	hot    map[string]*hot
}

// hot is a key that is salted.
type hot struct {
	salts []int
	slots int32
	next  int
}

// count counts a record, and returns what changes by that.
func (s *salter) count(key string) (changes []Change) {
	s.counts.Add(key, 1)
	if s.since++; s.since >= s.opts.Window {
		s.since = 0
		s.counts.Decay(0.5)
		for other := range s.hot {
			changes = s.decide(other, changes)
		}
	}
	if s.hot[key] == nil && s.counts.Total() >= float64(s.opts.Window)/2 {
		changes = s.decide(key, changes)
	}
	return changes
}

func (s *salter) decide(key string, changes []Change) []Change {
	c, total := s.counts.Of(key), s.counts.Total()
	was := s.hot[key] != nil
	is := s.opts.Bounds.Next(was, c.Least()/total, c.Weight/total)
	switch {
	case was == is:
		return changes
	case is:
		s.hot[key] = &hot{}
	default:
		delete(s.hot, key)
	}
	return append(changes, Change{Key: key, On: is, Share: c.Weight / total})
}
