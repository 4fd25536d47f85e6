package ledger

import (
	"encoding/binary"
	"fmt"
	"sort"
)

// Span is the offsets From to To, both included.
type Span struct{ From, To int64 }

// Ranges is a set of offsets as ascending spans that neither touch nor overlap.
type Ranges []Span

// Add is the set with a span added. The receiver isn't used afterwards.
func (r Ranges) Add(s Span) Ranges {
	// i is the first span that s may touch, j the first one wholly above it.
	i := sort.Search(len(r), func(i int) bool { return r[i].To >= s.From-1 })
	j := i
	for ; j < len(r) && r[j].From-1 <= s.To; j++ { // not To+1, which may be beyond the last number
		s.From, s.To = min(s.From, r[j].From), max(s.To, r[j].To)
	}
	if i == j {
		r = append(r, Span{})
		copy(r[i+1:], r[i:])
		r[i] = s
		return r
	}
	r[i] = s
	return append(r[:i+1], r[j:]...)
}

// Contains tells whether an offset is in the set.
func (r Ranges) Contains(offset int64) bool {
	i := sort.Search(len(r), func(i int) bool { return r[i].To >= offset })
	return i < len(r) && r[i].From <= offset
}

// Advance moves the watermark next over the spans that continue it, and returns it with what remains above.
func (r Ranges) Advance(next int64) (int64, Ranges) {
	n := 0
	for ; n < len(r) && r[n].From <= next; n++ {
		next = max(next, r[n].To+1)
	}
	return next, r[n:]
}

// Clone is a copy that shares nothing.
func (r Ranges) Clone() Ranges { return append(Ranges(nil), r...) }

// Encode writes the set as distances from next, in varints: a few bytes a span. An empty set is nil.
func (r Ranges) Encode(next int64) []byte {
	if len(r) == 0 {
		return nil
	}
	b := make([]byte, 0, 4*len(r))
	at := next
	for _, s := range r {
		b = binary.AppendUvarint(b, uint64(s.From-at))
		b = binary.AppendUvarint(b, uint64(s.To-s.From))
		at = s.To
	}
	return b
}

// DecodeRanges reads what Encode wrote.
func DecodeRanges(next int64, b []byte) (Ranges, error) {
	var r Ranges
	at := next
	for len(b) > 0 {
		from, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, fmt.Errorf("decode finished ranges: bad distance after offset %d", at)
		}
		length, m := binary.Uvarint(b[n:])
		if m <= 0 {
			return nil, fmt.Errorf("decode finished ranges: bad length after offset %d", at)
		}
		s := Span{From: at + int64(from), To: at + int64(from) + int64(length)}
		// A span at the watermark would have moved it, and one that touches the last would be part of it.
		if s.From <= at || s.To < s.From || (len(r) > 0 && s.From-1 == at) {
			return nil, fmt.Errorf("decode finished ranges: spans out of order after offset %d", at)
		}
		r = append(r, s)
		at, b = s.To, b[n+m:]
	}
	return r, nil
}
