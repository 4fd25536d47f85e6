package event

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// HeaderFrom says of a record that was forwarded where it stood before: TOPIC/PARTITION@OFFSET, and behind a point the
// time that it had there, in milliseconds since 1970. Each time that a record is forwarded adds one; the first tells
// where its producer put it.
const HeaderFrom = "swarmlog-from"

// Origin is where a record stood that was forwarded, and the time that it had there.
type Origin struct {
	Position
	Time time.Time
}

func (o Origin) String() string {
	if o.Time.IsZero() {
		return PositionID(o.Position)
	}
	return stampedID(PositionID(o.Position), o.Time)
}

// ParseOrigin reads what String writes. Nothing else is an origin.
func ParseOrigin(s string) (Origin, bool) {
	slash := strings.LastIndexByte(s, '/')
	if slash < 1 || slash > 249 || checkIdentity("", []byte(s[:slash])) != nil {
		return Origin{}, false
	}
	partition, rest, ok := strings.Cut(s[slash+1:], "@")
	if !ok {
		return Origin{}, false
	}
	offset, stamp, stamped := strings.Cut(rest, ".")
	p, err := strconv.ParseInt(partition, 10, 32)
	if err != nil {
		return Origin{}, false
	}
	n, err := strconv.ParseInt(offset, 10, 64)
	if err != nil || p < 0 || n < 0 {
		return Origin{}, false
	}
	o := Origin{Position: Position{Topic: s[:slash], Partition: int32(p), Offset: n}}
	if stamped {
		ms, err := strconv.ParseInt(stamp, 10, 64)
		if err != nil {
			return Origin{}, false
		}
		o.Time = time.UnixMilli(ms).UTC()
	}
	return o, o.String() == s // one spelling each, since it's an id
}

// Origin is where a record's producer put it, if it was forwarded since within its topic. It's false too where the
// header is no origin: whatever that says, it isn't ours.
func (m Message) Origin(topic string) (Origin, bool) {
	for _, h := range m.Headers {
		if h.Key == HeaderFrom {
			o, ok := ParseOrigin(string(h.Value))
			return o, ok && o.Topic == topic
		}
	}
	return Origin{}, false
}

// Forwarded is the message as it goes to another partition: as it is, with where it stood.
func (m Message) Forwarded(from Position) Message {
	m.Headers = append(slices.Clip(m.Headers), Header{Key: HeaderFrom, Value: []byte(Origin{from, m.Time}.String())})
	m.Time = time.Time{}
	return m
}

// Hops counts how often a message was forwarded.
func (m Message) Hops() (n int) {
	for _, h := range m.Headers {
		if h.Key == HeaderFrom {
			n++
		}
	}
	return n
}

// KeyName names a key as a subject can be named: as it is, or, where it can't be one, by its digest.
func KeyName(key []byte) string {
	if len(key) > 0 && checkIdentity("", key) == nil {
		return string(key)
	}
	return "key-" + digestID("key", string(key))
}
