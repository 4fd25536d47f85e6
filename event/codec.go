package event

import (
	"errors"
	"fmt"
	"strings"

	"github.com/swarmlog/swarmlog/internal/canonical"
	"github.com/swarmlog/swarmlog/internal/fault"
)

const (
	specVersion   = "1.0"
	headerPrefix  = "ce_"
	contentType   = "content-type"
	jsonType      = "application/json"
	eventType     = "application/cloudevents"
	eventJSONType = "application/cloudevents+json"
)

// TypeTombstone is the type of a record without headers of CloudEvents and
// without a value: on a compacted topic it deletes its key. It's never written.
const TypeTombstone = "io.swarmlog.tombstone"

// Tombstone tells whether the event is the deletion of its subject on a compacted topic.
func (e Event) Tombstone() bool {
	return e.Type == TypeTombstone && (e.Positional || e.forwarded) && e.Data == nil
}

// Decode reads a record that stands at a position. It understands CloudEvents
// 1.0 in the binary and the structured mode of the Kafka protocol binding, the
// foreign form {"type": …, "payload": {…}}, and tombstones.
//
// The subject is the record's key where the event names none. Data aliases
// m.Value, byte for byte, wherever the value holds it as it is: it's copied only
// from data_base64 and from strings of structured mode. Attributes are kept as
// they came, without a change of Unicode form.
//
// JSON data must have one meaning: valid UTF-8, no unpaired surrogate, no name
// twice, at most 512 levels. An error is permanent (package fault) and quotes
// nothing of the data; the event that comes with it has just a Subject, the
// best that can be told, so that the record's aggregate can be parked.
func Decode(m Message, at Position) (Event, error) {
	e, err := decode(m, at)
	if err != nil {
		return Event{Subject: aggregate(m)}, fault.As(fault.Permanent, fmt.Errorf("decode record %s: %w", at, err))
	}
	return e, nil
}

func decode(m Message, at Position) (Event, error) {
	var a attributes
	binary, err := a.readHeaders(m.Headers)
	switch {
	case isEventType(a.contentType):
		if !isMediaType(a.contentType, eventJSONType) {
			return Event{}, fmt.Errorf("found content-type %s, of which only %s is supported, one event a record; send that, "+
				"or binary mode", clip(a.contentType), eventJSONType)
		}
		return decodeStructured(m)
	case binary && err != nil:
		return Event{}, err
	case binary:
		return decodeBinary(m, &a)
	case m.Value == nil:
		return decodeTombstone(m, at)
	default:
		return decodeBare(m, at)
	}
}

// decodeBinary makes the event of which a holds the headers (section 3.2 of the Kafka protocol binding).
func decodeBinary(m Message, a *attributes) (Event, error) {
	e, err := a.event(m.Key)
	if err != nil {
		return Event{}, err
	}
	if e.Data = m.Value; e.Data != nil && e.IsJSON() {
		if err := canonical.Check(e.Data); err != nil {
			return Event{}, badJSON(len(e.Data), err)
		}
	}
	return e, nil
}

// badJSON says what is wrong with JSON data. Data is counted, not quoted: it may be confidential.
func badJSON(size int, err error) error {
	if size == 0 {
		return errors.New("found an empty value, expected JSON, as content-type says; send JSON, or no value (null) for no data")
	}
	return fmt.Errorf("found %d bytes that aren't JSON of one meaning: %w; send valid UTF-8 JSON, or another content-type", size, err)
}

// decodeTombstone reads a record that has neither value nor headers of ours.
func decodeTombstone(m Message, at Position) (Event, error) {
	subject, err := keySubject(m.Key)
	if err != nil {
		return Event{}, err
	}
	e := positional(m, at)
	e.Type, e.Subject = TypeTombstone, subject
	return e, nil
}

// decodeBare reads a value without headers of CloudEvents: a structured event
// whose producer can't set headers, or the foreign form.
func decodeBare(m Message, at Position) (Event, error) {
	if len(m.Value) == 0 {
		return Event{}, errors.New("found an empty value and no ce_ headers; " + expected)
	}
	var typ, payload []byte
	structured := false
	err := canonical.Members(m.Value, func(name string, value []byte) error {
		switch name {
		case "specversion":
			structured = true
		case "type":
			typ = value
		case "payload":
			payload = value
		}
		return nil
	})
	switch {
	case err != nil:
		return Event{}, fmt.Errorf("found no ce_ headers and a value of %d bytes that isn't a JSON object of one meaning: %w; %s",
			len(m.Value), err, expected)
	case structured:
		return decodeStructured(m)
	case len(typ) <= len(`""`) || typ[0] != '"' || payload == nil || payload[0] != '{':
		return Event{}, errors.New("found a JSON object and no ce_ headers; " + expected)
	}
	return decodeForeign(m, at, typ, payload)
}

const expected = "expected a CloudEvent 1.0 (ce_ headers, or content-type " + eventJSONType +
	`), or an object {"type": "…", "payload": {…}}; correct the producer`

// decodeForeign reads what agents write that know nothing of CloudEvents. The
// data is the payload; its id is made of the position, since it has none.
func decodeForeign(m Message, at Position, typ, payload []byte) (Event, error) {
	name, err := canonical.Text(typ)
	if err != nil {
		return Event{}, err
	}
	if err := checkIdentity("type", name); err != nil {
		return Event{}, err
	}
	subject, err := keySubject(m.Key)
	if err != nil {
		return Event{}, err
	}
	if subject == "" {
		if subject, err = taskID(payload); err != nil {
			return Event{}, err
		}
	}
	e := positional(m, at)
	e.Type, e.Subject = string(name), subject
	e.DataContentType, e.Data = jsonType, payload
	return e, nil
}

// taskID is payload.taskId, a string or an integer; "" where there's none.
func taskID(payload []byte) (string, error) {
	var id []byte
	err := canonical.Members(payload, func(name string, value []byte) (err error) {
		if name == "taskId" {
			id, err = attributeText("payload.taskId", value)
		}
		return err
	})
	if err != nil || len(id) == 0 {
		return "", err
	}
	return string(id), checkIdentity("payload.taskId", id)
}

// positional makes the event of a record that has no id: its place is its id, which it keeps where it was forwarded, so
// that the copies that forwarding may make are told.
func positional(m Message, at Position) Event {
	if o, ok := m.Origin(at.Topic); ok {
		return Event{ID: o.String(), Source: "kafka:///" + at.Topic, Time: o.Time, forwarded: true}
	}
	id := PositionID(at)
	if !m.Time.IsZero() {
		id = stampedID(id, m.Time)
	}
	return Event{ID: id, Source: "kafka:///" + at.Topic, Time: m.Time, Positional: true}
}

// keySubject is the subject that a record's key names.
func keySubject(key []byte) (string, error) {
	if len(key) == 0 {
		return "", nil
	}
	if err := checkIdentity("the record's key, which names the subject", key); err != nil {
		return "", err
	}
	return string(key), nil
}

// aggregate is the subject of a record that can't be read: of its header, else
// of its key, else, where the key can't be a subject, of the key's digest.
func aggregate(m Message) string {
	for _, h := range m.Headers {
		if h.Key == headerPrefix+"subject" && len(h.Value) > 0 && checkIdentity("", h.Value) == nil {
			return string(h.Value)
		}
	}
	if len(m.Key) == 0 {
		return ""
	}
	return KeyName(m.Key)
}

// IsJSON tells whether the content type declares JSON: */json or */*+json.
func (e Event) IsJSON() bool { return isJSON(e.DataContentType) }

func isJSON(contentType string) bool {
	if contentType == jsonType {
		return true
	}
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	_, sub, ok := strings.Cut(media, "/")
	return ok && (sub == "json" || strings.HasSuffix(sub, "+json"))
}

// isEventType tells whether a content type is a format of CloudEvents, known or not.
func isEventType(ct []byte) bool {
	return len(ct) >= len(eventType) && strings.EqualFold(string(ct[:len(eventType)]), eventType)
}

func isMediaType(ct []byte, want string) bool {
	media, _, _ := strings.Cut(string(ct), ";")
	return strings.EqualFold(strings.TrimSpace(media), want)
}

// clip quotes the start of a value that isn't confidential.
func clip(value []byte) string {
	if len(value) > 64 {
		return fmt.Sprintf("%q…", value[:64])
	}
	return fmt.Sprintf("%q", value)
}
