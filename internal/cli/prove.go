package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/swarmlog/swarmlog/internal/prove"
)

type proveCommand struct {
	Events     int           `default:"20000" help:"Numbered events to publish."`
	Aggregates int           `default:"200" help:"Aggregates that they belong to."`
	Producers  int           `default:"4" help:"Producers that publish at the same time."`
	Workers    int           `help:"Workers, default 2, in the process that is killed; with two or more, their leases run out under them too."`
	Kills      int           `default:"5" help:"How often that process is killed (SIGKILL) and started again."`
	Duration   time.Duration `default:"0s" help:"Spread publishing over this time; 0: over the time that the kills take, so that each hits work."`
	Data       string        `help:"Folder for the proof's log and ledger, new or empty. Default: a temporary one, which is kept if the verdict isn't clean."`
	Seed       uint64        `help:"Seed of kills and failures. Default: drawn, and printed."`

	Brokers    []string      `help:"Prove on this Kafka or Redpanda cluster (host:port, …) and the PostgreSQL of --ledger, with each worker (default 4) a process of its own."`
	Ledger     string        `env:"SWARMLOG_LEDGER" help:"Connection string of that PostgreSQL; better given as SWARMLOG_LEDGER, since others can see a process's arguments."`
	Membership string        `default:"leases" enum:"leases,kafka" help:"With --brokers: how workers share partitions, leases or kafka."`
	LeaseTime  time.Duration `default:"5s" help:"With --brokers: how long a lease lasts without a heartbeat."`
	Every      time.Duration `default:"5s" help:"With --brokers: time between two faults."`
	Faults     []string      `default:"kill,pause,move" help:"With --brokers: what happens to workers, in turn: kill, pause, move."`
	JSON       bool          `name:"json" help:"Print the verdict as one JSON object."`
}

// Run proves and prints the verdict.
func (c *proveCommand) Run(ctx context.Context, s *streams) error {
	data, temporary := c.Data, c.Data == ""
	if temporary {
		var err error
		if data, err = os.MkdirTemp("", "swarmlog-prove-"); err != nil {
			return err
		}
	}
	config := prove.Config{Events: c.Events, Aggregates: c.Aggregates, Producers: c.Producers, Workers: c.Workers,
		Kills: c.Kills, Duration: c.Duration, Data: data, Seed: c.Seed, Progress: func(p prove.Progress) {
			fmt.Fprintf(s.err, "%s: %d of %d events accepted, %d faults\n", p.Phase, p.Accepted, p.Events, p.Kills)
		}}
	if len(c.Brokers) > 0 {
		config.Pair = c.pair()
	}
	v, err := prove.Run(ctx, config)
	interrupted := err != nil && ctx.Err() != nil
	if temporary && (interrupted || errors.Is(err, prove.ErrConfig) || err == nil && v.Clean()) {
		err = errors.Join(err, os.RemoveAll(data))
	}
	if interrupted {
		return errors.New("prove: interrupted before there was a verdict: run it again, with fewer --events or --kills if it takes too long")
	}
	if err != nil {
		return err
	}
	if c.JSON {
		if err := json.NewEncoder(s.out).Encode(v); err != nil {
			return err
		}
	} else {
		printVerdict(s, v)
	}
	if !v.Clean() {
		return fmt.Errorf("the contract did not hold; the log and the ledger of the proof are in %s: %w", data, errNotClean)
	}
	return nil
}

// pair is where to prove, if not here.
func (c *proveCommand) pair() *prove.Pair {
	faults := make([]prove.Fault, len(c.Faults))
	for i, f := range c.Faults {
		faults[i] = prove.Fault(f)
	}
	return &prove.Pair{Brokers: c.Brokers, Ledger: c.Ledger, Membership: c.Membership, LeaseTime: c.LeaseTime, Every: c.Every, Faults: faults}
}

func printVerdict(s *streams, v prove.Verdict) {
	fmt.Fprintf(s.out, "%d events over %d aggregates, %d effects, %d copies recognised, %.1f s, seed %d\n",
		v.Events, v.Aggregates, v.Effects, v.Duplicates, v.Elapsed, v.Seed)
	fmt.Fprintf(s.out, "killed %d times; leases let run out %d times, and %d steps refused for it\n", v.Kills, v.Frosts, v.Fenced)
	fmt.Fprintf(s.out, "lost %d, doubled %d, disordered %d, unaccounted %d\n", v.Lost, v.Doubled, v.Disordered, v.Unaccounted)
	if p := v.Pair; p != nil {
		fmt.Fprintf(s.out, "%d workers, membership %s: %d killed, %d paused, %d handed over\n", p.Workers, p.Membership, p.Kills, p.Pauses, p.Moves)
		if t := p.Timing; t.Kills > 0 {
			fmt.Fprintf(s.out, "over %d kills: takeover %.0f ms (at most %.0f), longest gap of others %.0f ms, and %.0f ms before the kills\n",
				t.Kills, t.Takeover, t.Longest, t.Untouched, t.Control)
		}
	}
	for _, e := range v.Examples {
		fmt.Fprintf(s.out, "  %s\n", e)
	}
}

// proveNodeCommand is the process that a proof kills; people have no use for it.
type proveNodeCommand struct {
	Data         string `required:""`
	BrokerListen string
	Workers      int `default:"2"`
	Seed         uint64
	Settle       bool

	Worker     string // one of several on Kafka and PostgreSQL
	ID         string `name:"id"`
	Membership string
	LeaseTime  time.Duration
}

// Run works until it's ended.
func (c *proveNodeCommand) Run(ctx context.Context, s *streams) error {
	log := slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelInfo}))
	if c.Worker != "" {
		return prove.Worker{Data: c.Data, Name: c.Worker, ID: c.ID, Membership: c.Membership, LeaseTime: c.LeaseTime, Seed: c.Seed,
			Out: s.out, Logger: log}.Run(ctx)
	}
	return prove.Node{Data: c.Data, BrokerListen: c.BrokerListen, Workers: c.Workers, Seed: c.Seed, Settle: c.Settle,
		Out: s.out, Logger: log}.Run(ctx)
}
