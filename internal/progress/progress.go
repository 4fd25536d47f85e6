// Package progress owns what a terminal shows of a run: a compact status that
// is redrawn in place, plain lines where there's no terminal, JSON lines for
// programs, and the summary at the end. It asks a status.Source and writes to
// one writer; it must not import what it shows. It keeps nothing.
//
// # JSON lines
//
// Each line but the last is a progress line, the last one the summary:
//
//	{"type":"progress","time":"2026-03-04T09:00:02Z","state":"running","documents":12,"pages":96,"steps_per_second":180.5,"time_left_seconds":31,"remaining":5600,"records":{…},"inference":{…}}
//	{"documents":12,"pages":96,"records":{…},"inference":{…},"warnings":["…"],"elapsed_seconds":4.2}
//
// time_left_seconds and remaining are null where nobody can know them. records
// and inference have the same members in both.
package progress

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

// Mode is how progress is shown.
type Mode int

const (
	Plain    Mode = iota // a line now and then, when something changed
	Terminal             // redrawn in place
	JSON                 // a JSON object a line
)

const (
	redraw     = 500 * time.Millisecond // on a terminal, while something runs
	lookIdle   = 2 * time.Second        // while nothing does
	lineFirst  = 2 * time.Second        // between two lines, at least
	lineGrowth = 1.5                    // longer runs say less
	lineLast   = 30 * time.Second
)

// Options say what is shown where. Source and Out are required.
type Options struct {
	Source status.Source
	Out    io.Writer
	Mode   Mode
	Color  bool       // colours; only on a terminal
	Width  func() int // columns of the terminal, asked at each redraw; nil: 80
}

// For chooses options for a file: JSON where asked for, redrawn on a terminal
// that can, plain lines elsewhere. NO_COLOR (no-color.org) and TERM=dumb are
// heeded.
func For(f *os.File, jsonLines bool, source status.Source, getenv func(string) string) Options {
	o := Options{Source: source, Out: f}
	fd := int(f.Fd())
	switch {
	case jsonLines:
		o.Mode = JSON
	case term.IsTerminal(fd) && getenv("TERM") != "dumb":
		o.Mode = Terminal
		o.Color = getenv("NO_COLOR") == ""
		o.Width = func() int {
			columns, _, err := term.GetSize(fd)
			if err != nil {
				return 0
			}
			return columns
		}
	}
	return o
}

// Display shows one run. Its methods are safe for concurrent use.
type Display struct {
	opts Options

	mu    sync.Mutex
	drawn []int // columns of the lines of the live status that stand on the terminal now
	live  []string
}

// New makes a display; Run shows the run.
func New(o Options) *Display {
	if o.Width == nil {
		o.Width = func() int { return 80 }
	}
	return &Display{opts: o}
}

// Run shows the run until ctx ends, and then leaves the terminal clean. Where
// the status can't be had it shows nothing new and asks again. It returns the
// error of writing.
func (d *Display) Run(ctx context.Context) error {
	defer d.wipe()
	t := &teller{display: d, pace: lineFirst}
	for {
		wait := redraw
		if s, err := d.opts.Source.Status(ctx); err == nil {
			s.Complete()
			quiet, err := t.tell(&s)
			if err != nil {
				return fmt.Errorf("show progress: %w", err)
			}
			if quiet {
				wait = lookIdle
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// teller decides what of the looks is shown.
type teller struct {
	display *Display
	pace    time.Duration // between two lines
	last    look          // what was shown
	at      time.Time     // when
	width   int           // of the terminal then
}

// tell shows a look where that's due. It is quiet when the run idles and nothing changed.
func (t *teller) tell(s *status.Status) (quiet bool, err error) {
	now := lookOf(s)
	changed := now != t.last
	idle := s.State == status.Idle
	if t.display.opts.Mode == Terminal {
		width := t.display.opts.Width()
		if changed || !idle || width != t.width {
			err = t.display.draw(s)
		}
		t.last, t.width = now, width
		return idle && !changed, err
	}
	entered := now.state != t.last.state
	if entered || changed && time.Since(t.at) >= t.pace {
		t.pace = min(time.Duration(float64(t.pace)*lineGrowth), lineLast)
		if entered {
			t.pace = lineFirst
		}
		t.last, t.at = now, time.Now()
		err = t.display.line(s)
	}
	return idle && !changed, err
}

// look is what makes a new line worth printing.
type look struct {
	state            status.State
	documents, pages int64
	records          ledger.Counters
	warnings         int
}

func lookOf(s *status.Status) look {
	return look{s.State, s.Documents, s.Pages, s.Records, len(s.Warnings)}
}

// progressLine is a line of JSON while the run goes on.
type progressLine struct {
	Type            string                 `json:"type"`
	Time            time.Time              `json:"time"`
	State           status.State           `json:"state"`
	Documents       int64                  `json:"documents"`
	Pages           int64                  `json:"pages"`
	StepsPerSecond  float64                `json:"steps_per_second"`
	TimeLeftSeconds *float64               `json:"time_left_seconds"`
	Remaining       *int64                 `json:"remaining"`
	Records         ledger.Counters        `json:"records"`
	Inference       ledger.InferenceTotals `json:"inference"`
}

func (d *Display) line(s *status.Status) error {
	if d.opts.Mode == JSON {
		return json.NewEncoder(d).Encode(progressLine{"progress", s.Time, s.State, s.Documents, s.Pages, s.StepsPerSecond,
			s.TimeLeftSeconds, s.Remaining, s.Records, s.Inference})
	}
	_, err := fmt.Fprintln(d, plainLine(s))
	return err
}

// Write prints whole lines above the live status, such as those of a log that
// shares the terminal.
func (d *Display) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.drawn) == 0 {
		return d.opts.Out.Write(p)
	}
	columns := d.columns()
	frame := append([]byte(hideCursor), erase(d.drawn, columns)...)
	frame = append(frame, p...)
	if len(p) > 0 && p[len(p)-1] != '\n' {
		frame = append(frame, '\n')
	}
	frame = append(append(frame, d.compose(columns)...), showCursor...)
	if _, err := d.opts.Out.Write(frame); err != nil {
		return 0, err
	}
	return len(p), nil
}
