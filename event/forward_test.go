package event

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A record that was forwarded keeps the id, source, time and digest that it had in its first place, however often it's
// copied, and is no longer taken for one that can have no copies.
func TestForwardedRecordKeepsItsPositionalID(t *testing.T) {
	first := Message{Key: []byte("t-1"), Value: []byte(`{"type":"TaskCreated","payload":{"taskId":"t-1"}}`), Time: time.UnixMilli(1_700_000_000_123)}
	stood := Position{Topic: "ai-task-events", Partition: 6, Offset: 41}
	want, err := Decode(first, stood)
	if err != nil {
		t.Fatal(err)
	}
	m := first.Forwarded(stood)
	if !m.Time.IsZero() {
		t.Error("the broker is to say when it's appended")
	}
	for _, at := range []Position{{"ai-task-events", 4, 7}, {"ai-task-events", 4, 8}} {
		m.Time = time.UnixMilli(1_800_000_000_000 + at.Offset)
		got, err := Decode(m, at)
		if err != nil {
			t.Fatal(err)
		}
		if got.ID != want.ID || got.Source != want.Source || !got.Time.Equal(want.Time) || got.Digest() != want.Digest() {
			t.Errorf("at %s: %s of %s at %s, first %s of %s at %s", at, got.ID, got.Source, got.Time, want.ID, want.Source, want.Time)
		}
		if got.Positional || !want.Positional {
			t.Error("the copy counts as positional, or the first one doesn't")
		}
	}
	again := m.Forwarded(Position{"ai-task-events", 4, 7})
	if got, err := Decode(again, Position{"ai-task-events", 2, 0}); err != nil || got.ID != want.ID || again.Hops() != 2 {
		t.Errorf("forwarded twice: id %s, %d hops, %v", got.ID, again.Hops(), err)
	}
	if len(first.Headers) != 0 {
		t.Error("the first message was changed")
	}
}

// An id that a record carries stays; in another topic, and where it's no origin, the header says nothing.
func TestOriginSaysNothingElsewhere(t *testing.T) {
	e := New("T", "s", nil)
	e.ID, e.Source = "mine", "//me"
	m, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Decode(m.Forwarded(Position{"a", 1, 2}), Position{"a", 0, 9}); err != nil || got.ID != "mine" || got.Positional {
		t.Errorf("%+v %v", got, err)
	}
	bare := Message{Value: []byte(`{"type":"T","payload":{}}`)}
	if got, err := Decode(bare.Forwarded(Position{"a", 1, 2}), Position{"b", 0, 9}); err != nil || got.ID != "b/0@9" || !got.Positional {
		t.Errorf("%+v %v", got, err)
	}
	for _, bad := range []string{"", "a", "a/1", "a/1@", "a/1@2.", "a/-1@2", "a/1@-2", "a/01@2", "a/1@2.x", "/1@2", "a/1@2.5.6", "a/9999999999@2", "a\n/1@2", "a/+1@2",
		strings.Repeat("a", 300) + "/1@2"} {
		if o, ok := ParseOrigin(bad); ok {
			t.Errorf("%q is an origin: %+v", bad, o)
		}
		m := bare
		m.Headers = []Header{{HeaderFrom, []byte(bad)}}
		if got, err := Decode(m, Position{"a", 0, 9}); err != nil || got.ID != "a/0@9" || !got.Positional {
			t.Errorf("with header %q: %+v %v", bad, got, err)
		}
	}
}

func TestForwardedTombstoneIsOne(t *testing.T) {
	m := Message{Key: []byte("k")}
	e, err := Decode(m.Forwarded(Position{"a", 1, 2}), Position{"a", 0, 9})
	if err != nil || !e.Tombstone() {
		t.Errorf("%+v %v", e, err)
	}
}

func TestPropertyOriginsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Origin{Position: Position{Topic: rapid.StringMatching(`[a-zA-Z0-9._-]{1,249}`).Draw(t, "topic"),
			Partition: rapid.Int32Min(0).Draw(t, "partition"), Offset: rapid.Int64Min(0).Draw(t, "offset")}}
		if rapid.Bool().Draw(t, "stamped") {
			o.Time = time.UnixMilli(rapid.Int64Range(0, 1<<45).Draw(t, "time")).UTC()
		}
		if got, ok := ParseOrigin(o.String()); !ok || got != o {
			t.Fatalf("%q is read as %+v, %v", o, got, ok)
		}
	})
}

func FuzzParseOrigin(f *testing.F) {
	f.Add("a/1@2")
	f.Add("a/1@2.1700000000000")
	f.Add("a/b/1@2.-1")
	f.Fuzz(func(t *testing.T, s string) {
		if o, ok := ParseOrigin(s); ok && o.String() != s {
			t.Errorf("%q is read as %q", s, o)
		}
	})
}
