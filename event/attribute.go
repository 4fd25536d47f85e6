package event

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/swarmlog/swarmlog/internal/canonical"
)

// MaxIdentity is the most bytes that an id, source, type or subject may have:
// they are keys of tables, and of an index entry PostgreSQL takes 2,704 bytes.
const MaxIdentity = 1024

// attributes are the context attributes of a record, before they are checked.
// Nil stands for absent. Values alias the record.
type attributes struct {
	specversion, id, source, typ, subject, time []byte
	contentType, schema                         []byte

	extensions []Header
}

// readHeaders collects the attributes of binary mode. It tells whether there's
// any by which a record says that it's a CloudEvent; where there's none, the
// error is about headers that merely look like ours.
func (a *attributes) readHeaders(headers []Header) (binary bool, err error) {
	for i := range headers {
		h := &headers[i]
		name, ok := strings.CutPrefix(h.Key, headerPrefix)
		if !ok {
			if len(h.Key) != len(contentType) || !strings.EqualFold(h.Key, contentType) {
				continue
			}
			name = "datacontenttype"
		}
		switch name {
		case "specversion", "id", "source", "type":
			binary = true
		}
		if setErr := a.set(name, h.Value); setErr != nil && err == nil {
			err = setErr
		}
	}
	return binary, err
}

// set takes an attribute that was found; a nil value is none.
func (a *attributes) set(name string, value []byte) error {
	var p *[]byte
	switch name {
	case "specversion":
		p = &a.specversion
	case "id":
		p = &a.id
	case "source":
		p = &a.source
	case "type":
		p = &a.typ
	case "subject":
		p = &a.subject
	case "time":
		p = &a.time
	case "datacontenttype":
		p = &a.contentType
	case "dataschema":
		p = &a.schema
	default:
		if err := checkName(name); err != nil {
			return err
		}
		if value == nil {
			return nil
		}
		for _, x := range a.extensions {
			if x.Key == name {
				return twice(name)
			}
		}
		a.extensions = append(a.extensions, Header{Key: name, Value: value})
		return nil
	}
	if len(value) == 0 {
		return nil // an attribute may not be empty: it's absent, which is an error where it's required
	}
	if *p != nil && !(name == "datacontenttype" && bytes.Equal(*p, value)) {
		return twice(name)
	}
	*p = value
	return nil
}

func twice(name string) error {
	return fmt.Errorf("found attribute %s twice, expected it once; correct the producer", name)
}

// event checks the attributes and makes an event of them, in one allocation where there are no extensions.
func (a *attributes) event(key []byte) (Event, error) {
	if err := a.check(); err != nil {
		return Event{}, err
	}
	subject := a.subject
	if subject == nil && len(key) > 0 {
		if err := checkIdentity("the record's key, which names the subject", key); err != nil {
			return Event{}, err
		}
		subject = key
	}
	size := len(a.id) + len(a.source) + len(a.typ) + len(subject) + len(a.contentType) + len(a.schema)
	for _, x := range a.extensions {
		size += len(x.Value)
	}
	var b strings.Builder
	b.Grow(size)
	text := func(value []byte) string {
		from := b.Len()
		b.Write(value)
		return b.String()[from:]
	}
	e := Event{
		ID: text(a.id), Source: text(a.source), Type: text(a.typ), Subject: text(subject),
		DataContentType: text(a.contentType), DataSchema: text(a.schema),
	}
	if a.time != nil {
		t, err := parseTime(a.time)
		if err != nil {
			return Event{}, fmt.Errorf("attribute time: %w", err)
		}
		e.Time = t
	}
	if len(a.extensions) > 0 {
		e.Extensions = make(map[string]string, len(a.extensions))
		for _, x := range a.extensions {
			e.Extensions[x.Key] = text(x.Value)
		}
		if err := e.checkKnown(); err != nil {
			return Event{}, err
		}
	}
	return e, nil
}

func (a *attributes) check() error {
	switch {
	case a.specversion == nil:
		return missing("specversion")
	case string(a.specversion) != specVersion:
		return fmt.Errorf("found specversion %s, expected %s; send CloudEvents %[2]s", clip(a.specversion), specVersion)
	case a.id == nil:
		return missing("id")
	case a.source == nil:
		return missing("source")
	case a.typ == nil:
		return missing("type")
	}
	if err := checkIdentity("id", a.id); err != nil {
		return err
	}
	if err := checkIdentity("source", a.source); err != nil {
		return err
	}
	if err := checkIdentity("type", a.typ); err != nil {
		return err
	}
	if err := checkIdentity("subject", a.subject); err != nil {
		return err
	}
	if err := checkText("datacontenttype", a.contentType); err != nil {
		return err
	}
	if err := checkText("dataschema", a.schema); err != nil {
		return err
	}
	for _, x := range a.extensions {
		if err := checkText(x.Key, x.Value); err != nil {
			return err
		}
	}
	return nil
}

func missing(name string) error {
	return fmt.Errorf("found a CloudEvent without attribute %s, which is required; correct the producer", name)
}

func checkIdentity[T string | []byte](name string, value T) error {
	if len(value) > MaxIdentity {
		return fmt.Errorf("found %d bytes in attribute %s, expected at most %d; shorten it", len(value), name, MaxIdentity)
	}
	return checkText(name, value)
}

// checkText tells whether a value is a String of CloudEvents: valid UTF-8 without control characters and
// noncharacters (section Type System of the specification). So no attribute can hold a line break or a NUL.
func checkText[T string | []byte](name string, value T) error {
	for i := range len(value) {
		if c := value[i]; c < ' ' || c >= 0x7f {
			return checkRunes(name, string(value), i)
		}
	}
	return nil
}

func checkRunes(name, value string, from int) error {
	for i := from; i < len(value); {
		r, n := utf8.DecodeRuneInString(value[i:])
		what := ""
		switch {
		case r == utf8.RuneError && n == 1:
			what = "invalid UTF-8"
		case r < ' ', 0x7f <= r && r <= 0x9f:
			what = "a control character"
		case r&0xfffe == 0xfffe, 0xfdd0 <= r && r <= 0xfdef:
			what = "a Unicode noncharacter"
		}
		if what != "" {
			return fmt.Errorf("found %s at byte %d of attribute %s, expected UTF-8 text of one line; correct the producer", what, i, name)
		}
		i += n
	}
	return nil
}

// checkName tells whether an attribute may have a name.
func checkName(name string) error {
	if name == "" || name == "data" {
		return fmt.Errorf("found attribute name %q, which is reserved; rename it", name)
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return fmt.Errorf("found attribute name %s, expected lower-case letters a to z and digits only; rename it", clip([]byte(name)))
		}
	}
	return nil
}

// attributeText is the string form of an attribute in JSON: of a string, a Boolean or an integer; nil for null.
func attributeText(name string, value []byte) ([]byte, error) {
	switch c := value[0]; {
	case c == '"':
		text, err := canonical.Text(value)
		if err == nil && text == nil {
			text = []byte{}
		}
		return text, err
	case c == 'n':
		return nil, nil
	case c == 't', c == 'f':
		return value, nil
	case c == '-', '0' <= c && c <= '9':
		if !bytes.ContainsAny(value, ".eE") {
			return value, nil
		}
	}
	return nil, fmt.Errorf("found attribute %s as a number with a fraction, an array or an object, expected a string, an integer or a "+
		"Boolean; correct the producer", clip([]byte(name)))
}

// parseTime reads a time as RFC 3339 has it. Beyond time.Time's own reading it takes what that RFC also allows:
// t and z in lower case, and second 60, which is read as the second after 59; but no decimal comma.
func parseTime(value []byte) (time.Time, error) {
	var t time.Time
	comma := bytes.IndexByte(value, ',') >= 0
	if err := t.UnmarshalText(value); err == nil && !comma {
		return t, nil
	}
	fixed := bytes.ToUpper(value)
	leap := len(fixed) > 19 && string(fixed[16:19]) == ":60"
	if leap {
		copy(fixed[16:], ":59")
	}
	if err := t.UnmarshalText(fixed); err != nil || comma {
		return time.Time{}, errors.New("found what isn't a time, expected RFC 3339, such as 2024-05-17T08:30:00.000Z; correct the producer")
	}
	if leap {
		t = t.Add(time.Second)
	}
	return t, nil
}

// Names of the extensions that Swarmlog itself reads.
const (
	extSequence     = "sequence"
	extSequenceType = "sequencetype"
	extRecordedTime = "recordedtime"
	extHops         = "hops"
)

// checkKnown checks the extensions that Swarmlog acts on, where a silent misreading would break a promise.
func (e Event) checkKnown() error {
	if v, ok := e.Extensions[extRecordedTime]; ok {
		if _, err := parseTime([]byte(v)); err != nil {
			return fmt.Errorf("attribute recordedtime: %w", err)
		}
	}
	if v, ok := e.Extensions[extHops]; ok {
		if n, err := strconv.ParseInt(v, 10, 32); err != nil || n < 0 {
			return errors.New("found attribute hops that isn't a number from 0 to 2147483647; correct the producer")
		}
	}
	if e.Extensions[extSequenceType] == perSubject {
		if _, ok := e.Sequence(); !ok {
			return fmt.Errorf("found sequencetype %s, expected attribute sequence to be a number from 1; correct the producer", perSubject)
		}
	}
	return nil
}
