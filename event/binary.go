package event

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/text/unicode/norm"

	"github.com/swarmlog/swarmlog/internal/canonical"
	"github.com/swarmlog/swarmlog/internal/fault"
)

// Encode makes a record of the event in binary mode. Its key is the subject, or
// nil where there's none; a partitionkey extension passes through and decides
// nothing. The subject is brought to Unicode form C first, in the key and in the
// header alike, since two spellings of one name would be two aggregates. Value
// is Data, and the time is written in UTC. Message.Time is left to the broker.
//
// Errors are permanent (package fault): a required attribute is missing, an
// attribute can't be written, or JSON data isn't JSON of one meaning.
func (e Event) Encode() (Message, error) {
	e, err := e.ready()
	if err != nil {
		return Message{}, err
	}
	var stamp []byte
	if !e.Time.IsZero() {
		stamp = e.Time.UTC().AppendFormat(make([]byte, 0, len(time.RFC3339Nano)), time.RFC3339Nano)
	}
	size := len(specVersion) + len(e.ID) + len(e.Source) + len(e.Type) + len(e.Subject) + len(e.DataContentType) + len(e.DataSchema)
	for _, v := range e.Extensions {
		size += len(v)
	}
	// All values lie in one buffer, each with no room to grow into the next.
	buffer := make([]byte, 0, size)
	headers := make([]Header, 0, 8+len(e.Extensions))
	put := func(key, value string) {
		from := len(buffer)
		buffer = append(buffer, value...)
		headers = append(headers, Header{Key: key, Value: buffer[from:len(buffer):len(buffer)]})
	}
	optional := func(key, value string) {
		if value != "" {
			put(key, value)
		}
	}
	put("ce_specversion", specVersion)
	put("ce_id", e.ID)
	put("ce_source", e.Source)
	put("ce_type", e.Type)
	optional("ce_subject", e.Subject)
	if stamp != nil {
		headers = append(headers, Header{Key: "ce_time", Value: stamp})
	}
	optional("ce_dataschema", e.DataSchema)
	optional(contentType, e.DataContentType)
	if len(e.Extensions) > 0 {
		for _, name := range slices.Sorted(maps.Keys(e.Extensions)) {
			put(headerPrefix+name, e.Extensions[name])
		}
	}
	return Message{Key: e.key(), Value: e.Data, Headers: headers}, nil
}

func (e Event) key() []byte {
	if e.Subject == "" {
		return nil
	}
	return []byte(e.Subject)
}

// ready is the event as it may be written, or why it can't be.
func (e Event) ready() (Event, error) {
	e.Subject = normal(e.Subject)
	if err := e.check(); err != nil {
		return Event{}, fault.As(fault.Permanent, fmt.Errorf("encode event %s of type %s: %w", clip([]byte(e.ID)), clip([]byte(e.Type)), err))
	}
	return e, nil
}

// normal is s in Unicode form C.
func normal(s string) string {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return norm.NFC.String(s)
		}
	}
	return s
}

func (e Event) check() error {
	if e.err != nil {
		return e.err
	}
	if e.Type == TypeTombstone {
		return fmt.Errorf("type %s is reserved for records without a value; choose another", TypeTombstone)
	}
	for _, a := range [...]struct {
		name, value string
		required    bool
	}{{"id", e.ID, true}, {"source", e.Source, true}, {"type", e.Type, true}, {"subject", e.Subject, false}} {
		if a.value == "" && a.required {
			return fmt.Errorf("attribute %s is missing; set it", a.name)
		}
		if err := checkIdentity(a.name, a.value); err != nil {
			return err
		}
	}
	if err := checkText("datacontenttype", e.DataContentType); err != nil {
		return err
	}
	if isEventType([]byte(e.DataContentType)) {
		return fmt.Errorf("datacontenttype %s would make readers take the data for an event; wrap it, or name another type",
			clip([]byte(e.DataContentType)))
	}
	if err := checkText("dataschema", e.DataSchema); err != nil {
		return err
	}
	if year := e.Time.UTC().Year(); year < 0 || year > 9999 {
		return fmt.Errorf("year %d can't be written as RFC 3339 has it; correct the time", year)
	}
	if err := e.checkExtensions(); err != nil {
		return err
	}
	if e.Data != nil && e.IsJSON() {
		if err := canonical.Check(e.Data); err != nil {
			return badJSON(len(e.Data), err)
		}
	}
	return nil
}

func (e Event) checkExtensions() error {
	if len(e.Extensions) == 0 {
		return nil
	}
	for name, value := range e.Extensions {
		switch name {
		case "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema":
			return fmt.Errorf("attribute %s stands among the extensions; set its field instead", name)
		}
		if err := checkName(name); err != nil {
			return err
		}
		if err := checkText(name, value); err != nil {
			return err
		}
	}
	return e.checkKnown()
}
