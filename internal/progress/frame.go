package progress

import (
	"fmt"
	"strings"

	"github.com/swarmlog/swarmlog/internal/telemetry/status"
)

// A frame goes out in one write: hide the cursor, go up over what was drawn, erase to the end of the screen, draw, show
// the cursor. So a process that is killed between two frames leaves a cursor that shows.
const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	eraseDown  = "\x1b[J"
	reset      = "\x1b[0m"
	bold       = "\x1b[1m"
	dim        = "\x1b[2m"
	red        = "\x1b[31m"
	yellow     = "\x1b[33m"
	green      = "\x1b[32m"
	cyan       = "\x1b[36m"
)

// part is a piece of a line and how it's coloured.
type part struct{ text, color string }

// columns is the width that may be used: the last column stays free, since terminals differ in what they do there.
func (d *Display) columns() int {
	if w := d.opts.Width(); w > 1 {
		return w - 1
	}
	return 79
}

// draw replaces the live status.
func (d *Display) draw(s *status.Status) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	columns := d.columns()
	old := d.drawn
	d.live = d.render(s, columns)
	frame := append([]byte(hideCursor), erase(old, columns)...)
	frame = append(frame, d.compose(columns)...)
	frame = append(frame, showCursor...)
	_, err := d.opts.Out.Write(frame)
	return err
}

// wipe takes the live status away.
func (d *Display) wipe() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.drawn) == 0 {
		return
	}
	// The terminal may be gone by now, and nobody is left to tell.
	_, _ = d.opts.Out.Write(append(erase(d.drawn, d.columns()), showCursor...))
	d.drawn, d.live = nil, nil
}

// erase goes to the first line of what was drawn and erases from there. A terminal that became narrower has wrapped
// the lines, so that they take more rows than before.
func erase(drawn []int, columns int) []byte {
	if len(drawn) == 0 {
		return nil
	}
	rows := 0
	for _, n := range drawn {
		rows += max(1, (n+columns)/(columns+1)) // columns+1 is the whole width
	}
	return fmt.Appendf(nil, "\x1b[%dA\r%s", rows, eraseDown)
}

// compose writes the live lines and remembers their widths. A terminal that became narrower since they were rendered
// shows them cut until the next frame.
func (d *Display) compose(columns int) []byte {
	var b []byte
	d.drawn = d.drawn[:0:0]
	for _, line := range d.live {
		n := cells(plain(line))
		if n > columns {
			line = fit(plain(line), columns)
			n = cells(line)
		}
		d.drawn = append(d.drawn, n)
		b = append(append(b, line...), '\n')
	}
	return b
}

// plain is a line without the colours that paint gave it.
func plain(s string) string {
	for _, code := range []string{reset, bold, dim, red, yellow, green, cyan} {
		s = strings.ReplaceAll(s, code, "")
	}
	return s
}

func (d *Display) paint(p part) string {
	if !d.opts.Color || p.color == "" || p.text == "" {
		return p.text
	}
	return p.color + p.text + reset
}

// render makes the lines of the live status: the head, the bar where how much is left is known, and the figures, over
// as many lines as they need.
func (d *Display) render(s *status.Status, columns int) []string {
	beside := span(s.Time.Sub(s.Started))
	if s.State == status.Idle {
		beside = "waiting for new files; Ctrl-C ends it"
	}
	lines := d.flow([]part{{Printable(s.Swarm), bold}, {string(s.State), stateColor(s.State)}, {beside, dim}}, columns, "  ")
	if bar := d.bar(s, columns); bar != "" && s.State != status.Idle {
		lines = append(lines, bar)
	}
	return append(lines, d.flow(figures(s), columns, "  ")...)
}

func stateColor(s status.State) string {
	switch s {
	case status.Running:
		return cyan
	case status.Idle:
		return green
	case status.Failed:
		return red
	}
	return yellow
}

// figures are what is told of a run, the most telling first.
func figures(s *status.Status) []part {
	all := []part{{counted(s.Documents, "document", "documents"), ""}, {counted(s.Pages, "page", "pages"), ""}}
	if s.State != status.Idle {
		all = append(all, part{perSecond(s.StepsPerSecond), ""})
		if s.TimeLeftSeconds != nil && *s.TimeLeftSeconds > 0 {
			all = append(all, part{roughly(*s.TimeLeftSeconds), ""})
		}
	}
	if n := s.Records.Dead; n > 0 {
		all = append(all, part{counted(n, "dead letter", "dead letters"), red})
	}
	if n := s.Records.Waiting; n > 0 {
		all = append(all, part{count(n) + " waiting", yellow})
	}
	if n := len(s.Warnings); n > 0 {
		all = append(all, part{counted(int64(n), "warning", "warnings"), yellow})
	}
	return all
}

// flow puts parts on lines, as many on each as fit.
func (d *Display) flow(parts []part, columns int, gap string) []string {
	var lines []string
	line, used := "", 0
	for _, p := range parts {
		p.text = fit(p.text, columns)
		n := cells(p.text)
		if used > 0 && used+len(gap)+n > columns {
			lines = append(lines, line)
			line, used = "", 0
		}
		if used > 0 {
			line, used = line+gap, used+len(gap)
		}
		line, used = line+d.paint(p), used+n
	}
	return append(lines, line)
}

const (
	barMost  = 40
	barLeast = 8
)

// bar shows how much of what is known has settled; "" where nobody knows or there's no room.
func (d *Display) bar(s *status.Status, columns int) string {
	if s.Remaining == nil {
		return ""
	}
	settled := s.Settled()
	known := settled + *s.Remaining
	if known == 0 {
		return ""
	}
	// Rounded down, so that 100 % means that nothing is left.
	text := fmt.Sprintf(" %3d %%  %s of %s records", settled*100/known, count(settled), count(known))
	size := min(barMost, columns-cells(text))
	if size < barLeast {
		text = fmt.Sprintf(" %3d %%", settled*100/known)
		size = min(barMost, columns-cells(text))
	}
	if size < barLeast {
		return ""
	}
	full := int(int64(size) * settled / known)
	return d.paint(part{strings.Repeat("█", full), cyan}) + d.paint(part{strings.Repeat("░", size-full), dim}) + text
}

// plainLine is a line for where there's no terminal.
func plainLine(s *status.Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", s.Time.Format("15:04:05"), Printable(s.Swarm), s.State)
	for i, f := range figures(s) {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString(", ")
		}
		b.WriteString(f.text)
	}
	return b.String()
}
