package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/control"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/progress"
)

type recoverCommand struct {
	location
	Yes  bool `help:"Go on from the ledger as it is: sets the groups' offsets in Kafka to the ledger's, so that workers start."`
	JSON bool `name:"json" help:"Print one JSON object: what was found, and whether offsets were set."`
}

// Run tells how far the ledger went back, and with --yes lets workers go on from there.
func (c *recoverCommand) Run(ctx context.Context, s *streams) error {
	var agents []string
	if c.Swarm != "" {
		swarm, err := config.Load(c.Swarm)
		if err != nil {
			return usage(err)
		}
		for _, a := range swarm.Agents {
			agents = append(agents, a.Name)
		}
	}
	return c.withHands(ctx, "recover", func(h httpapi.Hands) error {
		r, err := h.Recover(ctx, agents, c.Yes)
		if err != nil {
			return err
		}
		if c.JSON {
			err = json.NewEncoder(s.out).Encode(r)
		} else {
			printRecovery(s.out, r)
		}
		if err == nil && len(r.Partitions) > 0 && !r.Reset {
			err = fmt.Errorf("the ledger went back on %d partitions, and workers refuse them; go on from the ledger as it is with --yes: %w", len(r.Partitions), errNotClean)
		}
		return err
	})
}

func printRecovery(w io.Writer, r control.Recovery) {
	if len(r.Partitions) == 0 {
		fmt.Fprintf(w, "The ledger is as far as Kafka for %d agents: it didn't go back.\n", len(r.Agents))
		return
	}
	for _, p := range r.Partitions {
		ledger, since := "unknown to the ledger", ""
		if p.Ledger != nil {
			ledger = fmt.Sprintf("the ledger is at %d", *p.Ledger)
		}
		if p.Since != nil {
			since = ", appended since " + p.Since.Local().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s  %s/%d  committed %d, %s: %d records will be handled again%s\n", progress.Printable(p.Agent), p.Topic, p.Partition, p.Committed, ledger, p.Records, since)
		if p.Gone > 0 {
			fmt.Fprintf(w, "  %d of them are no longer in the log: what they did can't be had again\n", p.Gone)
		}
	}
	fmt.Fprintf(w, "In all at most %d records will be handled again. What they wrote to the ledger's database went back too, so nothing is doubled there; "+
		"events that they published are published again with the same ids, and dropped as duplicates by agents on this ledger.\n", r.Records)
	if r.Calls > 0 {
		fmt.Fprintf(w, "About %d calls to models will be made, and paid, again: their records went with the ledger.\n", r.Calls)
	}
	if r.Reset {
		fmt.Fprintln(w, "The groups' offsets in Kafka are set to the ledger's. Start the workers, or restart those that stopped.")
	}
}
