package event_test

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/fault"
)

var at = event.Position{Topic: "ai-task-events", Partition: 3, Offset: 42}

// message makes a record of a key, a value and pairs of header name and value.
func message(key, value []byte, headers ...string) event.Message {
	m := event.Message{Key: key, Value: value}
	for i := 0; i < len(headers); i += 2 {
		m.Headers = append(m.Headers, event.Header{Key: headers[i], Value: []byte(headers[i+1])})
	}
	return m
}

// binary makes a record in binary mode with the required attributes.
func binary(value []byte, more ...string) event.Message {
	return message([]byte("order-1"), value, append([]string{
		"ce_specversion", "1.0", "ce_id", "e1", "ce_source", "/orders", "ce_type", "OrderPlaced"}, more...)...)
}

func structured(value string) event.Message {
	return message([]byte("order-1"), []byte(value), "content-type", "application/cloudevents+json; charset=UTF-8")
}

func mustDecode(t testing.TB, m event.Message) event.Event {
	t.Helper()
	e, err := event.Decode(m, at)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	return e
}

// refused checks that a record is permanently refused for a reason that says where it stands and what to do.
func refused(t testing.TB, m event.Message, reasons ...string) {
	t.Helper()
	e, err := event.Decode(m, at)
	if err == nil {
		t.Fatalf("decoded as %+v", e)
	}
	if fault.ClassOf(err) != fault.Permanent {
		t.Errorf("%v is %v, want permanent", err, fault.ClassOf(err))
	}
	for _, reason := range append(reasons, at.String(), "found ") {
		if !strings.Contains(err.Error(), reason) {
			t.Errorf("%v doesn't say %q", err, reason)
		}
	}
}

func TestDecodeBinary(t *testing.T) {
	value := []byte(` { "amount" : 10 } `)
	e := mustDecode(t, binary(value, "ce_subject", "order-7", "ce_time", "2024-05-17T08:30:00.123Z", "content-type", "application/json",
		"ce_dataschema", "https://example.com/order.json", "ce_traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"ce_hops", "3", "ce_recordedtime", "2024-05-17T08:30:01Z", "unrelated", "x"))
	if e.ID != "e1" || e.Source != "/orders" || e.Type != "OrderPlaced" || e.Subject != "order-7" || e.DataContentType != "application/json" ||
		e.DataSchema != "https://example.com/order.json" || e.Positional {
		t.Errorf("got %+v", e)
	}
	if want := time.Date(2024, 5, 17, 8, 30, 0, 123e6, time.UTC); !e.Time.Equal(want) {
		t.Errorf("time is %v, want %v", e.Time, want)
	}
	if len(e.Extensions) != 3 || e.Extension("traceparent") != "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" || e.Hops() != 3 {
		t.Errorf("extensions are %v", e.Extensions)
	}
	if r, ok := e.RecordedTime(); !ok || !r.Equal(time.Date(2024, 5, 17, 8, 30, 1, 0, time.UTC)) {
		t.Errorf("recorded time is %v, %v", r, ok)
	}
	if &e.Data[0] != &value[0] || len(e.Data) != len(value) {
		t.Error("data isn't the record's own bytes")
	}
}

func TestDecodeBinaryDefaults(t *testing.T) {
	e := mustDecode(t, binary([]byte{0xff, 0x00}))
	if e.Subject != "order-1" {
		t.Errorf("subject is %q, want the key", e.Subject)
	}
	if e.DataContentType != "" || !e.Time.IsZero() || e.Extensions != nil || !bytes.Equal(e.Data, []byte{0xff, 0}) {
		t.Errorf("got %+v", e)
	}
	// A null header value and an empty optional attribute are absent ones.
	m := binary(nil, "ce_subject", "", "ce_time", "")
	m.Headers = append(m.Headers, event.Header{Key: "ce_tenant"})
	if e = mustDecode(t, m); e.Subject != "order-1" || e.Extensions != nil {
		t.Errorf("got %+v", e)
	}
	m.Key = nil
	if e = mustDecode(t, m); e.Subject != "" {
		t.Errorf("a record without key and subject is about %q", e.Subject)
	}
}

// The Kafka binding writes attributes as UTF-8 strings; the percent-encoding of HTTP means nothing here.
func TestUnicodeAttributes(t *testing.T) {
	e := mustDecode(t, binary(nil, "ce_subject", "日本/🐝%20ü", "ce_note", "Euro € 😀"))
	if e.Subject != "日本/🐝%20ü" || e.Extension("note") != "Euro € 😀" {
		t.Errorf("got %q, %q", e.Subject, e.Extension("note"))
	}
	m, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got := header(m, "ce_subject"); got != "日本/🐝%20ü" || string(m.Key) != got {
		t.Errorf("written as %q, key %q", got, m.Key)
	}
}

func header(m event.Message, key string) string {
	for _, h := range m.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

func TestTimes(t *testing.T) {
	for in, want := range map[string]time.Time{
		"2024-05-17T08:30:00Z":           time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC),
		"2024-05-17t08:30:00z":           time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC),
		"2024-05-17T10:30:00+02:00":      time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC),
		"2024-05-17T08:30:00.123456789Z": time.Date(2024, 5, 17, 8, 30, 0, 123456789, time.UTC),
		"2016-12-31T23:59:60Z":           time.Date(2017, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		if e := mustDecode(t, binary(nil, "ce_time", in)); !e.Time.Equal(want) {
			t.Errorf("%s read as %v", in, e.Time)
		}
	}
	for _, in := range []string{"yesterday", "2024-05-17", "2024-05-17 08:30:00Z", "2024-05-17T08:30:00", "1715934600", "2024-13-17T08:30:00Z",
		"2024-05-17T08:30:00,5Z", "2024-05-17T08:61:60Z"} {
		refused(t, binary(nil, "ce_time", in), "RFC 3339")
	}
}

func TestDecodeRefusesAttributes(t *testing.T) {
	for name, c := range map[string]struct {
		m      event.Message
		reason string
	}{
		"no specversion":     {message(nil, nil, "ce_id", "1", "ce_source", "s", "ce_type", "t"), "without attribute specversion"},
		"no id":              {message(nil, nil, "ce_specversion", "1.0", "ce_source", "s", "ce_type", "t"), "without attribute id"},
		"empty id":           {message(nil, nil, "ce_specversion", "1.0", "ce_id", "", "ce_source", "s", "ce_type", "t"), "without attribute id"},
		"no source":          {message(nil, nil, "ce_specversion", "1.0", "ce_id", "1", "ce_type", "t"), "without attribute source"},
		"no type":            {message(nil, nil, "ce_specversion", "1.0", "ce_id", "1", "ce_source", "s"), "without attribute type"},
		"version 0.3":        {message(nil, nil, "ce_specversion", "0.3", "ce_id", "1", "ce_source", "s", "ce_type", "t"), `specversion "0.3"`},
		"twice":              {binary(nil, "ce_id", "e2"), "id twice"},
		"extension twice":    {binary(nil, "ce_a", "1", "ce_a", "1"), "a twice"},
		"two content types":  {binary(nil, "content-type", "a/b", "Content-Type", "c/d"), "datacontenttype twice"},
		"upper-case name":    {binary(nil, "ce_Tenant", "x"), "lower-case"},
		"name with dash":     {binary(nil, "ce_tenant-id", "x"), "lower-case"},
		"unicode name":       {binary(nil, "ce_größe", "x"), "lower-case"},
		"name data":          {binary(nil, "ce_data", "x"), "reserved"},
		"empty name":         {binary(nil, "ce_", "x"), "reserved"},
		"invalid UTF-8":      {binary(nil, "ce_subject", "caf\xe9"), "invalid UTF-8 at byte 3 of attribute subject"},
		"line break":         {binary(nil, "ce_subject", "a\r\nce_id: 2"), "control character"},
		"NUL":                {binary(nil, "ce_subject", "a\x00"), "control character"},
		"C1 control":         {binary(nil, "ce_note", "a\u0085"), "control character"},
		"DEL":                {binary(nil, "ce_note", "\x7f"), "control character"},
		"noncharacter":       {binary(nil, "ce_note", "\ufffe"), "noncharacter"},
		"noncharacter range": {binary(nil, "ce_note", "\ufdd0"), "noncharacter"},
		"huge id":            {binary(nil, "ce_subject", strings.Repeat("x", event.MaxIdentity+1)), "at most 1024"},
		"control in type":    {message(nil, nil, "ce_specversion", "1.0", "ce_id", "1", "ce_source", "s", "ce_type", "t\t"), "attribute type"},
		"control in source":  {message(nil, nil, "ce_specversion", "1.0", "ce_id", "1", "ce_source", "\n", "ce_type", "t"), "attribute source"},
		"content type":       {binary(nil, "content-type", "a\x00"), "datacontenttype"},
		"schema":             {binary(nil, "ce_dataschema", "\xff"), "dataschema"},
		"long version":       {message(nil, nil, "ce_specversion", strings.Repeat("9", 100), "ce_id", "1", "ce_source", "s", "ce_type", "t"), "…"},
		"binary key":         {event.Message{Key: []byte{0xff}, Headers: binary(nil).Headers}, "the record's key"},
		"binary key alone":   {event.Message{Key: []byte{0xff}}, "the record's key"},
		"negative hops":      {binary(nil, "ce_hops", "-1"), "hops"},
		"hops not a number":  {binary(nil, "ce_hops", "many"), "hops"},
		"bad recordedtime":   {binary(nil, "ce_recordedtime", "now"), "recordedtime"},
		"bad sequence":       {binary(nil, "ce_sequencetype", "PerSubject", "ce_sequence", "0"), "sequence"},
		"avro":               {message(nil, []byte{0}, "content-type", "application/cloudevents+avro"), "application/cloudevents+json"},
		"batch":              {message(nil, []byte(`[]`), "content-type", "application/cloudevents-batch+json"), "one event a record"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, c.m, c.reason) })
	}
	mustDecode(t, binary(nil, "ce_note", strings.Repeat("x", 900_000))) // long, but nobody's key
	mustDecode(t, binary(nil, "content-type", "a/b", "Content-Type", "a/b"))
}

// P1: bytes that aren't UTF-8 are refused and never rewritten.
func TestP1InvalidUTF8(t *testing.T) {
	for _, in := range []string{"7b2261223a22fffe227d", hex.EncodeToString([]byte("{\"a\":\"caf\xe9\"}"))} {
		value, _ := hex.DecodeString(in)
		for _, m := range []event.Message{
			binary(value, "content-type", "application/json"),
			structured(string(value)),
			message([]byte("k"), value),
		} {
			refused(t, m, "invalid UTF-8")
			if got := hex.EncodeToString(m.Value); got != in {
				t.Errorf("value became %s", got)
			}
		}
		// As data of another type the bytes stay what they are.
		if e := mustDecode(t, binary(value, "content-type", "application/octet-stream")); hex.EncodeToString(e.Data) != in {
			t.Errorf("data became %x", e.Data)
		}
	}
	a := event.Event{Type: "t", Source: "s", ID: "1", DataContentType: "application/json", Data: []byte("{\"a\":\"\xff\"}")}
	b := a
	b.Data = []byte("{\"a\":\"\xfe\"}")
	if a.Digest() == b.Digest() {
		t.Error("two different invalid payloads are equal")
	}
}

// P2: unpaired surrogates are refused, a literal backslash-u isn't.
func TestP2LoneSurrogates(t *testing.T) {
	for _, in := range []string{`{"a":"\ud83d"}`, `{"a":"\udc59\ud835\udc5e2"}`} {
		refused(t, binary([]byte(in), "content-type", "application/json"), "unpaired surrogate")
		refused(t, structured(`{"specversion":"1.0","id":"1","source":"s","type":"t","data":`+in+`}`), "unpaired surrogate")
		refused(t, message(nil, []byte(`{"type":"t","payload":`+in+`}`)), "unpaired surrogate")
	}
	refused(t, structured(`{"specversion":"1.0","id":"\ud83d","source":"s","type":"t"}`), "unpaired surrogate")
	refused(t, structured(`{"specversion":"1.0","id":"a\u0000","source":"s","type":"t"}`), "control character")
	for _, in := range []string{`{"a":"x\\u0000y"}`, `{"a":"x\u0000y"}`} {
		if e := mustDecode(t, binary([]byte(in), "content-type", "application/json")); string(e.Data) != in {
			t.Errorf("%s became %s", in, e.Data)
		}
	}
}

// P4: integers above 2^53 keep their digits, and ids that differ there stay different.
func TestP4BigIntegers(t *testing.T) {
	var digests [2][16]byte
	for i, in := range []string{`{"id":9007199254740993}`, `{"id":9007199254740992}`} {
		e := mustDecode(t, binary([]byte(in), "content-type", "application/json"))
		m, err := e.Encode()
		if err != nil || string(m.Value) != in {
			t.Errorf("%s forwarded as %s, %v", in, m.Value, err)
		}
		if m, err = e.EncodeStructured(); err != nil || !strings.Contains(string(m.Value), in) {
			t.Errorf("%s forwarded as %s, %v", in, m.Value, err)
		}
		digests[i] = mustDecode(t, m).Digest()
		if digests[i] != e.Digest() {
			t.Error("the digest depends on the mode")
		}
	}
	if digests[0] == digests[1] {
		t.Error("two different integers have one digest")
	}
	e := mustDecode(t, structured(`{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"some":327267367867168100000}}`))
	if string(e.Data) != `{"some":327267367867168100000}` {
		t.Errorf("data is %s", e.Data)
	}
	e = mustDecode(t, message(nil, []byte(`{"type":"t","payload":{"taskId":9007199254740993}}`)))
	if e.Subject != "9007199254740993" {
		t.Errorf("subject is %s", e.Subject)
	}
}

// P7: no value, an empty value and the literal null are three things.
func TestP7NullEmptyLiteral(t *testing.T) {
	k := []byte("k")
	for _, key := range [][]byte{k, nil, {}} {
		e := mustDecode(t, message(key, nil))
		if !e.Tombstone() || e.Type != event.TypeTombstone || e.Subject != string(key) || e.Data != nil || !e.Positional {
			t.Errorf("key %q without a value: %+v", key, e)
		}
	}
	refused(t, message(k, []byte{}), "empty value", "expected a CloudEvent")
	refused(t, message(k, []byte("null")), "isn't a JSON object", "expected a CloudEvent")
	refused(t, message(nil, []byte("{}")), "expected a CloudEvent")

	// With headers of CloudEvents, no value is an event without data.
	e := mustDecode(t, binary(nil, "content-type", "application/json"))
	if e.Data != nil || e.Tombstone() {
		t.Errorf("got %+v", e)
	}
	refused(t, binary([]byte{}, "content-type", "application/json"), "empty value", "null")
	if e = mustDecode(t, binary([]byte("null"), "content-type", "application/json")); string(e.Data) != "null" {
		t.Errorf("data is %q", e.Data)
	}
	if e = mustDecode(t, binary([]byte{}, "content-type", "text/plain")); e.Data == nil || len(e.Data) != 0 {
		t.Errorf("data is %#v, want empty but there", e.Data)
	}
	if e = mustDecode(t, structured(`{"specversion":"1.0","id":"1","source":"s","type":"t","data":null}`)); string(e.Data) != "null" {
		t.Errorf("data is %q", e.Data)
	}
	if e = mustDecode(t, structured(`{"specversion":"1.0","id":"1","source":"s","type":"t"}`)); e.Data != nil || e.DataContentType != "" {
		t.Errorf("got %+v", e)
	}
	refused(t, structured(""), "no value")
	_, err := event.Event{ID: "1", Source: "s", Type: event.TypeTombstone}.Encode()
	if err == nil {
		t.Error("a tombstone was written as an event")
	}
}

func TestDecodeStructured(t *testing.T) {
	const envelope = `{"specversion":"1.0","id":"e\u00e9","source":"/s","type":"t","subject":null,"time":"2018-04-05T17:31:00Z",` +
		`"comexampleothervalue":-5,"flag":true,"unset":null,"note":"a\"b"`
	for name, c := range map[string]struct{ rest, contentType, data string }{
		"json":          {`,"datacontenttype":"application/json","data":{"a": 5.0}}`, "application/json", `{"a": 5.0}`},
		"suffix":        {`,"datacontenttype":"application/vnd.x+JSON; v=1","data":[1]}`, "application/vnd.x+JSON; v=1", `[1]`},
		"implied":       {`,"data":"I'm just a string"}`, "application/json", `"I'm just a string"`},
		"text":          {`,"datacontenttype":"text/plain","data":"a\nb"}`, "text/plain", "a\nb"},
		"empty text":    {`,"datacontenttype":"text/plain","data":""}`, "text/plain", ""},
		"xml":           {`,"datacontenttype":"application/xml","data":"<much wow=\"xml\"/>"}`, "application/xml", `<much wow="xml"/>`},
		"base64":        {`,"datacontenttype":"image/png","data_base64":"iVBORw=="}`, "image/png", "\x89PNG"},
		"base64 json":   {`,"datacontenttype":"application/json","data_base64":"eyJhIjoxfQ=="}`, "application/json", `{"a":1}`},
		"base64 alone":  {`,"data_base64":"AAE="}`, "", "\x00\x01"},
		"base64 unset":  {`,"datacontenttype":"text/plain","data":"x","data_base64":null}`, "text/plain", "x"},
		"space outside": {`, "data" :  {"a":1}  } `, "application/json", `{"a":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			for _, m := range []event.Message{structured(envelope + c.rest), message([]byte("order-1"), []byte(envelope+c.rest))} {
				e := mustDecode(t, m)
				if e.ID != "eé" || e.Source != "/s" || e.Type != "t" || e.Subject != "order-1" || e.Positional ||
					!e.Time.Equal(time.Date(2018, 4, 5, 17, 31, 0, 0, time.UTC)) {
					t.Errorf("got %+v", e)
				}
				if len(e.Extensions) != 3 || e.Extension("comexampleothervalue") != "-5" || e.Extension("flag") != "true" || e.Extension("note") != `a"b` {
					t.Errorf("extensions are %v", e.Extensions)
				}
				if e.DataContentType != c.contentType || string(e.Data) != c.data || e.Data == nil {
					t.Errorf("got %s of type %q, want %s of type %q", e.Data, e.DataContentType, c.data, c.contentType)
				}
			}
		})
	}
}

func TestDecodeStructuredRefuses(t *testing.T) {
	const envelope = `{"specversion":"1.0","id":"1","source":"s","type":"t"`
	for name, c := range map[string]struct{ value, reason string }{
		"not json":              {`<xml/>`, "JSON object"},
		"array":                 {`[]`, "JSON object"},
		"cut":                   {envelope, "JSON object"},
		"attribute twice":       {envelope + `,"id":"1"}`, "twice"},
		"data twice":            {envelope + `,"data":1,"data":2}`, "twice"},
		"no id":                 {`{"specversion":"1.0","source":"s","type":"t"}`, "without attribute id"},
		"id null":               {`{"specversion":"1.0","id":null,"source":"s","type":"t"}`, "without attribute id"},
		"id a number":           {`{"specversion":"1.0","id":5,"source":"s","type":"t"}`, "quotes"},
		"version a number":      {`{"specversion":1.0,"id":"5","source":"s","type":"t"}`, "quotes"},
		"fraction":              {envelope + `,"x":1.5}`, "an integer"},
		"object":                {envelope + `,"x":{}}`, "an object"},
		"name with underscore":  {envelope + `,"tenant_id":"1"}`, "lower-case"},
		"both datas":            {envelope + `,"data":1,"data_base64":"AA=="}`, "both data"},
		"bad base64":            {envelope + `,"data_base64":"A"}`, "base64"},
		"base64 not a string":   {envelope + `,"data_base64":1}`, "base64"},
		"base64 of broken json": {envelope + `,"datacontenttype":"application/json","data_base64":"ew=="}`, "aren't JSON"},
		"object as text":        {envelope + `,"datacontenttype":"text/plain","data":{}}`, "isn't a string"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, structured(c.value), c.reason) })
	}
}

func TestDecodeForeign(t *testing.T) {
	payload := `{"taskId":"task-9","description":"Read \u00e9","priority":"high","createdAt":"2024-05-17T08:30:00.123Z","initiatorAgentId":"planner"}`
	m := message([]byte("task-1"), []byte(`{"type":"TaskCreatedEvent","payload":`+payload+`,"v":2}`), "trace", "x")
	m.Time = time.UnixMilli(1715934600123)
	e := mustDecode(t, m)
	if e.Type != "TaskCreatedEvent" || e.Subject != "task-1" || e.Source != "kafka:///ai-task-events" || !e.Positional ||
		e.ID != "ai-task-events/3@42.1715934600123" || !e.Time.Equal(m.Time) || !e.IsJSON() || string(e.Data) != payload {
		t.Errorf("got %+v with data %s", e, e.Data)
	}
	if from := bytes.Index(m.Value, []byte(payload)); &e.Data[0] != &m.Value[from] {
		t.Error("data isn't the record's own bytes")
	}
	var task struct{ TaskID, Description string }
	if err := e.Decode(&task); err != nil || task.TaskID != "task-9" || task.Description != "Read é" {
		t.Errorf("decoded %+v, %v", task, err)
	}
	m.Key, m.Time = nil, time.Time{}
	if e = mustDecode(t, m); e.Subject != "task-9" || e.ID != event.PositionID(at) {
		t.Errorf("without a key: subject %q, id %q", e.Subject, e.ID)
	}
	m.Key = []byte{}
	if e = mustDecode(t, m); e.Subject != "task-9" {
		t.Errorf("with an empty key: subject %q", e.Subject)
	}
	// Headers that aren't those of an event don't make it one.
	if e = mustDecode(t, message(nil, []byte(`{"payload":{},"type":"T"}`), "content-type", "application/json", "ce_Foo-Bar", "x")); e.Type != "T" || e.Subject != "" {
		t.Errorf("got %+v", e)
	}
}

func TestDecodeForeignRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		m      event.Message
		reason string
	}{
		"text":              {message(nil, []byte("hello")), `"payload"`},
		"array":             {message(nil, []byte(`[]`)), `"payload"`},
		"no type":           {message(nil, []byte(`{"payload":{}}`)), `"payload"`},
		"type a number":     {message(nil, []byte(`{"type":1,"payload":{}}`)), `"payload"`},
		"empty type":        {message(nil, []byte(`{"type":"","payload":{}}`)), "type"},
		"no payload":        {message(nil, []byte(`{"type":"t"}`)), `"payload"`},
		"payload an array":  {message(nil, []byte(`{"type":"t","payload":[]}`)), `"payload"`},
		"type twice":        {message(nil, []byte(`{"type":"t","type":"u","payload":{}}`)), "twice"},
		"binary key":        {message([]byte{0xff, 0, 1}, []byte(`{"type":"t","payload":{}}`)), "the record's key"},
		"task id an object": {message(nil, []byte(`{"type":"t","payload":{"taskId":{}}}`)), "payload.taskId"},
		"task id with NUL":  {message(nil, []byte(`{"type":"t","payload":{"taskId":"\u0000"}}`)), "payload.taskId"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, c.m, c.reason) })
	}
}

// A record that can't be read still tells whom it concerns, so that the aggregate can be parked.
func TestRefusedRecordKeepsItsAggregate(t *testing.T) {
	subject := func(m event.Message) string {
		t.Helper()
		e, err := event.Decode(m, at)
		if err == nil {
			t.Fatal("decoded")
		}
		return e.Subject
	}
	if got := subject(message([]byte("k"), []byte("x"))); got != "k" {
		t.Errorf("by key: %q", got)
	}
	if got := subject(binary([]byte("x"), "ce_subject", "s", "content-type", "application/json")); got != "s" {
		t.Errorf("by header: %q", got)
	}
	if got := subject(message(nil, []byte("x"))); got != "" {
		t.Errorf("without a key: %q", got)
	}
	a, b := subject(message([]byte{0xff}, []byte("x"))), subject(message([]byte{0xfe}, []byte("x")))
	if a == b || a == "" || !strings.HasPrefix(a, "key-") {
		t.Errorf("binary keys: %q and %q", a, b)
	}
}

func TestErrorsQuoteNoData(t *testing.T) {
	for _, m := range []event.Message{
		binary([]byte(`{"password":"hunter2"`), "content-type", "application/json"),
		message(nil, []byte(`{"password":"hunter2"}`)),
		structured(`{"specversion":"1.0","password":"hunter2"}`),
		binary(nil, "ce_subject", "hunter2\n"),
	} {
		_, err := event.Decode(m, at)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("error is %v", err)
		}
	}
}

func TestEncode(t *testing.T) {
	e := event.New("OrderPlaced", "order-1", map[string]int{"amount": 10})
	e.ID, e.Source, e.Time = "e1", "/orders", time.Date(2024, 5, 17, 10, 30, 0, 0, time.FixedZone("", 7200))
	e.SetExtension("b", "2")
	e.SetExtension("a", "1")
	m, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, h := range m.Headers {
		got = append(got, h.Key+": "+string(h.Value))
	}
	want := "ce_specversion: 1.0\nce_id: e1\nce_source: /orders\nce_type: OrderPlaced\nce_subject: order-1\nce_time: 2024-05-17T08:30:00Z\n" +
		"content-type: application/json\nce_a: 1\nce_b: 2"
	if strings.Join(got, "\n") != want {
		t.Errorf("headers are\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	if string(m.Key) != "order-1" || string(m.Value) != `{"amount":10}` || &m.Value[0] != &e.Data[0] || !m.Time.IsZero() {
		t.Errorf("got %+v", m)
	}
	if m, err = e.EncodeStructured(); err != nil {
		t.Fatal(err)
	}
	if want := `{"specversion":"1.0","id":"e1","source":"/orders","type":"OrderPlaced","subject":"order-1","time":"2024-05-17T08:30:00Z",` +
		`"datacontenttype":"application/json","a":"1","b":"2","data":{"amount":10}}`; string(m.Value) != want {
		t.Errorf("got  %s\nwant %s", m.Value, want)
	}
	if string(m.Key) != "order-1" || header(m, "content-type") != "application/cloudevents+json" {
		t.Errorf("got %+v", m)
	}
}

// I4: no subject is no key, never an empty one; two spellings of a subject are one key.
func TestI4Keys(t *testing.T) {
	e := event.Event{ID: "1", Source: "s", Type: "t"}
	m, err := e.Encode()
	if err != nil || m.Key != nil {
		t.Errorf("no subject: key %#v, %v", m.Key, err)
	}
	for _, spelling := range []string{"caf\u00e9", "cafe\u0301"} {
		e.Subject = spelling
		for _, encode := range []func() (event.Message, error){e.Encode, e.EncodeStructured} {
			m, err := encode()
			if err != nil || string(m.Key) != "caf\u00e9" {
				t.Errorf("%+q: key %+q, %v", spelling, m.Key, err)
			}
			if got := mustDecode(t, m).Subject; got != "caf\u00e9" {
				t.Errorf("%+q: subject %+q", spelling, got)
			}
		}
	}
	// What others wrote is read as it stands.
	if got := mustDecode(t, binary(nil, "ce_subject", "cafe\u0301")).Subject; got != "cafe\u0301" {
		t.Errorf("subject became %+q", got)
	}
}

func TestEncodeRefuses(t *testing.T) {
	good := event.Event{ID: "1", Source: "s", Type: "t", Subject: "x"}
	for name, change := range map[string]func(*event.Event){
		"no id":                func(e *event.Event) { e.ID = "" },
		"no source":            func(e *event.Event) { e.Source = "" },
		"no type":              func(e *event.Event) { e.Type = "" },
		"control in subject":   func(e *event.Event) { e.Subject = "a\nb" },
		"invalid UTF-8":        func(e *event.Event) { e.Subject = "\xff" },
		"long subject":         func(e *event.Event) { e.Subject = strings.Repeat("x", event.MaxIdentity+1) },
		"extension name":       func(e *event.Event) { e.SetExtension("Not_OK", "1") },
		"extension named data": func(e *event.Event) { e.SetExtension("data", "1") },
		"attribute's name":     func(e *event.Event) { e.SetExtension("id", "1") },
		"extension value":      func(e *event.Event) { e.SetExtension("a", "\x00") },
		"content type":         func(e *event.Event) { e.DataContentType = "a\nb" },
		"content type of ours": func(e *event.Event) { e.DataContentType = "application/cloudevents+json" },
		"schema":               func(e *event.Event) { e.DataSchema = "\x00" },
		"year":                 func(e *event.Event) { e.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"broken json":          func(e *event.Event) { e.Data, e.DataContentType = []byte(`{`), "application/json" },
		"empty json":           func(e *event.Event) { e.Data, e.DataContentType = []byte{}, "application/json" },
		"hops":                 func(e *event.Event) { e.SetExtension("hops", "x") },
		"marshalling": func(e *event.Event) {
			n := event.New("t", "x", func() {})
			n.ID, n.Source = "1", "s"
			*e = n
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := good
			change(&e)
			for _, encode := range []func() (event.Message, error){e.Encode, e.EncodeStructured} {
				if m, err := encode(); err == nil || fault.ClassOf(err) != fault.Permanent {
					t.Errorf("got %+v, %v", m, err)
				}
			}
		})
	}
	deep := good
	deep.Data, deep.DataContentType = []byte(strings.Repeat("[", 512)+strings.Repeat("]", 512)), "application/json"
	if _, err := deep.Encode(); err != nil {
		t.Errorf("binary: %v", err)
	}
	if _, err := deep.EncodeStructured(); err == nil {
		t.Error("structured: a value was written that can't be read")
	}
}
