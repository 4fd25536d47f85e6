package letters_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/letters"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestListTellsWhatWaitsAndWhatIsSettled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publish(numbered(bad, "a", 1), numbered("GoodEvent", "a", 2), numbered("GoodEvent", "a", 3), numbered(bad, "b", 1), numbered("GoodEvent", "c", 1),
		event.Message{Value: []byte("no event, and no key")})
	before := time.Now().Add(-time.Second)
	w.run(map[string]engine.OnDead{"parker": engine.Park, "skipper": engine.Skip})

	all := w.list(letters.Filter{}, letters.Options{})
	if len(all) != 6 {
		t.Fatalf("%d letters, expected 3 of each agent: %+v", len(all), all)
	}
	for _, l := range all {
		want := letters.Dead
		if l.Agent == "parker" && l.Subject != "" {
			want = letters.Parked
		}
		if l.State != want || l.Topic != topic || l.Class != "permanent" || l.First == nil || l.Last == nil || l.Last.Before(before) || l.SizeBytes == 0 || l.LetterAt == nil {
			t.Errorf("letter is %+v, expected it %s", l, want)
		}
		if behind := map[string]int64{"parkera": 2}[l.Agent+l.Subject]; l.Behind != behind {
			t.Errorf("%d records wait behind %+v, expected %d", l.Behind, l, behind)
		}
		if l.Subject != "" && (l.Attempts != 1 || !strings.Contains(l.Reason, "no good")) {
			t.Errorf("letter is %+v", l)
		}
	}

	past, future := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	partition, offset := all[0].Partition, all[0].Offset
	for name, c := range map[string]struct {
		f    letters.Filter
		want int
	}{
		"agent":              {letters.Filter{Agent: "skipper"}, 3},
		"unknown agent":      {letters.Filter{Agent: "nobody"}, 0},
		"aggregate":          {letters.Filter{Subject: "a"}, 2},
		"reason":             {letters.Filter{Reason: "no good"}, 4},
		"expression":         {letters.Filter{ReasonMatches: `^no good: \{"n":1}$`}, 4},
		"expression of none": {letters.Filter{ReasonMatches: `^good`}, 0},
		"topic":              {letters.Filter{Topic: topic}, 6},
		"other topic":        {letters.Filter{Topic: "other"}, 0},
		"since":              {letters.Filter{Since: &past}, 6},
		"since later":        {letters.Filter{Since: &future}, 0},
		"until":              {letters.Filter{Until: &past}, 0},
		"all at once":        {letters.Filter{Agent: "parker", Topic: topic, Subject: "b", Reason: "good", Since: &past, Until: &future}, 1},
		"one record":         {letters.Filter{Topic: topic, Partition: &partition, Offset: &offset}, 2},
	} {
		if got := w.list(c.f, letters.Options{}); len(got) != c.want {
			t.Errorf("by %s: %d letters, expected %d: %+v", name, len(got), c.want, got)
		}
	}
	for _, f := range []letters.Filter{{ReasonMatches: "("}, {Since: &future, Until: &past}, {Offset: &offset}} {
		if err := w.tray.List(t.Context(), f, letters.Options{}, nil); !errors.Is(err, letters.ErrFilter) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

func TestSkipAndRedriveAddUpAndMayBeDoneTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publish(numbered(bad, "a", 1), numbered("GoodEvent", "a", 2), numbered(bad, "b", 1), numbered(bad, "c", 1), numbered(bad, "d", 1))
	w.run(map[string]engine.OnDead{"parker": engine.Park, "skipper": engine.Skip})
	counters := w.counters("parker")

	if a := w.act(letters.Redrive, letters.Filter{Agent: "parker"}, true); a.Before != 4 || a.Matched != 4 || a.Done != 4 || a.Behind != 1 || !a.DryRun {
		t.Errorf("dry run: %+v", a)
	}
	if got := len(w.list(letters.Filter{}, letters.Options{})); got != 8 {
		t.Fatalf("after a dry run %d letters wait", got)
	}
	if a := w.act(letters.Redrive, letters.Filter{Agent: "parker", Subject: "a"}, false); a.Before != 4 || a.Matched != 1 || a.Done != 1 || a.Behind != 1 || a.Left != 3 {
		t.Errorf("redrive of one: %+v", a)
	}
	if a := w.act(letters.Redrive, letters.Filter{Agent: "parker", Subject: "a"}, false); a.Before != 3 || a.Matched != 0 || a.UnderWay != 1 || a.Left != 3 {
		t.Errorf("redrive of it once more: %+v", a)
	}
	if a := w.act(letters.Skip, letters.Filter{Agent: "parker", Subject: "b"}, false); a.Done != 1 || a.Left != 2 {
		t.Errorf("skip of one: %+v", a)
	}
	if a := w.act(letters.Skip, letters.Filter{Agent: "skipper", Subject: "b"}, false); a.Before != 4 || a.Done != 1 || a.Left != 3 {
		t.Errorf("skip of one that parks nothing: %+v", a)
	}
	if a := w.act(letters.Redrive, letters.Filter{Agent: "skipper", Subject: "c"}, false); a.Before != 3 || a.Done != 1 || a.Left != 2 {
		t.Errorf("redrive of one that parks nothing: %+v", a)
	}
	states := map[string]letters.State{}
	for _, l := range w.list(letters.Filter{}, letters.Options{Settled: true}) {
		states[l.Agent+" "+l.Subject] = l.State
	}
	for of, want := range map[string]letters.State{"parker a": letters.Redriving, "parker b": letters.Settled, "parker c": letters.Parked, "parker d": letters.Parked,
		"skipper a": letters.Dead, "skipper b": letters.Settled, "skipper c": letters.Redriving, "skipper d": letters.Dead} {
		if states[of] != want {
			t.Errorf("%s is %s, expected %s", of, states[of], want)
		}
	}
	if got := len(w.list(letters.Filter{}, letters.Options{})); got != 6 {
		t.Errorf("%d letters are listed, expected those that are settled left out", got)
	}
	if got := w.counters("parker"); got != counters {
		t.Errorf("counters are %+v before and %+v after people's decisions: nothing was handled", counters, got)
	}
	rows, err := w.ledger.Waits(t.Context(), ledger.WaitQuery{Group: "skipper", DeadOnly: true})
	must(t, err)
	if len(rows) != 1 || rows[0].Subject != "c" || !rows[0].Released {
		t.Fatalf("put back: %+v", rows)
	}
	original := numbered(bad, "c", 1)
	got := rows[0].Message
	if !bytes.Equal(got.Key, original.Key) || !bytes.Equal(got.Value, original.Value) || !slices.EqualFunc(got.Headers, original.Headers,
		func(a, b event.Header) bool { return a.Key == b.Key && bytes.Equal(a.Value, b.Value) }) {
		t.Errorf("put back is %+v, and it was %+v", got, original)
	}
}

func TestARunThatIsInterruptedGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const n = 40
	for i := range n {
		w.publish(numbered(bad, string(rune('A'+i)), 1))
	}
	w.run(map[string]engine.OnDead{"parker": engine.Park})
	total := int64(0)
	for range n {
		seen := 0
		stop := errors.New("interrupted")
		a, err := w.tray.Act(t.Context(), letters.Redrive, letters.Filter{}, false, letters.Options{}, func(*letters.Letter) error {
			if seen++; seen > 7 {
				return stop
			}
			return nil
		})
		total += a.Done
		if err == nil {
			break
		}
		if !errors.Is(err, stop) || a.Done != 7 {
			t.Fatalf("%+v, %v", a, err)
		}
	}
	if total != n {
		t.Errorf("%d letters were redriven in all, expected %d", total, n)
	}
}

func TestValuesThatWereOmittedAreReadAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	big := event.New(bad, "big", map[string]string{"why": strings.Repeat("x", 10_000)})
	big.Source, big.ID = "//test", "big"
	m, err := big.Encode()
	must(t, err)
	w.publish(m)
	w.run(map[string]engine.OnDead{"skipper": engine.Skip})
	got := w.list(letters.Filter{}, letters.Options{})
	if len(got) != 1 || !got[0].Omitted || got[0].SizeBytes != int64(len(m.Key)+len(m.Value)) {
		t.Fatalf("letters %+v", got)
	}
	got = w.list(letters.Filter{}, letters.Options{Content: true})
	if got[0].Omitted || !bytes.Equal(got[0].Content.Value, m.Value) {
		t.Errorf("the whole record is in its topic, and shown is %+v", got[0])
	}
	if a := w.act(letters.Redrive, letters.Filter{}, false); a.Done != 1 {
		t.Errorf("redrive: %+v", a)
	}
	rows, err := w.ledger.Waits(t.Context(), ledger.WaitQuery{})
	must(t, err)
	if len(rows) != 1 || !bytes.Equal(rows[0].Message.Value, m.Value) {
		t.Errorf("put back without its bytes: %+v", rows)
	}
}

func TestExportKeepsBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	raw := []event.Message{
		{Key: []byte("k\xff"), Value: []byte("\x00\xfe not JSON"), Headers: []event.Header{{Key: "h", Value: []byte("\xff")}, {Key: "h"}, {Key: "", Value: []byte{}}}},
		{Key: []byte("two"), Value: []byte{}},
	}
	w.publish(raw...)
	w.run(map[string]engine.OnDead{"../sly": engine.Skip})
	got := w.list(letters.Filter{}, letters.Options{Content: true})
	if len(got) != len(raw) {
		t.Fatalf("%d letters: %+v", len(got), got)
	}
	folder := t.TempDir()
	for _, l := range got {
		line, err := json.Marshal(l)
		must(t, err)
		var back letters.Letter
		must(t, json.Unmarshal(line, &back))
		i := slices.IndexFunc(raw, func(m event.Message) bool { return bytes.Equal(m.Key, back.Content.Key) })
		if i < 0 || !bytes.Equal(raw[i].Value, back.Content.Value) || back.Content.Value == nil || len(back.Content.Headers) != len(raw[i].Headers) {
			t.Fatalf("exported as %s", line)
		}
		for j, h := range raw[i].Headers {
			if b := back.Content.Headers[j]; b.Key != h.Key || !bytes.Equal(b.Value, h.Value) || (b.Value == nil) != (h.Value == nil) {
				t.Errorf("header %d is %+v, and was %+v", j, b, h)
			}
		}
		must(t, letters.WriteFiles(folder, &l))
		must(t, letters.WriteFiles(folder, &l)) // a run that is repeated writes the same
	}
	files, err := filepath.Glob(filepath.Join(folder, "*", "*", "*"))
	must(t, err)
	if len(files) != 4 {
		t.Fatalf("files are %v", files)
	}
	outside, err := filepath.Glob(filepath.Join(filepath.Dir(folder), "sly*"))
	must(t, err)
	if len(outside) > 0 {
		t.Errorf("an agent's name leads out of the folder: %v", outside)
	}
	found := false
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && strings.HasSuffix(f, ".value") && bytes.Equal(b, raw[0].Value) {
			found = true
		}
	}
	if !found {
		t.Error("no file holds the value's bytes")
	}
}

func TestWhoDiedAgainIsListedOnceWithItsLastReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publish(numbered(bad, "a", 1))
	w.run(map[string]engine.OnDead{"parker": engine.Park})
	first := w.list(letters.Filter{}, letters.Options{})[0]
	// Its letter once more, as a crash makes a copy, and one of a later death.
	m := event.Message{Key: []byte("a"), Value: []byte("x")}
	for _, reason := range []string{first.Reason, "another reason"} {
		c := m
		for k, v := range map[string]string{engine.HeaderDeadAgent: "parker", engine.HeaderDeadTopic: topic, engine.HeaderDeadPartition: "0",
			engine.HeaderDeadOffset: "0", engine.HeaderDeadReason: reason} {
			if k == engine.HeaderDeadPartition && first.Partition == 1 {
				v = "1"
			}
			c.Headers = append(c.Headers, event.Header{Key: k, Value: []byte(v)})
		}
		w.publishDead(first.Partition, c)
	}
	// Anybody can write to the topic: what isn't a letter is passed over.
	w.publishDead(0, event.Message{Value: []byte("hello")})
	w.publishDead(0, event.Message{Headers: []event.Header{{Key: engine.HeaderDeadAgent, Value: []byte("parker")}, {Key: engine.HeaderDeadTopic, Value: []byte(topic)},
		{Key: engine.HeaderDeadPartition, Value: []byte("-1")}, {Key: engine.HeaderDeadOffset, Value: []byte("9")}}})
	got := w.list(letters.Filter{}, letters.Options{Settled: true})
	if len(got) != 1 || got[0].Reason != "another reason" || got[0].State != letters.Parked {
		t.Errorf("listed is %+v", got)
	}
	if a := w.act(letters.Redrive, letters.Filter{}, false); a.Before != 1 || a.Done != 1 {
		t.Errorf("redrive: %+v", a)
	}
}

func TestParkedAggregatesWithoutALetterAreListed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publish(numbered(bad, "a", 1), numbered("GoodEvent", "a", 2))
	w.run(map[string]engine.OnDead{"parker": engine.Park})
	tray := letters.Tray{Broker: noLetters{w.broker}, Ledger: w.ledger}
	var got []letters.Letter
	must(t, tray.List(t.Context(), letters.Filter{}, letters.Options{Content: true}, func(l *letters.Letter) error { got = append(got, *l); return nil }))
	if len(got) != 1 || got[0].State != letters.Parked || got[0].Behind != 1 || got[0].Subject != "a" || got[0].LetterAt != nil || got[0].Content == nil {
		t.Fatalf("listed is %+v", got)
	}
	a, err := tray.Act(t.Context(), letters.Redrive, letters.Filter{}, false, letters.Options{}, nil)
	if err != nil || a.Done != 1 || a.Behind != 1 {
		t.Errorf("redrive: %+v, %v", a, err)
	}
}

func TestProgressIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.publish(numbered(bad, "a", 1), numbered(bad, "b", 1))
	w.run(map[string]engine.OnDead{"parker": engine.Park})
	var last letters.Progress
	must(t, w.tray.List(context.Background(), letters.Filter{}, letters.Options{Progress: func(p letters.Progress) { last = p }}, func(*letters.Letter) error { return nil }))
	if last != (letters.Progress{Read: 4, Of: 4, Matched: 2}) {
		t.Errorf("progress at the end is %+v", last)
	}
}
