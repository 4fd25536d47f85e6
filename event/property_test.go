package event_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
)

func text(min, max int) *rapid.Generator[string] {
	return rapid.Map(rapid.StringOfN(rapid.RuneFrom(nil, unicode.L, unicode.N, unicode.P, unicode.S, unicode.M, unicode.Zs), min, max, -1),
		func(s string) string {
			return strings.Map(func(r rune) rune {
				if unicode.IsControl(r) || r&0xfffe == 0xfffe || 0xfdd0 <= r && r <= 0xfdef {
					return 'x'
				}
				return r
			}, s)
		})
}

var anEvent = rapid.Custom(func(t *rapid.T) event.Event {
	e := event.Event{
		ID: text(1, 20).Draw(t, "id"), Source: text(1, 20).Draw(t, "source"), Type: text(1, 20).Draw(t, "type"), Subject: text(0, 20).Draw(t, "subject"),
		DataSchema: text(0, 10).Draw(t, "schema"),
	}
	if rapid.Bool().Draw(t, "has time") {
		e.Time = time.Unix(rapid.Int64Range(-62135596800+1, 253402300799).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds")).UTC()
	}
	for name := range rapid.MapOfN(rapid.StringMatching(`x[a-z0-9]{1,10}`), rapid.Bool(), 0, 4).Draw(t, "extensions") {
		e.SetExtension(name, text(0, 10).Draw(t, name))
	}
	switch rapid.IntRange(0, 4).Draw(t, "kind of data") {
	case 0:
		e.DataContentType = rapid.SampledFrom([]string{"", "application/json", "text/plain"}).Draw(t, "type of no data")
	case 1:
		e.DataContentType = rapid.SampledFrom([]string{"application/json", "application/vnd.x+json; charset=utf-8", "TEXT/JSON"}).Draw(t, "type of JSON")
		e.Data, _ = json.Marshal(rapid.MapOf(rapid.String(), rapid.SliceOf(rapid.Float64Range(-1e10, 1e10))).Draw(t, "JSON"))
	case 2:
		e.DataContentType = "text/plain; charset=utf-8"
		e.Data = []byte(rapid.String().Draw(t, "text"))
	default:
		e.DataContentType = rapid.SampledFrom([]string{"", "application/octet-stream", "text/plain", "image/png"}).Draw(t, "type of bytes")
		e.Data = rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		if e.Data == nil {
			e.Data = []byte{}
		}
	}
	return e
})

// sameEvent tells whether two events are equal but for what a codec may change: the subject's Unicode form, and
// whitespace around JSON.
func sameEvent(a, b event.Event) bool {
	if a.IsJSON() && a.Data != nil && b.Data != nil {
		a.Data, b.Data = bytes.Trim(a.Data, " \t\r\n"), bytes.Trim(b.Data, " \t\r\n")
	}
	return a.ID == b.ID && a.Source == b.Source && a.Type == b.Type && norm.NFC.String(a.Subject) == b.Subject &&
		a.Time.Equal(b.Time) && a.DataContentType == b.DataContentType && a.DataSchema == b.DataSchema &&
		maps.Equal(a.Extensions, b.Extensions) && bytes.Equal(a.Data, b.Data) && (a.Data == nil) == (b.Data == nil) && !b.Positional
}

func TestPropertyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := anEvent.Draw(t, "event")
		for mode, encode := range map[string]func() (event.Message, error){"binary": e.Encode, "structured": e.EncodeStructured} {
			m, err := encode()
			if err != nil {
				t.Fatalf("%s: encode: %v", mode, err)
			}
			got, err := event.Decode(m, at)
			if err != nil {
				t.Fatalf("%s: decode: %v", mode, err)
			}
			if !sameEvent(e, got) {
				t.Fatalf("%s: got\n%+v, want\n%+v", mode, got, e)
			}
			if (m.Key == nil) != (e.Subject == "") || string(m.Key) != got.Subject {
				t.Fatalf("%s: key %q of subject %q", mode, m.Key, got.Subject)
			}
			if e.Subject = got.Subject; got.Digest() != e.Digest() {
				t.Fatalf("%s: the digest changed on the way", mode)
			}
		}
	})
}

// Values that are written one after another in one buffer must not run into each other when one grows.
func TestHeaderValuesAreApart(t *testing.T) {
	e := event.Event{ID: "id", Source: "source", Type: "type"}
	m, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for i := range m.Headers {
		_ = append(m.Headers[i].Value, "overwritten"...)
	}
	if got := mustDecode(t, m); got.ID != "id" || got.Source != "source" || got.Type != "type" {
		t.Errorf("got %+v", got)
	}
}

// checkDecoded checks what must hold of any record, readable or not.
func checkDecoded(t *testing.T, m event.Message) {
	t.Helper()
	before := bytes.Clone(m.Value)
	e, err := event.Decode(m, at)
	if !bytes.Equal(before, m.Value) {
		t.Fatal("the value was changed")
	}
	if err != nil {
		if fault.ClassOf(err) != fault.Permanent || !utf8.ValidString(e.Subject) || len(e.Subject) > event.MaxIdentity {
			t.Fatalf("%v with subject %q", err, e.Subject)
		}
		if e.ID != "" || e.Data != nil {
			t.Fatalf("an error came with %+v", e)
		}
		return
	}
	if e.ID == "" || e.Source == "" || e.Type == "" {
		t.Fatalf("a required attribute is missing: %+v", e)
	}
	for _, s := range []string{e.ID, e.Source, e.Type, e.Subject} {
		if !utf8.ValidString(s) || strings.ContainsAny(s, "\x00\r\n") || len(s) > event.MaxIdentity {
			t.Fatalf("attribute %q", s)
		}
	}
	if e.Tombstone() {
		return
	}
	// What was read can be written again and reads the same.
	for _, encode := range []func() (event.Message, error){e.Encode, e.EncodeStructured} {
		again, err := encode()
		if err != nil {
			if strings.Contains(err.Error(), "too deep") || strings.Contains(err.Error(), "at most 1024") || // form C may be longer
				strings.Contains(err.Error(), "is reserved") || strings.Contains(err.Error(), "RFC 3339") ||
				strings.Contains(err.Error(), "take the data for an event") {
				continue
			}
			t.Fatalf("%+v can't be written again: %v", e, err)
		}
		got, err := event.Decode(again, event.Position{Topic: "elsewhere"})
		if err != nil {
			t.Fatalf("%+v can't be read again: %v", e, err)
		}
		if !sameEvent(e, got) {
			t.Fatalf("%+v reads again as %+v", e, got)
		}
	}
}

func FuzzDecodeBinary(f *testing.F) {
	f.Add([]byte("k"), []byte(`{"a":1}`), "e1", "/s", "t", "sub", "2024-05-17T08:30:00Z", "application/json", "ce_x", "1")
	f.Add([]byte(nil), []byte("{\"a\":\"\xff\"}"), "e1", "/s", "t", "", "", "application/json", "ce_hops", "3")
	f.Add([]byte{0xff}, []byte{}, "e\u00e9", "/s", "t", "", "2016-12-31T23:59:60Z", "text/plain", "ce_sequence", "1")
	f.Add([]byte("k"), []byte(`{}`), "", "/s", "t", "a\u0301", "", "application/cloudevents+json", "content-type", "x")
	f.Fuzz(func(t *testing.T, key, value []byte, id, source, typ, subject, when, contentType, name, extension string) {
		checkDecoded(t, message(key, value, "ce_specversion", "1.0", "ce_id", id, "ce_source", source, "ce_type", typ, "ce_subject", subject,
			"ce_time", when, "content-type", contentType, name, extension))
	})
}

func FuzzDecodeValue(f *testing.F) {
	for _, s := range []string{
		`{"specversion":"1.0","id":"1","source":"s","type":"t","subject":"x","time":"2024-05-17T08:30:00Z","datacontenttype":"text/plain","data":"a\n","ext":5}`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"AAE="}`,
		`{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"application/json","data":{"a":[1,2.0]}}`,
		`{"type":"TaskCreatedEvent","payload":{"taskId":"t1"}}`, `{"type":"t","payload":{"taskId":12}}`, `null`, ``,
		`{"specversion":"1.0","id":"\ud83d","source":"s","type":"t"}`,
	} {
		f.Add([]byte("k"), []byte(s), true)
		f.Add([]byte(nil), []byte(s), false)
	}
	f.Fuzz(func(t *testing.T, key, value []byte, declared bool) {
		m := message(key, value)
		if declared {
			m = message(key, value, "content-type", "application/cloudevents+json")
		}
		checkDecoded(t, m)
	})
}
