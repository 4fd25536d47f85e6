package progress

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

// Summary is what a run did. Its JSON has exactly these members, in this order:
// documents, pages, records, inference, warnings, elapsed_seconds. Its warnings
// are Warnings and behind them each of Dead as "subject: reason", so neither
// needs to be in the other.
type Summary struct {
	Documents int64
	Pages     int64
	Records   ledger.Counters
	Inference ledger.InferenceTotals
	Warnings  []string
	Dead      []status.DeadLetter // every one that was not done, oldest first
	Elapsed   time.Duration
}

// MarshalJSON writes the stable shape.
func (s Summary) MarshalJSON() ([]byte, error) {
	warnings := append([]string{}, s.Warnings...)
	for _, d := range s.Dead {
		warnings = append(warnings, d.Subject+": "+d.Reason)
	}
	return json.Marshal(struct {
		Documents int64                  `json:"documents"`
		Pages     int64                  `json:"pages"`
		Records   ledger.Counters        `json:"records"`
		Inference ledger.InferenceTotals `json:"inference"`
		Warnings  []string               `json:"warnings"`
		Elapsed   float64                `json:"elapsed_seconds"`
	}{s.Documents, s.Pages, s.Records, s.Inference, warnings, s.Elapsed.Seconds()})
}

// Places are where to look next. What is empty isn't mentioned.
type Places struct {
	Search string // the command that searches, such as: swarmlog search "words"
	Page   string // address of the live page
	Broker string // address for Kafka clients
	Data   string // the data folder
	Cut    bool   // the run was stopped before all was done
	Left   int64  // records that are not settled since then; 0 where that isn't known
	Stays  bool   // the run goes on for new files
}

// shownDead bounds the dead letters that are named on a terminal; JSON holds all.
const shownDead = 50

// Summary prints what was done: one line of JSON in mode JSON, else for people.
// It may be called while Run shows the run.
func (d *Display) Summary(s Summary, p Places) error {
	var err error
	if d.opts.Mode == JSON {
		err = json.NewEncoder(d).Encode(s)
	} else {
		_, err = d.Write([]byte(d.summary(s, p)))
	}
	if err != nil {
		return fmt.Errorf("print the summary: %w", err)
	}
	return nil
}

func (d *Display) summary(s Summary, p Places) string {
	columns := 1 << 20 // without a terminal nothing is wrapped, so that what is searched for stands on one line
	if d.opts.Mode == Terminal {
		columns = min(d.columns(), 100)
	}
	var b strings.Builder
	word := "Done"
	if p.Cut || p.Left > 0 {
		word = "Stopped"
	}
	fmt.Fprintf(&b, "\n%s %s and %s in %s\n", d.paint(part{word + ":", bold}), counted(s.Documents, "document", "documents"),
		counted(s.Pages, "page", "pages"), span(s.Elapsed))
	switch {
	case p.Left > 0:
		fmt.Fprintf(&b, "%s left; start it again with the same data folder and it goes on there.\n", counted(p.Left, "record is", "records are"))
	case p.Cut:
		b.WriteString("Not all was done; start it again with the same data folder and it goes on there.\n")
	}
	b.WriteByte('\n')
	for _, row := range [][2]string{{"records", outcomes(s.Records)}, {"models", models(s.Inference)}} {
		field(&b, row[0], row[1], columns)
	}

	d.dead(&b, s, columns)
	if len(s.Warnings) > 0 {
		fmt.Fprintf(&b, "\n%s\n", d.paint(part{"Warnings:", bold + yellow}))
		for _, w := range s.Warnings {
			indented(&b, "  ", Printable(w), columns)
		}
	}

	b.WriteByte('\n')
	for _, row := range [][2]string{{"search", p.Search}, {"live page", p.Page}, {"Kafka", p.Broker}, {"data", p.Data}} {
		if row[1] != "" {
			fmt.Fprintf(&b, "  %-10s %s\n", row[0], Printable(row[1]))
		}
	}
	if p.Stays {
		b.WriteString("\nIt goes on and reads new files as they come. Ctrl-C ends it.\n")
	}
	return b.String()
}

// dead names what was not done, with the reasons.
func (d *Display) dead(b *strings.Builder, s Summary, columns int) {
	if len(s.Dead) == 0 {
		return
	}
	title := counted(int64(len(s.Dead)), "dead letter", "dead letters") + ", each with the reason:"
	fmt.Fprintf(b, "\n%s\n", d.paint(part{title, bold + red}))
	for i, l := range s.Dead {
		if i == shownDead {
			fmt.Fprintf(b, "  and %s more: the live page and --json name them\n", count(int64(len(s.Dead)-i)))
			break
		}
		fmt.Fprintf(b, "  %s\n", Printable(l.Subject))
		indented(b, "      ", Printable(l.Reason), columns)
	}
}

func indented(b *strings.Builder, indent, text string, columns int) {
	for _, line := range wrap(text, max(columns-len(indent), 20)) {
		fmt.Fprintf(b, "%s%s\n", indent, line)
	}
}

// field writes a name and a text beside it, wrapped.
func field(b *strings.Builder, name, text string, columns int) {
	const indent = 13
	for i, line := range wrap(text, max(columns-indent, 20)) {
		if i > 0 {
			name = ""
		}
		fmt.Fprintf(b, "  %-10s %s\n", name, line)
	}
}

// outcomes tells the outcomes that there are; applied always.
func outcomes(c ledger.Counters) string {
	all := []string{count(c.Applied) + " applied"}
	for o := ledger.Duplicate; o <= ledger.Waiting; o++ {
		if n := *c.Of(o); n > 0 {
			all = append(all, count(n)+" "+o.String())
		}
	}
	return strings.Join(all, ", ")
}

func models(t ledger.InferenceTotals) string {
	text := fmt.Sprintf("%s, %s reused", counted(t.Calls, "call", "calls"), count(t.Reused))
	if t.InDoubt > 0 {
		text += fmt.Sprintf(", %s in doubt (sent again since the first answer was never recorded)", count(t.InDoubt))
	}
	return text
}
