package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/letters"
	"github.com/swarmlog/swarmlog/internal/progress"
)

type dlqCommand struct {
	List    dlqListCommand    `cmd:"" help:"List dead letters, with what waits behind each."`
	Show    dlqShowCommand    `cmd:"" help:"Show one dead letter with its record."`
	Redrive dlqRedriveCommand `cmd:"" help:"Have dead records handled again, and what waits behind them after them, in order."`
	Skip    dlqSkipCommand    `cmd:"" help:"Pass over dead records for good; what waits behind them goes on."`
	Export  dlqExportCommand  `cmd:"" help:"Write dead letters with their records, bytes unchanged, as JSON lines or files."`
}

// letterChoice chooses dead letters.
type letterChoice struct {
	Agent         string `help:"Of this agent."`
	Topic         string `help:"Of records of this topic."`
	Aggregate     string `help:"Of this aggregate (an event's subject)."`
	Reason        string `help:"Whose reason holds this text."`
	ReasonMatches string `help:"Whose reason this regular expression (RE2) matches."`
	Since         string `help:"That failed last at this time or later: RFC 3339, a date, or how long ago (90m, 2d)."`
	Until         string `help:"That failed last before this time."`
}

func (c letterChoice) none() bool { return c == letterChoice{} }

func (c letterChoice) filter() (f letters.Filter, err error) {
	f = letters.Filter{Agent: c.Agent, Topic: c.Topic, Subject: c.Aggregate, Reason: c.Reason, ReasonMatches: c.ReasonMatches}
	if f.Since, err = momentOf("--since", c.Since, time.Now()); err != nil {
		return f, err
	}
	f.Until, err = momentOf("--until", c.Until, time.Now())
	return f, err
}

// momentOf reads a time; nil where none is given.
func momentOf(flag, s string, now time.Time) (*time.Time, error) {
	if s == "" {
		return nil, nil //nolint:nilnil // none given is no error
	}
	for _, layout := range []string{time.RFC3339Nano, time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if at, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return &at, nil
		}
	}
	ago, err := time.ParseDuration(s)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		var n int
		if n, err = strconv.Atoi(days); err == nil {
			ago = time.Duration(n) * 24 * time.Hour
		}
	}
	if err != nil || ago < 0 {
		return nil, usage(fmt.Errorf("%s %s: write a time like 2026-03-04T09:00:00Z, 2026-03-04 or \"2026-03-04 09:00\", or how long ago, like 90m or 2d", flag, s))
	}
	at := now.Add(-ago)
	return &at, nil
}

// withHands connects, does something and closes; what the filter or the name of something is at fault for is usage.
func (l location) withHands(ctx context.Context, doing string, f func(httpapi.Hands) error) (err error) {
	d, err := l.connect(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if err := f(d.Hands()); err != nil {
		return fmt.Errorf("%s: %w", doing, asked(err))
	}
	return nil
}

// told shows progress on standard error, where it's worth it: a line every few seconds.
func told(w io.Writer, what string) func(letters.Progress) {
	var last time.Time
	begun := time.Now()
	return func(p letters.Progress) {
		if time.Since(begun) < 2*time.Second || time.Since(last) < 2*time.Second {
			return
		}
		last = time.Now()
		if p.Of > 0 {
			fmt.Fprintf(w, "%s: %d of %d records of dead-letter topics read, %d letters chosen\n", what, p.Read, p.Of, p.Matched)
			return
		}
		fmt.Fprintf(w, "%s: %d letters\n", what, p.Matched)
	}
}

type dlqListCommand struct {
	location
	letterChoice
	Settled bool `help:"Also those about which nobody needs to act any more: handled since, skipped, or of a topic that is gone."`
	JSON    bool `name:"json" help:"Print one JSON object a letter."`
}

// Run prints letters as they come.
func (c *dlqListCommand) Run(ctx context.Context, s *streams) error {
	f, err := c.filter()
	if err != nil {
		return err
	}
	out := bufio.NewWriter(s.out)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	n := 0
	err = c.withHands(ctx, "dlq list", func(h httpapi.Hands) error {
		return h.Letters(ctx, f, letters.Options{Settled: c.Settled, Progress: told(s.err, "dlq list")}, func(l *letters.Letter) error {
			n++
			if c.JSON {
				return lines.Encode(l)
			}
			_, err := fmt.Fprintln(out, letterLine(l))
			return err
		})
	})
	if err == nil && n == 0 && !c.JSON {
		fmt.Fprintln(out, "No dead letter waits for anybody.")
	}
	return errors.Join(err, out.Flush())
}

// letterLine is a letter for people, in one line.
func letterLine(l *letters.Letter) string {
	at := ""
	if l.Last != nil {
		at = l.Last.Local().Format("2006-01-02 15:04:05") + "  "
	}
	state := string(l.State)
	if l.Behind > 0 {
		state += fmt.Sprintf(" (%d behind)", l.Behind)
	}
	subject := ""
	if l.Subject != "" {
		subject = "  " + progress.Printable(l.Subject)
	}
	return fmt.Sprintf("%s%s  %s/%d@%d  %s%s  %s", at, progress.Printable(l.Agent), l.Topic, l.Partition, l.Offset, state, subject,
		progress.Printable(shorten(engine.FirstLine(l.Reason), 160)))
}

func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

type dlqShowCommand struct {
	location
	Record string `arg:"" help:"The record, as dlq list names it: TOPIC/PARTITION@OFFSET."`
	Agent  string `help:"Of this agent, where several gave the record up."`
	JSON   bool   `name:"json" help:"Print one JSON object a letter, with its record in base64."`
}

// Run prints what is known of a record's letters.
func (c *dlqShowCommand) Run(ctx context.Context, s *streams) error {
	f, err := recordFilter(c.Record)
	if err != nil {
		return err
	}
	f.Agent = c.Agent
	lines := json.NewEncoder(s.out)
	lines.SetEscapeHTML(false)
	found := false
	err = c.withHands(ctx, "dlq show", func(h httpapi.Hands) error {
		return h.Letters(ctx, f, letters.Options{Settled: true, Content: true, Progress: told(s.err, "dlq show")}, func(l *letters.Letter) error {
			found = true
			if c.JSON {
				return lines.Encode(l)
			}
			return showLetter(s.out, l)
		})
	})
	if err == nil && !found {
		err = usage(fmt.Errorf("dlq show: nobody gave up %s; dlq list names what was given up", c.Record))
	}
	return err
}

// recordFilter reads TOPIC/PARTITION@OFFSET.
func recordFilter(s string) (letters.Filter, error) {
	topic, rest, ok := strings.Cut(s, "/")
	part, at, ok2 := strings.Cut(rest, "@")
	partition, err := strconv.ParseInt(part, 10, 32)
	offset, err2 := strconv.ParseInt(at, 10, 64)
	if !ok || !ok2 || err != nil || err2 != nil || topic == "" || partition < 0 || offset < 0 {
		return letters.Filter{}, usage(fmt.Errorf("%q names no record: write TOPIC/PARTITION@OFFSET, as dlq list does", s))
	}
	p := int32(partition)
	return letters.Filter{Topic: topic, Partition: &p, Offset: &offset}, nil
}

const shownBytes = 4 << 10

func showLetter(w io.Writer, l *letters.Letter) error {
	var b strings.Builder
	say := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%-14s %s\n", name, progress.Printable(value))
		}
	}
	moment := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		return t.Local().Format(time.RFC3339)
	}
	say("record", fmt.Sprintf("%s/%d@%d", l.Topic, l.Partition, l.Offset))
	say("agent", l.Agent)
	say("state", letterState(l))
	say("aggregate", l.Subject)
	say("first failure", moment(l.First))
	say("last failure", moment(l.Last))
	if l.Attempts > 0 {
		say("attempts", strconv.Itoa(l.Attempts))
	}
	say("class", l.Class)
	say("reason", l.Reason)
	if c := l.Content; c != nil {
		say("appended", moment(c.Time))
		say("key", shownText(c.Key))
		for _, h := range c.Headers {
			say("header", h.Key+": "+shownText(h.Value))
		}
		switch {
		case l.Omitted:
			say("value", fmt.Sprintf("%d bytes, too large for the letter, and no longer in its topic", l.SizeBytes-int64(len(c.Key))))
		case c.Value == nil:
			say("value", "none")
		default:
			say("value", fmt.Sprintf("%d bytes", len(c.Value)))
			fmt.Fprintln(&b, shownText(c.Value))
		}
	}
	_, err := fmt.Fprintln(w, b.String())
	return err
}

func letterState(l *letters.Letter) string {
	switch l.State {
	case letters.Parked:
		return fmt.Sprintf("parked: %d records of its aggregate wait behind it", l.Behind)
	case letters.Dead:
		return "dead: it waits for somebody to decide; nothing waits behind it"
	case letters.Redriving:
		return "redriving: it was let go on, and hasn't been handled yet"
	default:
		return "settled: nobody needs to act any more"
	}
}

// shownText is bytes for people: text where they're that, else in hex.
func shownText(b []byte) string {
	cut := b[:min(len(b), shownBytes)]
	for len(cut) > 0 && len(cut) < len(b) && !utf8.RuneStart(b[len(cut)]) {
		cut = cut[:len(cut)-1]
	}
	s := progress.Printable(string(cut))
	if !utf8.Valid(cut) {
		s = fmt.Sprintf("%x", cut)
	}
	if len(cut) < len(b) {
		s += fmt.Sprintf(" … (%d bytes more; dlq show --json or dlq export has all)", len(b)-len(cut))
	}
	return s
}

// deciding is what dlq redrive and dlq skip share.
type deciding struct {
	location
	letterChoice
	Record string `help:"This record alone: TOPIC/PARTITION@OFFSET."`
	All    bool   `help:"Every dead letter that waits; else at least one filter must be given."`
	DryRun bool   `help:"Print what would be done, and do nothing."`
	JSON   bool   `name:"json" help:"Print one JSON object: the account; with --dry-run, one object a letter before it."`
}

func (c *deciding) run(ctx context.Context, s *streams, verb letters.Verb) error {
	f, err := c.filter()
	if err != nil {
		return err
	}
	if c.Record != "" {
		one, err := recordFilter(c.Record)
		if err != nil {
			return err
		}
		f.Topic, f.Partition, f.Offset = one.Topic, one.Partition, one.Offset
	}
	if c.none() && c.Record == "" && !c.All {
		return usage(fmt.Errorf("dlq %s: choose dead letters by --agent, --aggregate, --reason or another filter, or say --all", verb))
	}
	out := bufio.NewWriter(s.out)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	var account letters.Account
	err = c.withHands(ctx, "dlq "+string(verb), func(h httpapi.Hands) (err error) {
		var visit func(*letters.Letter) error
		if c.DryRun {
			visit = func(l *letters.Letter) error {
				if c.JSON {
					return lines.Encode(l)
				}
				_, err := fmt.Fprintln(out, letterLine(l))
				return err
			}
		}
		account, err = h.Act(ctx, verb, f, c.DryRun, letters.Options{Progress: told(s.err, "dlq "+string(verb))}, visit)
		return err
	})
	switch {
	case c.JSON && (err == nil || account.Verb != ""):
		err = errors.Join(err, lines.Encode(account))
	case account.Verb != "":
		printAccount(out, account)
	}
	if err == nil && account.Refused > 0 {
		err = fmt.Errorf("dlq %s: %d letters were refused; the account says why", verb, account.Refused)
	}
	return errors.Join(err, out.Flush())
}

func printAccount(w io.Writer, a letters.Account) {
	done := map[letters.Verb]string{letters.Redrive: "redriven", letters.Skip: "skipped"}[a.Verb]
	if a.DryRun {
		done = "would be " + done
	}
	fmt.Fprintf(w, "%d dead letters waited, %d of them chosen: %d %s", a.Before, a.Matched, a.Done, done)
	if a.Behind > 0 {
		fmt.Fprintf(w, " with %d records behind them", a.Behind)
	}
	if a.Raced > 0 {
		fmt.Fprintf(w, ", %d decided by somebody else meanwhile", a.Raced)
	}
	if a.Refused > 0 {
		fmt.Fprintf(w, ", %d refused", a.Refused)
	}
	fmt.Fprintf(w, ". %d wait still", a.Left)
	if a.UnderWay > 0 {
		fmt.Fprintf(w, "; %d were redriven before and aren't handled yet", a.UnderWay)
	}
	fmt.Fprintln(w, ".")
	for _, r := range a.Refusals {
		fmt.Fprintf(w, "refused: %s  %s/%d@%d: %s\n", progress.Printable(r.Agent), r.Topic, r.Partition, r.Offset, progress.Printable(r.Why))
	}
}

type dlqRedriveCommand struct{ deciding }

// Run redrives.
func (c *dlqRedriveCommand) Run(ctx context.Context, s *streams) error {
	return c.run(ctx, s, letters.Redrive)
}

type dlqSkipCommand struct{ deciding }

// Run skips.
func (c *dlqSkipCommand) Run(ctx context.Context, s *streams) error {
	return c.run(ctx, s, letters.Skip)
}

type dlqExportCommand struct {
	location
	letterChoice
	Settled bool   `help:"Also those about which nobody needs to act any more."`
	Folder  string `help:"Write files into this folder instead of JSON lines to standard output."`
	JSON    bool   `name:"json" help:"With --folder: print one JSON object, {\"letters\", \"folder\"}. JSON lines are the default without it."`
}

// Run writes letters with their records.
func (c *dlqExportCommand) Run(ctx context.Context, s *streams) error {
	f, err := c.filter()
	if err != nil {
		return err
	}
	out := bufio.NewWriter(s.out)
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	var n int64
	err = c.withHands(ctx, "dlq export", func(h httpapi.Hands) error {
		return h.Letters(ctx, f, letters.Options{Settled: c.Settled, Content: true, Progress: told(s.err, "dlq export")}, func(l *letters.Letter) error {
			n++
			if c.Folder != "" {
				return letters.WriteFiles(c.Folder, l)
			}
			return lines.Encode(l)
		})
	})
	switch {
	case err != nil || c.Folder == "":
	case c.JSON:
		err = lines.Encode(struct {
			Letters int64  `json:"letters"`
			Folder  string `json:"folder"`
		}{n, c.Folder})
	default:
		fmt.Fprintf(out, "%d dead letters written to %s.\n", n, c.Folder)
	}
	return errors.Join(err, out.Flush())
}
