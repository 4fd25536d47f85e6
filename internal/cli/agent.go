package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/internal/control"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/letters"
	"github.com/swarmlog/swarmlog/internal/progress"
)

type agentCommand struct {
	List   agentListCommand   `cmd:"" help:"List agents: what they read, who works on them, and whether they're paused."`
	Pause  agentPauseCommand  `cmd:"" help:"Pause an agent on every worker: running steps end, nothing new begins."`
	Resume agentResumeCommand `cmd:"" help:"Let a paused agent go on."`
	Shadow agentShadowCommand `cmd:"" help:"Compare a shadow, a new version that runs beside an agent without effects, with that agent."`
	Rewind agentRewindCommand `cmd:"" help:"Rewind a paused agent to a time."`
}

// asked marks errors that the asker can correct.
func asked(err error) error {
	for _, e := range []error{letters.ErrFilter, control.ErrNoAgent, control.ErrNoSwarm, control.ErrNothing, control.ErrInFuture} {
		if errors.Is(err, e) {
			return usage(err)
		}
	}
	if errors.Is(err, control.ErrAtWork) {
		return coded{err, inUse}
	}
	return err
}

type agentListCommand struct {
	location
	JSON bool `name:"json" help:"Print one JSON object an agent."`
}

// Run lists agents.
func (c *agentListCommand) Run(ctx context.Context, s *streams) error {
	return c.withHands(ctx, "agent list", func(h httpapi.Hands) error {
		all, err := h.Agents(ctx)
		if err != nil {
			return err
		}
		lines := json.NewEncoder(s.out)
		lines.SetEscapeHTML(false)
		for _, a := range all {
			if c.JSON {
				err = lines.Encode(a)
			} else {
				_, err = fmt.Fprintln(s.out, agentLine(a))
			}
			if err != nil {
				return err
			}
		}
		if len(all) == 0 && !c.JSON {
			_, err = fmt.Fprintln(s.out, "No agent has worked on this ledger yet.")
		}
		return err
	})
}

func agentLine(a control.AgentRow) string {
	state := "free"
	switch {
	case a.Paused:
		state = "paused"
		if a.Since != nil {
			state += " since " + a.Since.Local().Format("2006-01-02 15:04:05")
		}
		if a.Reason != "" {
			state += " (" + progress.Printable(a.Reason) + ")"
		}
		if a.Held > 0 {
			state += fmt.Sprintf(", %d of %d partitions still held", a.Held, a.Partitions)
		}
	case a.Held > 0:
		state = fmt.Sprintf("%d of %d partitions on %s", a.Held, a.Partitions, strings.Join(a.Workers, ", "))
	}
	lag := "unknown"
	if a.Lag != nil {
		lag = fmt.Sprint(*a.Lag)
	}
	line := fmt.Sprintf("%s  %s", progress.Printable(a.Agent), state)
	if len(a.Topics) > 0 {
		line += fmt.Sprintf("  reads %s  lag %s", strings.Join(a.Topics, ", "), lag)
	}
	return line + fmt.Sprintf("  applied %d  dead %d  waiting %d", a.Outcomes.Applied, a.Outcomes.Dead, a.Outcomes.Waiting)
}

type agentPauseCommand struct {
	location
	Name   string        `arg:"" help:"The agent."`
	Reason string        `help:"Why, for people."`
	Wait   time.Duration `default:"0s" help:"Wait so long until its workers have given its partitions back."`
	JSON   bool          `name:"json" help:"Print one JSON object: the agent, as agent list does."`
}

// Run pauses an agent.
func (c *agentPauseCommand) Run(ctx context.Context, s *streams) error {
	return c.withHands(ctx, "agent pause "+c.Name, func(h httpapi.Hands) error {
		before, err := find(ctx, h, c.Name)
		if err != nil {
			return err
		}
		if before == nil {
			fmt.Fprintf(s.err, "swarmlog: agent %s has never worked on this ledger; it is paused for when it begins\n", c.Name)
		}
		if err := h.Pause(ctx, c.Name, c.Reason); err != nil {
			return err
		}
		a, err := awaitFree(ctx, h, c.Name, c.Wait)
		if err != nil {
			return err
		}
		return said(s, c.JSON, a)
	})
}

// find is an agent, or nil where the ledger has never seen it.
func find(ctx context.Context, h httpapi.Hands, name string) (*control.AgentRow, error) {
	all, err := h.Agents(ctx)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Agent == name {
			return &all[i], nil
		}
	}
	return nil, nil //nolint:nilnil // that there's none is no error
}

// awaitFree waits until nobody works on an agent, for a bounded time.
func awaitFree(ctx context.Context, h httpapi.Hands, name string, limit time.Duration) (*control.AgentRow, error) {
	deadline := time.Now().Add(limit)
	for {
		a, err := find(ctx, h, name)
		if err != nil || a == nil || a.Held == 0 || limit == 0 {
			return a, err
		}
		if time.Now().After(deadline) {
			return a, fmt.Errorf("%w by %s: running steps may take longer, so wait longer (--wait)", control.ErrAtWork, strings.Join(a.Workers, ", "))
		}
		select {
		case <-ctx.Done():
			return a, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func said(s *streams, asJSON bool, a *control.AgentRow) error {
	if a == nil {
		return nil
	}
	if asJSON {
		lines := json.NewEncoder(s.out)
		lines.SetEscapeHTML(false)
		return lines.Encode(a)
	}
	_, err := fmt.Fprintln(s.out, agentLine(*a))
	return err
}

type agentResumeCommand struct {
	location
	Name string `arg:"" help:"The agent."`
	JSON bool   `name:"json" help:"Print one JSON object: the agent, as agent list does."`
}

// Run lets an agent go on.
func (c *agentResumeCommand) Run(ctx context.Context, s *streams) error {
	return c.withHands(ctx, "agent resume "+c.Name, func(h httpapi.Hands) error {
		a, err := find(ctx, h, c.Name)
		if err != nil {
			return err
		}
		if a == nil {
			return fmt.Errorf("%w: %s; agent list names those that there are", control.ErrNoAgent, c.Name)
		}
		if err := h.Resume(ctx, c.Name); err != nil {
			return err
		}
		if a, err = find(ctx, h, c.Name); err != nil {
			return err
		}
		return said(s, c.JSON, a)
	})
}

type agentRewindCommand struct {
	location
	Name          string        `arg:"" help:"The agent; pause it first."`
	To            string        `required:"" help:"The first record of each partition that was appended at this time or later is the next one: RFC 3339, a date, or how long ago (90m, 2d)."`
	Topic         []string      `help:"Of what it reads, only this topic; may be given several times."`
	RepeatEffects bool          `help:"Forget what was applied since then, so that effects are repeated. By default what was applied is a duplicate, and only what wasn't is handled."`
	Wait          time.Duration `default:"1m" help:"Wait so long until its workers have given its partitions back."`
	DryRun        bool          `help:"Print what would be done, and do nothing."`
	Yes           bool          `help:"Don't ask."`
	JSON          bool          `name:"json" help:"Print one JSON object: what was done; needs --yes or --dry-run."`
}

// Run rewinds an agent, once the asker has seen what that does.
func (c *agentRewindCommand) Run(ctx context.Context, s *streams) error {
	to, err := momentOf("--to", c.To, time.Now())
	if err != nil {
		return err
	}
	if c.JSON && !c.Yes && !c.DryRun {
		return usage(errors.New("agent rewind: with --json nobody can be asked: give --yes or --dry-run"))
	}
	r := control.Rewinding{Agent: c.Name, To: *to, Topics: c.Topic, Repeat: c.RepeatEffects}
	return c.withHands(ctx, "agent rewind "+c.Name, func(h httpapi.Hands) error {
		plan, err := h.Rewind(ctx, r, true)
		if err != nil {
			return err
		}
		if !c.JSON {
			printRewind(s.out, plan)
		}
		if c.DryRun {
			return c.print(s, plan)
		}
		a, err := find(ctx, h, c.Name)
		switch {
		case err != nil:
			return err
		case a == nil || !a.Paused:
			return fmt.Errorf("%w: pause it first with swarmlog agent pause %s", control.ErrRunning, c.Name)
		}
		if !c.Yes && !confirmed(s, "Rewind it?") {
			return usage(errors.New("not confirmed; nothing was done (give --yes where nobody can answer)"))
		}
		waiting, cancel := context.WithTimeout(ctx, c.Wait)
		defer cancel()
		done, err := h.Rewind(waiting, r, false)
		if err != nil {
			return err
		}
		if !c.JSON {
			fmt.Fprintf(s.out, "Rewound; %d applied events were forgotten. Let it go on: swarmlog agent resume %s\n", done.Forgotten, c.Name)
		}
		return c.print(s, done)
	})
}

func (c *agentRewindCommand) print(s *streams, r control.RewindReport) error {
	if !c.JSON {
		return nil
	}
	return json.NewEncoder(s.out).Encode(r)
}

func printRewind(w io.Writer, r control.RewindReport) {
	fmt.Fprintf(w, "Agent %s to %s:\n", progress.Printable(r.Agent), r.To.Local().Format(time.RFC3339))
	for _, m := range r.Moves {
		fmt.Fprintf(w, "  %s/%d  from %d to %d\n", m.Topic, m.Partition, m.From, m.To)
	}
	fmt.Fprintf(w, "At most %d records will be delivered again", r.Back)
	if r.Repeat {
		fmt.Fprint(w, ", and effects of those that were applied WILL BE REPEATED")
	} else {
		fmt.Fprint(w, "; those that were applied are dropped as duplicates")
	}
	fmt.Fprintln(w, ".")
	if r.Forward > 0 {
		fmt.Fprintf(w, "At most %d records are PASSED OVER, and never handled.\n", r.Forward)
	}
}

// confirmed asks; only yes is yes.
func confirmed(s *streams, question string) bool {
	fmt.Fprint(s.err, question+" Type yes: ")
	answer, err := bufio.NewReader(s.in).ReadString('\n')
	return (err == nil || errors.Is(err, io.EOF)) && strings.TrimSpace(strings.ToLower(answer)) == "yes"
}
