package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/swarmlog/swarmlog/internal/control"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/progress"
)

type agentShadowCommand struct {
	location
	Name     string `arg:"" help:"The agent."`
	Shadow   string `arg:"" help:"The shadow that runs beside it."`
	Examples int    `default:"5" help:"Examples of each kind of difference, from 0 to 100."`
	JSON     bool   `name:"json" help:"Print one JSON object: {\"primary\", \"shadow\", \"counts\", \"examples\"}."`
}

// Run compares.
func (c *agentShadowCommand) Run(ctx context.Context, s *streams) error {
	if c.Examples < 0 || c.Examples > 100 {
		return usage(fmt.Errorf("--examples %d: give a number from 0 to 100", c.Examples))
	}
	return c.withHands(ctx, "agent shadow "+c.Name, func(h httpapi.Hands) error {
		r, err := h.Shadow(ctx, c.Name, c.Shadow, c.Examples)
		if err != nil {
			return err
		}
		if c.JSON {
			return json.NewEncoder(s.out).Encode(r)
		}
		printShadow(s.out, r)
		return nil
	})
}

func printShadow(w io.Writer, r control.ShadowReport) {
	fmt.Fprintf(w, "%s beside %s, by what it would have emitted:\n", progress.Printable(r.Shadow), progress.Printable(r.Primary))
	for _, verdict := range slices.Sorted(maps.Keys(r.Counts)) {
		fmt.Fprintf(w, "  %-14s %d\n", verdict, r.Counts[verdict])
	}
	if len(r.Counts) == 0 {
		fmt.Fprintln(w, "  nothing has been compared yet")
	}
	for _, e := range r.Examples {
		fmt.Fprintf(w, "%s: %s %s of %s", e.Verdict, progress.Printable(e.Type), progress.Printable(e.ID), progress.Printable(e.Subject))
		if e.Reason != "" {
			fmt.Fprintf(w, ": %s", progress.Printable(e.Reason))
		}
		fmt.Fprintln(w)
	}
}
