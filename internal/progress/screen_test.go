package progress_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/internal/progress"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

// screen is as much of a terminal as the display uses: it wraps long lines, and wraps them anew when its width
// changes, as terminals do. The cursor stands at the start of the line behind the last one.
type screen struct {
	mu     sync.Mutex
	width  int
	lines  []string
	partly string // a line without its break yet
	hidden bool
}

var sequence = regexp.MustCompile(`^\x1b\[(\??)(\d*)([A-Za-z])`)

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for text := string(p); text != ""; {
		if m := sequence.FindStringSubmatch(text); m != nil {
			n, _ := strconv.Atoi(m[2])
			if err := s.control(m[1]+m[3], n); err != nil {
				return 0, err
			}
			text = text[len(m[0]):]
			continue
		}
		switch text[0] {
		case '\x1b':
			return 0, fmt.Errorf("an escape sequence that isn't known: %.10q", text)
		case '\n':
			s.lines = append(s.lines, s.partly)
			s.partly = ""
		case '\r':
			if s.partly != "" {
				return 0, fmt.Errorf("a return inside a line: %q", s.partly)
			}
		default:
			s.partly += text[:1]
		}
		text = text[1:]
	}
	return len(p), nil
}

func (s *screen) control(what string, n int) error {
	switch what {
	case "m":
	case "?l", "?h":
		if n != 25 {
			return fmt.Errorf("private mode %d", n)
		}
		s.hidden = what == "?l"
	case "A":
		// Up n rows: what is above the cursor then stays, the rest is erased by the J that follows.
		for n > 0 {
			if len(s.lines) == 0 {
				return fmt.Errorf("up %d rows above the first line", n)
			}
			last := s.lines[len(s.lines)-1]
			rows := max(1, (len([]rune(last))+s.width-1)/s.width)
			s.lines = s.lines[:len(s.lines)-1]
			if rows > n {
				s.lines = append(s.lines, string([]rune(last)[:(rows-n)*s.width]))
				return nil
			}
			n -= rows
		}
	case "J":
		if s.partly != "" {
			return fmt.Errorf("erase behind %q", s.partly)
		}
	default:
		return fmt.Errorf("control %s", what)
	}
	return nil
}

func (s *screen) columns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.width
}

func (s *screen) resize(width int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.width = width
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(append(append([]string(nil), s.lines...), s.partly), "\n")
}

func TestTerminalFrames(t *testing.T) {
	for _, c := range []struct {
		name  string
		width int
		color bool
		s     status.Status
	}{
		{"wide", 100, false, running(83*time.Second, 12480, 8020)},
		{"narrow", 34, false, running(83*time.Second, 12480, 8020)},
		{"tiny", 12, false, running(83*time.Second, 12480, 8020)},
		{"unknown", 80, false, func() status.Status {
			s := running(400*time.Millisecond, 3, 0)
			s.State, s.Agents[0].Partitions[0].Lag, s.TimeLeftSeconds, s.StepsPerSecond = status.Starting, nil, nil, 3.44
			return s
		}()},
		{"idle", 80, false, func() status.Status {
			s := running(4*time.Hour, 12480, 0)
			s.State, s.Records.Waiting, s.Warnings = status.Idle, 2, []string{"one"}
			return s
		}()},
	} {
		synctest.Test(t, func(t *testing.T) {
			scr := &screen{width: c.width}
			show(t, progress.Options{Source: &scripted{now: c.s}, Out: scr, Mode: progress.Terminal, Width: scr.columns}, func(*progress.Display) {
				golden(t, "frame-"+c.name, scr.text())
				for _, line := range strings.Split(scr.text(), "\n") {
					if n := len([]rune(line)); n >= c.width {
						t.Errorf("%s: a line of %d columns on a terminal of %d: %q", c.name, n, c.width, line)
					}
				}
			})
			if scr.text() != "" || scr.hidden {
				t.Errorf("%s: left behind: %q, cursor hidden: %v", c.name, scr.text(), scr.hidden)
			}
		})
	}
}

func TestColoursOnlyWhereWanted(t *testing.T) {
	for _, color := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			out := new(buffer)
			show(t, progress.Options{Source: &scripted{now: running(0, 4000, 100)}, Out: out, Mode: progress.Terminal, Color: color}, func(*progress.Display) {})
			if has := regexp.MustCompile(`\x1b\[[0-9]+m`).MatchString(out.String()); has != color {
				t.Errorf("coloured: %v, want %v", has, color)
			}
			if color {
				golden(t, "frame-color", strings.ReplaceAll(out.String(), "\x1b", "ESC"))
			}
		})
	}
}

// Whatever is written above it and however the terminal is resized, the screen shows each written line once, the live
// status below them, nothing else, and a cursor.
func TestTheScreenHoldsWhatWasWrittenAndOneStatus(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		width := rapid.IntRange(8, 120).Draw(rt, "width")
		type act struct {
			what string
			n    int
		}
		acts := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) act {
			return act{rapid.SampledFrom([]string{"log", "step", "resize"}).Draw(rt, "what"), rapid.IntRange(8, 120).Draw(rt, "n")}
		}), 1, 25).Draw(rt, "acts")
		synctest.Test(t, func(t *testing.T) {
			scr := &screen{width: width}
			src := &scripted{now: running(0, 400, 100_000)}
			d := progress.New(progress.Options{Source: src, Out: scr, Mode: progress.Terminal, Width: scr.columns, Color: true})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- d.Run(ctx) }()
			synctest.Wait()
			var written []string
			for i, a := range acts {
				switch a.what {
				case "log":
					line := fmt.Sprintf("log %d %s", i, strings.Repeat("x", a.n))
					written = append(written, line)
					if _, err := d.Write([]byte(line + "\n")); err != nil {
						rt.Fatal(err)
					}
				case "resize":
					scr.resize(a.n)
				case "step":
					src.set(func(s *status.Status) { s.Records = ledger.Counters{Applied: int64(a.n) * 1000, Dead: int64(i)} })
					time.Sleep(600 * time.Millisecond)
				}
				synctest.Wait()
				above, _, found := strings.Cut(scr.text(), "papers")
				if want := strings.Join(append(written, ""), "\n"); !found || above != want || strings.Count(scr.text(), "papers") != 1 || scr.hidden {
					rt.Fatalf("after %d acts the screen is\n%s\nwant above the status\n%s", i+1, scr.text(), want)
				}
			}
			cancel()
			if err := <-ended; err != nil {
				rt.Fatal(err)
			}
			if got, want := scr.text(), strings.Join(append(written, ""), "\n"); got != want {
				rt.Fatalf("left behind:\n%s\nwant\n%s", got, want)
			}
		})
	})
}
