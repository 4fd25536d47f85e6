package event_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	sdk "github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/event"
)

// record is a Kafka record as the CloudEvents SDK sees one: its bindings for
// Kafka clients do the same, each with its client's own type of record.
type record struct{ event.Message }

var sdkSpecs = spec.WithPrefix("ce_")

func (r *record) ReadEncoding() binding.Encoding {
	if format.Lookup(header(r.Message, "content-type")) != nil {
		return binding.EncodingStructured
	}
	return binding.EncodingBinary
}

func (r *record) ReadStructured(ctx context.Context, w binding.StructuredWriter) error {
	f := format.Lookup(header(r.Message, "content-type"))
	if f == nil {
		return binding.ErrNotStructured
	}
	return w.SetStructuredEvent(ctx, f, bytes.NewReader(r.Value))
}

func (r *record) ReadBinary(_ context.Context, w binding.BinaryWriter) error {
	version := sdkSpecs.Version(header(r.Message, "ce_specversion"))
	for _, h := range r.Headers {
		var err error
		if name, ok := strings.CutPrefix(h.Key, "ce_"); !ok {
			err = w.SetAttribute(version.AttributeFromKind(spec.DataContentType), string(h.Value))
		} else if attribute := version.Attribute(h.Key); attribute != nil {
			err = w.SetAttribute(attribute, string(h.Value))
		} else {
			err = w.SetExtension(name, string(h.Value))
		}
		if err != nil {
			return err
		}
	}
	if r.Value == nil {
		return nil
	}
	return w.SetData(bytes.NewReader(r.Value))
}

func (r *record) Finish(error) error                 { return nil }
func (r *record) Start(context.Context) error        { return nil }
func (r *record) End(context.Context) error          { return nil }
func (r *record) SetData(data io.Reader) (err error) { r.Value, err = io.ReadAll(data); return err }

func (r *record) GetAttribute(kind spec.Kind) (spec.Attribute, any) {
	version := sdkSpecs.Version(header(r.Message, "ce_specversion"))
	a := version.AttributeFromKind(kind)
	key := a.PrefixedName()
	if kind == spec.DataContentType {
		key = "content-type"
	}
	return a, header(r.Message, key)
}

func (r *record) GetExtension(name string) any { return header(r.Message, "ce_"+name) }

func (r *record) put(key string, value any) error {
	if value == nil {
		return nil
	}
	text, err := types.Format(value)
	r.Headers = append(r.Headers, event.Header{Key: key, Value: []byte(text)})
	return err
}

func (r *record) SetAttribute(a spec.Attribute, value any) error {
	if a.Kind() == spec.DataContentType {
		return r.put("content-type", value)
	}
	return r.put("ce_"+a.Name(), value)
}

func (r *record) SetExtension(name string, value any) error { return r.put("ce_"+name, value) }

func (r *record) SetStructuredEvent(_ context.Context, f format.Format, value io.Reader) (err error) {
	r.Headers = append(r.Headers, event.Header{Key: "content-type", Value: []byte(f.MediaType())})
	r.Value, err = io.ReadAll(value)
	return err
}

// plainEvent draws events of what both sides take: the SDK wants URIs.
var plainEvent = rapid.Custom(func(t *rapid.T) event.Event {
	e := anEvent.Draw(t, "event")
	e.Source = rapid.SampledFrom([]string{"/orders", "https://example.com/x?y=z", "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66", "1-555-123-4567"}).Draw(t, "uri")
	e.DataSchema = rapid.SampledFrom([]string{"", "https://example.com/schema.json"}).Draw(t, "schema uri")
	// The SDK takes */*+json, and types in upper case, for text, against section 3.1 of the format.
	if e.IsJSON() {
		e.DataContentType = "application/json"
	}
	// The SDK trims these on its way.
	e.ID, e.Type, e.Subject = trim(e.ID), trim(e.Type), strings.TrimSpace(e.Subject)
	return e
})

func trim(s string) string {
	if s = strings.TrimSpace(s); s == "" {
		return "x"
	}
	return s
}

func matches(t *rapid.T, e event.Event, s *sdk.Event) {
	if s.ID() != e.ID || s.Source() != e.Source || s.Type() != e.Type || s.Subject() != e.Subject || s.DataSchema() != e.DataSchema ||
		!s.Time().Equal(e.Time) || !bytes.Equal(s.Data(), e.Data) {
		t.Fatalf("the SDK has\n%v, we have\n%+v", s, e)
	}
	if len(s.Extensions()) != len(e.Extensions) {
		t.Fatalf("extensions: the SDK has %v, we have %v", s.Extensions(), e.Extensions)
	}
	for name, value := range s.Extensions() {
		if text, err := types.Format(value); err != nil || text != e.Extensions[name] {
			t.Fatalf("extension %s: the SDK has %v, we have %q", name, value, e.Extensions[name])
		}
	}
}

func TestInteropSDKReadsOurs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := plainEvent.Draw(t, "plain event")
		for mode, encode := range map[string]func() (event.Message, error){"binary": e.Encode, "structured": e.EncodeStructured} {
			m, err := encode()
			if err != nil {
				t.Fatalf("%s: %v", mode, err)
			}
			s, err := binding.ToEvent(context.Background(), &record{m})
			if err != nil {
				t.Fatalf("%s: the SDK refuses %q %q: %v", mode, m.Headers, m.Value, err)
			}
			e := e
			e.Subject = string(m.Key)
			matches(t, e, s)
		}
	})
}

func TestInteropWeReadSDKs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := plainEvent.Draw(t, "plain event")
		s := sdk.New()
		s.SetID(e.ID)
		s.SetSource(e.Source)
		s.SetType(e.Type)
		if e.Subject != "" {
			s.SetSubject(e.Subject)
		}
		if !e.Time.IsZero() {
			s.SetTime(e.Time)
		}
		if e.DataSchema != "" {
			s.SetDataSchema(e.DataSchema)
		}
		for name, value := range e.Extensions {
			s.SetExtension(name, value)
		}
		if e.Data != nil {
			if err := s.SetData(e.DataContentType, e.Data); err != nil {
				t.Fatal(err)
			}
		} else if e.DataContentType != "" {
			s.SetDataContentType(e.DataContentType)
		}
		if err := s.Validate(); err != nil {
			t.Fatalf("the SDK refuses its own event: %v", err)
		}
		var m record
		if _, err := binding.Write(context.Background(), (*binding.EventMessage)(&s), nil, &m); err != nil {
			t.Fatal(err)
		}
		got, err := event.Decode(m.Message, at)
		if err != nil {
			t.Fatalf("%q: %v", m.Headers, err)
		}
		matches(t, got, &s)

		value, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if got, err = event.Decode(structured(string(value)), at); err != nil {
			t.Fatalf("%s: %v", value, err)
		}
		if e.Subject == "" {
			got.Subject = "" // of the key
		}
		matches(t, got, &s)
	})
}

// The examples of the JSON event format, section 3.2, and of the Kafka binding, sections 3.2.5 and 3.3.4.
func TestGoldenSpecificationExamples(t *testing.T) {
	const attributes = `"specversion" : "1.0", "type" : "com.example.someevent", "source" : "/mycontext", "time" : "2018-04-05T17:31:00Z",
		"comexampleextension1" : "value", "comexampleothervalue" : 5, "unsetextension": null, "subject": null,`
	for id, c := range map[string][3]string{
		"A234-1234-1234": {`"datacontenttype" : "application/vnd.apache.thrift.binary", "data_base64" : "c3dhcm0="`, "application/vnd.apache.thrift.binary", "swarm"},
		"B234-1234-1234": {`"datacontenttype" : "application/xml", "data" : "<much wow=\"xml\"/>"`, "application/xml", `<much wow="xml"/>`},
		"C234-1234-1234": {`"datacontenttype" : "application/json", "data" : {"appinfoA" : "abc", "appinfoC" : true}`, "application/json", `{"appinfoA" : "abc", "appinfoC" : true}`},
		"D234-1234-1234": {`"data" : "I'm just a string"`, "application/json", `"I'm just a string"`},
	} {
		e := mustDecode(t, message([]byte("mykey"), []byte(`{"id" : "`+id+`",`+attributes+c[0]+`}`), "content-type", "application/cloudevents+json; charset=UTF-8"))
		if e.ID != id || e.DataContentType != c[1] || string(e.Data) != c[2] || e.Extension("comexampleothervalue") != "5" ||
			e.Extension("comexampleextension1") != "value" || len(e.Extensions) != 2 || e.Subject != "mykey" {
			t.Errorf("%s: %+v with data %s", id, e, e.Data)
		}
	}
	e := mustDecode(t, message([]byte("mykey"), []byte("avro"), "ce_specversion", "1.0", "ce_type", "com.example.someevent",
		"ce_source", "/mycontext/subcontext", "ce_id", "1234-1234-1234", "ce_time", "2018-04-05T03:56:24Z", "content-type", "application/avro"))
	if e.Type != "com.example.someevent" || e.Source != "/mycontext/subcontext" || e.ID != "1234-1234-1234" || e.DataContentType != "application/avro" ||
		!e.Time.Equal(time.Date(2018, 4, 5, 3, 56, 24, 0, time.UTC)) || string(e.Data) != "avro" {
		t.Errorf("got %+v", e)
	}
}
