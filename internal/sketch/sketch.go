// Package sketch owns counting the heaviest keys of a stream in bounded memory
// (Space-Saving, by Metwally, Agrawal and El Abbadi), with weights that decay.
// It is pure: no clock, no goroutine, nothing of ours imported. It isn't safe
// for concurrent use, and nothing of it survives a crash.
package sketch

import (
	"cmp"
	"container/heap"
	"slices"
)

// Count is what is known of a key: its true weight is at most Weight and at least Weight - Over.
type Count struct {
	Key    string
	Weight float64
	Over   float64 // how much of the weight may be others'
}

// Least is what the key weighs at least.
func (c Count) Least() float64 { return c.Weight - c.Over }

// TopK counts the heaviest keys of a stream. The counts that it keeps add up to the whole stream's weight, so each key
// that weighs more than the whole divided by the capacity is among them.
type TopK struct {
	capacity int
	total    float64
	byKey    map[string]*entry
	heap     lightest
}

type entry struct {
	Count
	at int // in the heap
}

// NewTopK makes an empty one that keeps a number of counts, at least one.
func NewTopK(capacity int) *TopK {
	return &TopK{capacity: max(1, capacity), byKey: map[string]*entry{}}
}

// Add adds weight, which isn't negative, to a key and returns its count. Where there's no count for it and no room,
// it takes the place of the lightest one, with its weight, of which it can't be told how much was the key's own.
func (t *TopK) Add(key string, weight float64) Count {
	t.total += weight
	e := t.byKey[key]
	switch {
	case e != nil:
		e.Weight += weight
		heap.Fix(&t.heap, e.at)
	case len(t.heap) < t.capacity:
		e = &entry{Count: Count{Key: key, Weight: weight}}
		t.byKey[key] = e
		heap.Push(&t.heap, e)
	default:
		e = t.heap[0]
		delete(t.byKey, e.Key)
		e.Key, e.Over, e.Weight = key, e.Weight, e.Weight+weight
		t.byKey[key] = e
		heap.Fix(&t.heap, 0)
	}
	return e.Count
}

// Of is a key's count. One that isn't kept weighs at most what the lightest one does.
func (t *TopK) Of(key string) Count {
	if e := t.byKey[key]; e != nil {
		return e.Count
	}
	if len(t.heap) < t.capacity {
		return Count{Key: key}
	}
	return Count{Key: key, Weight: t.heap[0].Weight, Over: t.heap[0].Weight}
}

// Total is the weight of the whole stream.
func (t *TopK) Total() float64 { return t.total }

// Decay multiplies all weights by a factor from 0 to 1: what came long ago counts less and less.
func (t *TopK) Decay(factor float64) {
	t.total *= factor
	for _, e := range t.heap {
		e.Weight *= factor
		e.Over *= factor
	}
}

// Top lists the n heaviest keys, the heaviest first.
func (t *TopK) Top(n int) []Count {
	all := make([]Count, len(t.heap))
	for i, e := range t.heap {
		all[i] = e.Count
	}
	slices.SortFunc(all, func(a, b Count) int { return cmp.Or(cmp.Compare(b.Weight, a.Weight), cmp.Compare(a.Key, b.Key)) })
	return all[:min(n, len(all))]
}

// lightest is a heap of counts, the lightest first.
type lightest []*entry

func (h lightest) Len() int           { return len(h) }
func (h lightest) Less(i, j int) bool { return h[i].Weight < h[j].Weight }
func (h lightest) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *lightest) Push(x any) {
	e := x.(*entry)
	e.at = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface. Counts are replaced, never popped.
func (h *lightest) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	return e
}
