// Package event owns the envelope that every record travels in: a CloudEvents
// 1.0 event, its ids, its codecs (Kafka binding in binary and structured mode)
// and the foreign shape that other agents already write. It is a leaf: it
// imports nothing of Swarmlog's except the canonical JSON form and the classes
// of errors, does no I/O and keeps no state.
package event

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

// Header is one record header, as the broker holds it.
type Header struct {
	Key   string
	Value []byte
}

// Message is a record without its place: what a producer sends and a reader gets.
// Key and Value are the original bytes and are never rewritten.
type Message struct {
	Key     []byte
	Value   []byte
	Headers []Header
	Time    time.Time // append or create time, as the broker says
}

// Position is where a record stands.
type Position struct {
	Topic     string
	Partition int32
	Offset    int64
}

func (p Position) String() string { return fmt.Sprintf("%s/%d@%d", p.Topic, p.Partition, p.Offset) }

// Event is a CloudEvents 1.0 event.
type Event struct {
	ID      string
	Source  string
	Type    string
	Subject string // the aggregate that order is kept within; the record's key
	Time    time.Time

	DataContentType string
	DataSchema      string
	Data            []byte

	// Extensions holds the other context attributes by their lower-case names,
	// such as sequence, recordedtime and hops.
	Extensions map[string]string

	// Positional is true where the id was made from the record's position,
	// since the record carried none. Such ids have no copies.
	Positional bool
	forwarded  bool // its id was made from the position that its record had first

	err error
}

// New makes an event of a type about a subject. Data may be []byte or
// json.RawMessage (taken as they are), a string (text/plain) or anything that
// encoding/json can marshal. An error of marshalling is kept and returned by
// Err, and by whatever the event is handed to.
// Id, source and time are filled in where the event is emitted.
func New(typ, subject string, data any) Event {
	e := Event{Type: typ, Subject: subject, DataContentType: "application/json"}
	switch d := data.(type) {
	case nil:
		e.DataContentType = ""
	case json.RawMessage:
		e.Data = d
	case []byte:
		e.Data, e.DataContentType = d, "application/octet-stream"
	case string:
		e.Data, e.DataContentType = []byte(d), "text/plain; charset=utf-8"
	default:
		e.Data, e.err = json.Marshal(d)
		if e.err != nil {
			e.err = fmt.Errorf("marshal data of a %s about %q: %w", typ, subject, e.err)
		}
	}
	return e
}

// Err is the error of marshalling the data given to New.
func (e Event) Err() error { return e.err }

// Decode reads the data as JSON into v.
func (e Event) Decode(v any) error {
	if err := json.Unmarshal(e.Data, v); err != nil {
		return fmt.Errorf("decode data of %s %q: %w", e.Type, e.ID, err)
	}
	return nil
}

// Extension is the value of a context attribute beyond the named ones, or "".
func (e Event) Extension(name string) string { return e.Extensions[name] }

// SetExtension sets a context attribute. The map is replaced, not changed, so that copies of the event that share
// it keep theirs.
func (e *Event) SetExtension(name, value string) {
	extensions := make(map[string]string, len(e.Extensions)+1)
	maps.Copy(extensions, e.Extensions)
	extensions[name] = value
	e.Extensions = extensions
}
