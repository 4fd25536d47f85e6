package event

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// perSubject is the value of sequencetype by which a sequence is Swarmlog's
// own: it counts the events of one source about one subject from 1, without
// gaps. CloudEvents leaves other meanings open, such as a count over the whole
// source, whose gaps per subject mean nothing.
const perSubject = "PerSubject"

// Sequence is the event's place in the history of its subject, from 1, where
// the event carries one: an attribute sequence under sequencetype PerSubject,
// as SetSequence writes. Any other sequence, number or not, is none.
func (e Event) Sequence() (int64, bool) {
	if len(e.Extensions) == 0 || e.Extensions[extSequenceType] != perSubject {
		return 0, false
	}
	n, err := strconv.ParseInt(e.Extensions[extSequence], 10, 64)
	if err != nil || n < 1 {
		return 0, false
	}
	return n, true
}

// SetSequence gives the event its place in the history of its subject. The
// number is written with leading zeros, since the extension asks for values in
// lexicographic order.
func (e *Event) SetSequence(n int64) {
	e.SetExtension(extSequenceType, perSubject)
	e.SetExtension(extSequence, fmt.Sprintf("%019d", n))
}

// RecordedTime is when the event was first accepted, where it says so.
func (e Event) RecordedTime() (time.Time, bool) {
	v, ok := e.Extensions[extRecordedTime]
	if !ok {
		return time.Time{}, false
	}
	t, err := parseTime([]byte(v))
	return t, err == nil
}

// SetRecordedTime says when the event was first accepted. It's set once: copies and forwarded events keep it.
func (e *Event) SetRecordedTime(t time.Time) {
	e.SetExtension(extRecordedTime, t.UTC().Format(time.RFC3339Nano))
}

// Hops counts the events between this one and its origin; an origin has 0. A
// count that can't be read is the largest one, so that it stops a cycle and doesn't feed it.
func (e Event) Hops() int {
	v, ok := e.Extensions[extHops]
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil || n < 0 {
		return math.MaxInt32
	}
	return int(n)
}

// SetHops sets the count of hops; 0 is written by leaving it out.
func (e *Event) SetHops(n int) {
	if n == 0 && e.Extensions[extHops] == "" {
		return
	}
	e.SetExtension(extHops, strconv.Itoa(n))
}
