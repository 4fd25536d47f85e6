package event

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/swarmlog/swarmlog/internal/canonical"
	"github.com/swarmlog/swarmlog/internal/fault"
)

// decodeStructured reads the JSON event format, version 1.0.2.
func decodeStructured(m Message) (Event, error) {
	if len(m.Value) == 0 {
		return Event{}, fmt.Errorf("found no value under content-type %s, expected a CloudEvent in JSON; correct the producer", eventJSONType)
	}
	var a attributes
	var data, encoded []byte
	err := canonical.Members(m.Value, func(name string, value []byte) error {
		switch name {
		case "data":
			data = value
		case "data_base64":
			if value[0] != 'n' {
				encoded = value
			}
		default:
			text, err := memberText(name, value)
			if err != nil {
				return err
			}
			return a.set(name, text)
		}
		return nil
	})
	if bad := new(canonical.Error); errors.As(err, &bad) {
		return Event{}, fmt.Errorf("found %d bytes that aren't a JSON object of one meaning: %w; send valid UTF-8 JSON", len(m.Value), err)
	}
	if err != nil {
		return Event{}, err
	}
	e, err := a.event(m.Key)
	if err != nil {
		return Event{}, err
	}
	switch {
	case data != nil && encoded != nil:
		return Event{}, errors.New("found both data and data_base64, expected one of them; correct the producer")
	case encoded != nil:
		e.Data, err = decodeBase64(e, encoded)
	case data != nil:
		err = e.takeMember(data)
	}
	if err != nil {
		return Event{}, err
	}
	return e, nil
}

// memberText is the string form of a context attribute. Those of the specification are strings, extensions
// may be integers and Booleans too.
func memberText(name string, value []byte) ([]byte, error) {
	switch name {
	case "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema":
		if value[0] != '"' && value[0] != 'n' {
			return nil, fmt.Errorf("found attribute %s that isn't a string; put it in quotes", name)
		}
	}
	return attributeText(name, value)
}

func decodeBase64(e Event, literal []byte) ([]byte, error) {
	if literal[0] != '"' {
		return nil, errors.New("found data_base64 that isn't a string; correct the producer")
	}
	text, err := canonical.Text(literal)
	if err != nil {
		return nil, err
	}
	data := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(data, text)
	if err != nil {
		return nil, fmt.Errorf("found data_base64 that isn't base64 (RFC 4648, section 4): %w; correct the producer", err)
	}
	data = data[:n]
	if e.IsJSON() {
		if err := canonical.Check(data); err != nil {
			return nil, badJSON(n, err)
		}
	}
	return data, nil
}

// takeMember makes the member data the event's data: as it stands where it's
// JSON, which it is too where no content type is named (section 3.1.2), else
// the content of the string. Canonical.Members has found it valid.
func (e *Event) takeMember(data []byte) error {
	switch {
	case e.DataContentType == "":
		e.DataContentType = jsonType
		e.Data = data
	case e.IsJSON():
		e.Data = data
	case data[0] == '"':
		text, err := canonical.Text(data)
		if err != nil {
			return err
		}
		e.Data = text[:len(text):len(text)]
	case data[0] == 'n': // null: no data
	default:
		return fmt.Errorf("found data that isn't a string under datacontenttype %s, expected a string or data_base64; correct the producer",
			clip([]byte(e.DataContentType)))
	}
	return nil
}

// EncodeStructured makes a record of the event in structured mode, JSON format.
// JSON data stands in it byte for byte, but readers can't tell the whitespace
// around it from their own; text is a string, anything else base64.
// Errors are those of Encode.
func (e Event) EncodeStructured() (Message, error) {
	e, err := e.ready()
	if err != nil {
		return Message{}, err
	}
	b := make([]byte, 0, 256+len(e.Data)*4/3)
	b = append(b, `{"specversion":"1.0"`...)
	b = appendMember(b, "id", e.ID)
	b = appendMember(b, "source", e.Source)
	b = appendMember(b, "type", e.Type)
	b = appendMember(b, "subject", e.Subject)
	if !e.Time.IsZero() {
		b = appendMember(b, "time", e.Time.UTC().Format(time.RFC3339Nano))
	}
	b = appendMember(b, "datacontenttype", e.DataContentType)
	b = appendMember(b, "dataschema", e.DataSchema)
	for _, name := range slices.Sorted(maps.Keys(e.Extensions)) {
		b = append(b, `,"`...)
		b = append(b, name...)
		b = append(b, `":`...)
		b = appendText(b, e.Extensions[name])
	}
	switch {
	case e.Data == nil:
	case e.IsJSON():
		b = append(b, `,"data":`...)
		b = append(b, e.Data...)
	case strings.HasPrefix(e.DataContentType, "text/") && utf8.Valid(e.Data):
		b = append(b, `,"data":`...)
		b = appendText(b, string(e.Data))
	default:
		b = append(b, `,"data_base64":"`...)
		b = base64.StdEncoding.AppendEncode(b, e.Data)
		b = append(b, '"')
	}
	b = append(b, '}')
	if err := canonical.Check(b); err != nil { // nested to the bound already, and now one level deeper
		return Message{}, fault.As(fault.Permanent, fmt.Errorf("encode event %s in structured mode: %w; use binary mode", clip([]byte(e.ID)), err))
	}
	return Message{
		Key:     e.key(),
		Value:   b,
		Headers: []Header{{Key: contentType, Value: []byte(eventJSONType)}},
	}, nil
}

func appendMember(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	return appendText(b, value)
}

// appendText appends valid UTF-8 as a string literal.
func appendText(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	b = append(b, '"')
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		if from = i + 1; c < ' ' {
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		} else {
			b = append(b, '\\', c)
		}
	}
	b = append(b, s[from:]...)
	return append(b, '"')
}
