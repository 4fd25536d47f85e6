package event_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"regexp"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/event"
)

// P9: the same event however it's spelled, and another event under its id.
func TestP9Digest(t *testing.T) {
	of := func(data string) [16]byte {
		return mustDecode(t, binary([]byte(data), "content-type", "application/json")).Digest()
	}
	first, second, third := of(`{"id":"e1","amount":10}`), of(`{ "amount":10,"id":"\u00651" }`), of(`{"id":"e1","amount":99}`)
	if first != second {
		t.Error("a copy in another spelling is told from the event")
	}
	if first == third {
		t.Error("another event isn't told from the first")
	}
}

func TestDigestCovers(t *testing.T) {
	base := event.Event{Type: "t", Source: "s", ID: "i", Subject: "x", DataContentType: "application/json", Data: []byte(`{"a":1}`)}
	for name, change := range map[string]func(*event.Event){
		"type":             func(e *event.Event) { e.Type = "u" },
		"source":           func(e *event.Event) { e.Source = "u" },
		"id":               func(e *event.Event) { e.ID = "u" },
		"subject":          func(e *event.Event) { e.Subject = "u" },
		"data":             func(e *event.Event) { e.Data = []byte(`{"a":2}`) },
		"number's lexeme":  func(e *event.Event) { e.Data = []byte(`{"a":1.0}`) },
		"no data":          func(e *event.Event) { e.Data = nil },
		"raw data":         func(e *event.Event) { e.DataContentType = "text/plain" },
		"moved boundaries": func(e *event.Event) { e.Type, e.Source = "ts", "" },
	} {
		e := base
		if change(&e); e.Digest() == base.Digest() {
			t.Errorf("the digest leaves out: %s", name)
		}
	}
	for name, change := range map[string]func(*event.Event){
		"time":             func(e *event.Event) { e.Time = time.Now() },
		"extensions":       func(e *event.Event) { e.SetExtension("traceparent", "x") },
		"schema":           func(e *event.Event) { e.DataSchema = "x" },
		"content type":     func(e *event.Event) { e.DataContentType = "application/json; charset=utf-8" },
		"whitespace":       func(e *event.Event) { e.Data = []byte(` { "a" : 1 } `) },
		"being positional": func(e *event.Event) { e.Positional = true },
	} {
		e := base
		if change(&e); e.Digest() != base.Digest() {
			t.Errorf("the digest covers: %s", name)
		}
	}
	empty, none := base, base
	empty.DataContentType, none.DataContentType = "text/plain", "text/plain"
	empty.Data, none.Data = []byte{}, nil
	if empty.Digest() == none.Digest() {
		t.Error("empty data is no data")
	}
	// JSON without one meaning counts by its bytes, so that copies are still told.
	twice := base
	twice.Data = []byte(`{"a":1,"a":2}`)
	if again := twice; again.Digest() != twice.Digest() || twice.Digest() == base.Digest() {
		t.Error("JSON without a canonical form has no digest of its own")
	}
}

// The digest and the derived ids are stored: these are their formats, spelled out.
func TestGoldenFormats(t *testing.T) {
	e := event.Event{Type: "OrderPlaced", Source: "/orders", ID: "e1", Subject: "order-1", DataContentType: "application/json",
		Data: []byte(`{"b":9007199254740993,"a":"\u00e9"}`)}
	part := func(s string) string { return string([]byte{0, 0, 0, 0, 0, 0, 0, byte(len(s))}) + s }
	sum := sha256.Sum256([]byte(part("OrderPlaced") + part("/orders") + part("e1") + part("order-1") + "\x02" + `{"a":"é","b":9007199254740993}`))
	digest := e.Digest()
	if !bytes.Equal(digest[:], sum[:16]) {
		t.Errorf("digest is %x, want %x", digest, sum[:16])
	}
	for what, c := range map[string][2]string{
		"digest":      {hex.EncodeToString(digest[:]), "a59845ee1729c1c9dc407e8ab71666b7"},
		"derived id":  {event.DeriveID("reader", "/orders", "e1", 0), "sjmrunn2i4o43aws2h3ndduukq"},
		"second id":   {event.DeriveID("reader", "/orders", "e1", 1), "qr4mqtj6htxobwc32tdblxv3cy"},
		"position id": {event.PositionID(event.Position{Topic: "a.b-c_d", Partition: 12, Offset: 9007199254740993}), "a.b-c_d/12@9007199254740993"},
	} {
		if c[0] != c[1] {
			t.Errorf("%s is %s, was %s in earlier releases", what, c[0], c[1])
		}
	}
}

func TestPropertyDeriveID(t *testing.T) {
	form := regexp.MustCompile(`^[a-z2-7]{26}$`)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) [4]any {
			s := rapid.StringN(0, 4, 8)
			return [4]any{s.Draw(t, label+" group"), s.Draw(t, label+" source"), s.Draw(t, label+" id"), rapid.IntRange(0, 3).Draw(t, label+" index")}
		}
		id := func(p [4]any) string { return event.DeriveID(p[0].(string), p[1].(string), p[2].(string), p[3].(int)) }
		a, b := draw("a"), draw("b")
		if !form.MatchString(id(a)) {
			t.Fatalf("id is %q", id(a))
		}
		if (id(a) == id(b)) != (a == b) {
			t.Fatalf("%q and %q: ids %s and %s", a, b, id(a), id(b))
		}
	})
}

func TestSequence(t *testing.T) {
	var e event.Event
	if n, ok := e.Sequence(); ok {
		t.Errorf("none reads as %d", n)
	}
	for _, n := range []int64{1, 42, math.MaxInt64} {
		e.SetSequence(n)
		if got, ok := e.Sequence(); !ok || got != n {
			t.Errorf("%d reads as %d, %v", n, got, ok)
		}
	}
	low, high := event.Event{}, event.Event{}
	low.SetSequence(9)
	high.SetSequence(10)
	if low.Extension("sequence") >= high.Extension("sequence") {
		t.Error("sequences aren't in lexicographic order, which CloudEvents asks for")
	}
	// A count with another meaning is none: its gaps per subject say nothing.
	for _, x := range [][2]string{{"", "5"}, {"Integer", "5"}, {"PerSubject", ""}, {"PerSubject", "0"}, {"PerSubject", "-1"}, {"PerSubject", "1.0"},
		{"PerSubject", "abc"}, {"PerSubject", "9223372036854775808"}} {
		e := event.Event{Extensions: map[string]string{"sequencetype": x[0], "sequence": x[1]}}
		if n, ok := e.Sequence(); ok {
			t.Errorf("%q of type %q reads as %d", x[1], x[0], n)
		}
	}
	if e := mustDecode(t, binary(nil, "ce_sequence", "abc-17")); e.Extension("sequence") != "abc-17" {
		t.Error("a foreign sequence doesn't pass through")
	}
}

func TestHopsAndRecordedTime(t *testing.T) {
	var e event.Event
	if e.SetHops(0); e.Hops() != 0 || e.Extensions != nil {
		t.Errorf("no hops: %+v", e)
	}
	if e.SetHops(7); e.Hops() != 7 {
		t.Errorf("hops are %d", e.Hops())
	}
	if e.SetHops(0); e.Hops() != 0 {
		t.Errorf("hops are %d", e.Hops())
	}
	for _, bad := range []string{"x", "-1", "", "99999999999"} {
		if e.SetExtension("hops", bad); e.Hops() != math.MaxInt32 {
			t.Errorf("hops %q are %d, want what stops a cycle", bad, e.Hops())
		}
	}
	if _, ok := e.RecordedTime(); ok {
		t.Error("a recorded time out of nowhere")
	}
	at := time.Date(2024, 5, 17, 8, 30, 0, 1, time.FixedZone("", 3600))
	e.SetRecordedTime(at)
	if got, ok := e.RecordedTime(); !ok || !got.Equal(at) {
		t.Errorf("recorded time is %v, %v", got, ok)
	}
	e.SetExtension("recordedtime", "soon")
	if got, ok := e.RecordedTime(); ok {
		t.Errorf("recorded time is %v", got)
	}
}

// Copies of an event share its map: setting an attribute of one must not show in the other.
func TestSetExtensionLeavesCopies(t *testing.T) {
	a := event.New("t", "s", nil)
	a.SetExtension("x", "1")
	b := a
	b.SetExtension("x", "2")
	b.SetExtension("y", "3")
	if a.Extension("x") != "1" || a.Extension("y") != "" || b.Extension("x") != "2" {
		t.Errorf("a has %v, b has %v", a.Extensions, b.Extensions)
	}
}
