package event_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/event"
)

func TestNew(t *testing.T) {
	for name, c := range map[string]struct {
		data       any
		want, kind string
	}{
		"nothing": {nil, "", ""},
		"value":   {struct{ A int }{1}, `{"A":1}`, "application/json"},
		"raw":     {json.RawMessage(`{"n":9007199254740993}`), `{"n":9007199254740993}`, "application/json"},
		"bytes":   {[]byte{0xff}, "\xff", "application/octet-stream"},
		"text":    {"a\nb", "a\nb", "text/plain; charset=utf-8"},
	} {
		e := event.New("T", "s", c.data)
		if e.Type != "T" || e.Subject != "s" || string(e.Data) != c.want || e.DataContentType != c.kind || e.Err() != nil {
			t.Errorf("%s: %+v, %v", name, e, e.Err())
		}
		if (e.Data == nil) != (c.data == nil) {
			t.Errorf("%s: data is %#v", name, e.Data)
		}
	}
	if err := event.New("T", "s", func() {}).Err(); err == nil || !strings.Contains(err.Error(), `T about "s"`) {
		t.Errorf("error of marshalling is %v", err)
	}
}

func TestEventDecode(t *testing.T) {
	e := event.New("T", "s", map[string]int{"n": 1})
	e.ID = "e1"
	var v struct{ N int }
	if err := e.Decode(&v); err != nil || v.N != 1 {
		t.Errorf("got %+v, %v", v, err)
	}
	var wrong []int
	if err := e.Decode(&wrong); err == nil || !strings.Contains(err.Error(), `T "e1"`) {
		t.Errorf("error is %v", err)
	}
}

func TestIsJSON(t *testing.T) {
	for contentType, want := range map[string]bool{
		"application/json": true, "APPLICATION/JSON": true, "text/json": true, "application/json; charset=utf-8": true,
		" application/cloud+json ;v=1": true, "": false, "json": false, "application/jsonl": false, "text/plain": false, "application/x+jsonp": false,
	} {
		if got := (event.Event{DataContentType: contentType}).IsJSON(); got != want {
			t.Errorf("%q: %v", contentType, got)
		}
	}
}
