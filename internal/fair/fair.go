// Package fair owns the order in which things of several tenants get their
// turn. It's pure: no clock, no lock, nothing that survives a crash.
//
// There are two classes. While both have something to do, interactive gets
// three turns for each of batch; so neither waits for the other for long.
// Within a class tenants take turns, one thing each, however much each of them
// has; within a tenant first come is first served. With k tenants of a class
// that always have something, each gets every k-th turn of the class.
package fair

// Class is a kind of work.
type Class uint8

const (
	Batch       Class = iota // the default
	Interactive              // somebody waits for it

	classes
)

// Weights are how many turns a class has of each round.
var Weights = [classes]int{Batch: 1, Interactive: 3}

// ClassOf reads a class's name; what isn't one is batch.
func ClassOf(name string) Class {
	if name == "interactive" {
		return Interactive
	}
	return Batch
}

// Queue hands out what was pushed, each in its turn. The zero value is empty.
type Queue[T any] struct {
	of  [classes]turns[T]
	len int
}

// turns is a class: a ring of the tenants that have something.
type turns[T any] struct {
	credit int // turns that are left of this round
	named  map[string]*tenant[T]
	first  *tenant[T] // whose turn is next
}

type tenant[T any] struct {
	name       string
	items      []T
	prev, next *tenant[T]
}

// Len is how many things wait.
func (q *Queue[T]) Len() int { return q.len }

// Push adds a thing behind those of its class and tenant. A tenant that had nothing gets its turn after all others of
// its class.
func (q *Queue[T]) Push(c Class, name string, item T) {
	q.len++
	t := q.of[c].tenant(name)
	if len(t.items) == 0 {
		q.of[c].enter(t)
	}
	t.items = append(t.items, item)
}

// Peek is what Pop will answer if nothing is pushed before.
func (q *Queue[T]) Peek() (item T, ok bool) {
	if q.len == 0 {
		return item, false
	}
	return q.due().first.items[0], true
}

// Pop takes the thing whose turn it is.
func (q *Queue[T]) Pop() (item T, ok bool) {
	if q.len == 0 {
		return item, false
	}
	q.len--
	c := q.due()
	c.credit--
	t := c.first
	item = t.items[0]
	var none T
	t.items[0] = none
	t.items = t.items[1:]
	c.first = t.next
	if len(t.items) == 0 {
		c.leave(t)
	}
	return item, true
}

// due is the class whose turn it is: the more urgent one first, as long as it has turns left of the round.
func (q *Queue[T]) due() *turns[T] {
	for {
		for i := range q.of {
			if c := &q.of[len(q.of)-1-i]; c.first != nil && c.credit > 0 {
				return c
			}
		}
		for i := range q.of {
			q.of[i].credit = Weights[i]
		}
	}
}

// Remove takes out all things that gone says so of.
func (q *Queue[T]) Remove(gone func(T) bool) {
	for i := range q.of {
		c := &q.of[i]
		for _, t := range c.named {
			if len(t.items) == 0 {
				continue
			}
			keep := t.items[:0]
			for _, item := range t.items {
				if !gone(item) {
					keep = append(keep, item)
				}
			}
			q.len -= len(t.items) - len(keep)
			clear(t.items[len(keep):])
			if t.items = keep; len(keep) == 0 {
				c.leave(t)
			}
		}
	}
}

func (c *turns[T]) tenant(name string) *tenant[T] {
	t := c.named[name]
	if t == nil {
		if c.named == nil {
			c.named = map[string]*tenant[T]{}
		}
		t = &tenant[T]{name: name}
		c.named[name] = t
	}
	return t
}

// enter adds a tenant to the ring, as the last one.
func (c *turns[T]) enter(t *tenant[T]) {
	if c.first == nil {
		t.prev, t.next = t, t
		c.first = t
		return
	}
	last := c.first.prev
	t.prev, t.next = last, c.first
	last.next, c.first.prev = t, t
}

// leave takes a tenant that has nothing any more off the ring. The nameless one is kept for later: mostly it's the
// only one.
func (c *turns[T]) leave(t *tenant[T]) {
	switch {
	case t.next == t:
		c.first = nil
	case c.first == t:
		c.first = t.next
	}
	t.prev.next, t.next.prev = t.next, t.prev
	t.prev, t.next = nil, nil
	if t.name != "" {
		delete(c.named, t.name)
	}
}
