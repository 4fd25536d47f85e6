package progress_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/internal/progress"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it anew):\n%s\nwant:\n%s", name, got, want)
	}
}

func ptr[T any](v T) *T { return &v }

var began = time.Date(2026, 3, 4, 9, 0, 0, 0, time.UTC)

// scripted is a source that a test moves on.
type scripted struct {
	mu    sync.Mutex
	now   status.Status
	err   error
	looks int
}

func (s *scripted) Status(context.Context) (status.Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looks++
	return s.now, s.err
}

func (s *scripted) set(change func(*status.Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.now)
}

func (s *scripted) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

func running(after time.Duration, settled, left int64) status.Status {
	return status.Status{
		Swarm: "papers", State: status.Running, Started: began, Time: began.Add(after), Documents: settled / 50, Pages: settled / 4,
		StepsPerSecond: 1822.4, TimeLeftSeconds: ptr(74.0), Records: ledger.Counters{Applied: settled - 3, Dead: 3},
		Agents: []status.Agent{{Partitions: []status.Partition{{Lag: &left}}}},
	}
}

// buffer is a writer that may be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// show runs a display in a bubble of virtual time and gives the test its strings.
func show(t *testing.T, o progress.Options, during func(d *progress.Display)) {
	t.Helper()
	d := progress.New(o)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	synctest.Wait()
	during(d)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestPlainLinesComeOnlyWithNewsAndSlowDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, out := &scripted{now: running(0, 4000, 9000)}, new(buffer)
		lines := func() int { return strings.Count(out.String(), "\n") }
		show(t, progress.Options{Source: src, Out: out}, func(*progress.Display) {
			if lines() != 1 {
				t.Fatalf("%d lines at the start, want 1", lines())
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if lines() != 1 {
				t.Fatalf("%d lines although nothing changed", lines())
			}
			start := lines()
			for range 1200 { // two minutes with news ten times a second
				src.set(func(s *status.Status) { s.Pages++; s.Time = s.Time.Add(100 * time.Millisecond) })
				time.Sleep(100 * time.Millisecond)
				synctest.Wait()
			}
			if n := lines() - start; n < 6 || n > 14 {
				t.Errorf("%d lines in two minutes, want a rhythm from 2 s growing to 30 s", n)
			}
			before := lines()
			src.set(func(s *status.Status) { s.State, s.TimeLeftSeconds = status.Idle, ptr(0.0) })
			time.Sleep(time.Second)
			synctest.Wait()
			if lines() != before+1 {
				t.Errorf("%d new lines for a new state, want 1 at once", lines()-before)
			}
		})
		if strings.ContainsRune(out.String(), '\x1b') {
			t.Error("escape sequences without a terminal")
		}
		all := strings.Split(out.String(), "\n")
		golden(t, "plain", all[0]+"\n"+all[len(all)-2]+"\n")
	})
}

func TestIdleAsksSeldom(t *testing.T) {
	for _, mode := range []progress.Mode{progress.Plain, progress.Terminal, progress.JSON} {
		synctest.Test(t, func(t *testing.T) {
			src, out := &scripted{now: running(0, 40, 0)}, new(buffer)
			src.now.State = status.Idle
			show(t, progress.Options{Source: src, Out: out, Mode: mode}, func(*progress.Display) {
				time.Sleep(10 * time.Second)
				synctest.Wait()
				asked, wrote := src.count(), len(out.String())
				time.Sleep(time.Minute)
				synctest.Wait()
				if n := src.count() - asked; n > 31 {
					t.Errorf("mode %d: %d looks in an idle minute", mode, n)
				}
				if n := len(out.String()) - wrote; n != 0 {
					t.Errorf("mode %d: %d bytes written in an idle minute", mode, n)
				}
			})
		})
	}
}

func TestJSONLinesEndWithTheSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, out := &scripted{now: running(2*time.Second, 4000, 9000)}, new(buffer)
		var d *progress.Display
		show(t, progress.Options{Source: src, Out: out, Mode: progress.JSON}, func(display *progress.Display) {
			d = display
			src.set(func(s *status.Status) { *s = running(9*time.Second, 13000, 0); s.State = status.Idle })
			time.Sleep(time.Second)
			synctest.Wait()
		})
		if err := d.Summary(summary(), places()); err != nil {
			t.Fatal(err)
		}
		golden(t, "json", out.String())

		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		for i, line := range lines {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatalf("line %d isn't JSON: %v", i, err)
			}
			if last := i == len(lines)-1; (m["type"] == "progress") == last {
				t.Errorf("line %d of %d has type %v", i+1, len(lines), m["type"])
			}
		}
	})
}

func summary() progress.Summary {
	return progress.Summary{
		Documents: 2020, Pages: 14310, Elapsed: 72*time.Second + 340*time.Millisecond,
		Records:   ledger.Counters{Applied: 44012, Duplicate: 12, Dead: 4, Ignored: 3},
		Inference: ledger.InferenceTotals{Calls: 28620, Reused: 40, InDoubt: 1},
		Warnings:  []string{"the link old/latest leads nowhere: it was passed over"},
		Dead: []status.DeadLetter{
			{Subject: "broken.pdf", Reason: "not a readable PDF (no trailer): save it again from the program that made it"},
			{Subject: "Q3 review 👩‍👩‍👧‍👦 🚀.pdf", Reason: "the PDF is encrypted: save a copy without a password"},
			{Subject: "evil\x1b[2J\r\nname\u202efdp.exe", Reason: "the file is empty\x07"},
			{Subject: "huge.txt", Reason: "200 MiB is over max_document (64 MiB): raise max_document in swarm.yaml, or split the file; " +
				"nothing of it was read, and the other documents of its folder were not held up by it"},
		},
	}
}

func places() progress.Places {
	return progress.Places{Search: `swarmlog search "words"`,
		Page: "http://127.0.0.1:7070/", Broker: "127.0.0.1:9092", Data: "./.swarmlog"}
}

func TestSummaryForPeople(t *testing.T) {
	for name, o := range map[string]progress.Options{
		"summary-plain":    {},
		"summary-color":    {Mode: progress.Terminal, Color: true, Width: func() int { return 80 }},
		"summary-no-color": {Mode: progress.Terminal, Width: func() int { return 60 }},
	} {
		out := new(buffer)
		o.Out = out
		if err := progress.New(o).Summary(summary(), places()); err != nil {
			t.Fatal(err)
		}
		golden(t, name, out.String())
	}
}

func TestSummaryOfAStoppedAndOfAStayingRun(t *testing.T) {
	out := new(buffer)
	d := progress.New(progress.Options{Out: out})
	p := places()
	p.Left = 1204
	if err := d.Summary(progress.Summary{Documents: 1, Pages: 1, Elapsed: 4 * time.Second}, p); err != nil {
		t.Fatal(err)
	}
	p.Left, p.Stays = 0, true
	if err := d.Summary(progress.Summary{Elapsed: 312 * time.Millisecond}, p); err != nil {
		t.Fatal(err)
	}
	golden(t, "summary-others", out.String())
}

func TestSummaryNamesManyDeadLettersButNotAll(t *testing.T) {
	s := progress.Summary{Dead: make([]status.DeadLetter, 2311)}
	for i := range s.Dead {
		s.Dead[i] = status.DeadLetter{Subject: fmt.Sprintf("file-%d.pdf", i), Reason: "empty"}
	}
	out := new(buffer)
	if err := progress.New(progress.Options{Out: out}).Summary(s, progress.Places{}); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "file-49.pdf") || strings.Contains(text, "file-50.pdf") || !strings.Contains(text, "and 2,261 more") {
		t.Errorf("the summary is\n%.600s", text)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Warnings []string }
	if err := json.Unmarshal(b, &got); err != nil || len(got.Warnings) != 2311 || got.Warnings[2310] != "file-2310.pdf: empty" {
		t.Errorf("JSON holds %d warnings, want all 2311 (%v)", len(got.Warnings), err)
	}
}

func TestSummaryWithoutWarningsHasAnEmptyList(t *testing.T) {
	b, err := json.Marshal(progress.Summary{Documents: 2, Elapsed: 1500 * time.Millisecond})
	want := `{"documents":2,"pages":0,"records":{"applied":0,"duplicate":0,"refused":0,"skipped":0,"ignored":0,"dead":0,"waiting":0,"misrouted":0},` +
		`"inference":{"calls":0,"reused":0,"in_doubt":0},"warnings":[],"elapsed_seconds":1.5}`
	if err != nil || string(b) != want {
		t.Errorf("got %s, %v, want %s", b, err, want)
	}
}

func TestAStatusThatCannotBeHadIsAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, out := &scripted{now: running(0, 4000, 9000), err: errors.New("locked")}, new(buffer)
		show(t, progress.Options{Source: src, Out: out}, func(*progress.Display) {
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if out.String() != "" {
				t.Errorf("shown without a status: %q", out.String())
			}
			src.mu.Lock()
			src.err = nil
			src.mu.Unlock()
			time.Sleep(time.Second)
			synctest.Wait()
			if !strings.Contains(out.String(), "80 documents") {
				t.Errorf("after the status is there: %q", out.String())
			}
		})
	})
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("pipe is broken") }

func TestAnErrorOfWritingEndsTheDisplay(t *testing.T) {
	d := progress.New(progress.Options{Source: &scripted{now: running(0, 1, 1)}, Out: failing{}})
	if err := d.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "pipe is broken") {
		t.Errorf("Run returned %v", err)
	}
	if err := d.Summary(progress.Summary{}, progress.Places{}); err == nil {
		t.Error("Summary returned nil")
	}
}

func TestForAFileIsPlainAndJSONWhereAskedFor(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	none := func(string) string { return "" }
	if o := progress.For(f, false, nil, none); o.Mode != progress.Plain || o.Color {
		t.Errorf("a file gets %+v", o)
	}
	if o := progress.For(f, true, nil, none); o.Mode != progress.JSON {
		t.Errorf("--json gets mode %d", o.Mode)
	}
}

func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"", "plain.pdf", "a\x1b[2Jb", "\xff\xfe", "\u202egnp.exe", "👩‍👩‍👧‍👦", "تقرير.pdf", "a\u0085b\u2028", "\U000e0001", "🏴\U000e0067\U000e0062\U000e007f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := progress.Printable(s)
		if !utf8.ValidString(got) {
			t.Fatalf("%q became %q, which isn't UTF-8", s, got)
		}
		for _, r := range got {
			if r < ' ' || (r >= 0x7f && r < 0xa0) || slices.Contains([]rune("\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\ufeff"), r) {
				t.Fatalf("%q became %q, which holds %U", s, got, r)
			}
		}
		if again := progress.Printable(got); again != got {
			t.Fatalf("%q became %q and then %q", s, got, again)
		}
	})
}

func TestPrintableLeavesNamesAlone(t *testing.T) {
	for _, s := range []string{"report 2024 (final).pdf", "Q3 👩‍👩‍👧‍👦 🚀.pdf", "تقرير سنوي.pdf", "日本語.txt", "naïve café.md", "नमस्ते.txt", "می‌خواهم.txt"} {
		if got := progress.Printable(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
}
