package sqlite

import (
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/event"
)

func TestMessageRoundTrip(t *testing.T) {
	bytes := rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOf(rapid.Byte()))
	rapid.Check(t, func(t *rapid.T) {
		m := event.Message{Key: bytes.Draw(t, "key"), Value: bytes.Draw(t, "value")}
		if n := rapid.Int64Range(0, 1<<45).Draw(t, "time"); n > 0 {
			m.Time = time.UnixMicro(n).UTC()
		}
		for range rapid.IntRange(0, 4).Draw(t, "headers") {
			m.Headers = append(m.Headers, event.Header{Key: rapid.String().Draw(t, "name"), Value: bytes.Draw(t, "header")})
		}
		got, err := decodeMessage(encodeMessage(m))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v became %+v, %v", m, got, err)
		}
	})
}

func FuzzDecodeMessage(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{messageVersion, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add(encodeMessage(event.Message{Key: []byte("k"), Value: []byte{}, Headers: []event.Header{{Key: "a"}}, Time: time.UnixMilli(1)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeMessage(b)
		if err != nil {
			return
		}
		again, err := decodeMessage(encodeMessage(m))
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}
