// Package cli owns the command line: parsing, what is printed, exit codes. Each
// command is one file and one struct. It starts things through package app and
// must not import an implementation of broker or ledger.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/swarmlog/swarmlog/internal/app"
)

// command is the whole command line.
type command struct {
	Up      upCommand      `cmd:"" help:"Run a swarm with everything it needs in this one process, on a folder of data."`
	Run     runCommand     `cmd:"" help:"Run one worker of a swarm on your own Kafka brokers and PostgreSQL; several share the work."`
	Search  searchCommand  `cmd:"" help:"Search the pages that a swarm has read."`
	Pages   pagesCommand   `cmd:"" help:"List the pages that a swarm has read, with what became of each."`
	Check   checkCommand   `cmd:"" help:"Check a swarm.yaml and name everything that is wrong with it."`
	Dlq     dlqCommand     `cmd:"" help:"Dead letters: list, show, redrive, skip or export what agents gave up."`
	Agent   agentCommand   `cmd:"" help:"Agents: list, pause, resume or rewind them."`
	Recover recoverCommand `cmd:"" help:"After a fail-over or a restored backup: tell how far the ledger went back, and go on from there."`
	Prove   proveCommand   `cmd:"" help:"Prove the delivery contract: run numbered events through a swarm whose process is killed, and account for every one."`
	Doctor  doctorCommand  `cmd:"" help:"Check what the cluster and the database of a swarm can break of the promises, and say how to mend it."`
	Version versionCommand `cmd:"" help:"Print the version."`

	ProveNode proveNodeCommand `cmd:"" hidden:""`
}

// streams are what a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// Main parses, runs and returns the exit code.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	var c command
	exited := -1
	parser, err := kong.New(&c, kong.Name("swarmlog"),
		kong.Description("Swarmlog runs swarms of agents on a log: nothing accepted is lost, nothing happens twice, order holds within each aggregate.\n\n"+
			"Start with: swarmlog up examples/papers"),
		kong.Writers(out, errOut), kong.Exit(func(code int) { exited = code }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, Summary: true, WrapUpperBound: 100}))
	if err != nil {
		say(errOut, false, err)
		return exitFailed
	}
	if len(args) == 0 {
		args = []string{"--help"}
	}
	run, err := parser.Parse(args)
	if exited >= 0 { // --help
		return exited
	}
	if err != nil {
		say(errOut, slices.Contains(args, "--json"), misused(args, err))
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run.BindTo(ctx, (*context.Context)(nil))
	run.Bind(&streams{in, out, errOut})
	if err := run.Run(); err != nil {
		say(errOut, wantsJSON(run), err)
		return kindOf(err).exit
	}
	return exitOK
}

// wantsJSON tells whether the command that runs was given --json.
func wantsJSON(run *kong.Context) bool {
	for _, flag := range run.Flags() {
		if on, ok := run.FlagValue(flag).(bool); ok && flag.Name == "json" {
			return on
		}
	}
	return false
}

// misused says what is wrong with a command line, in our words where the parser's are terse, and where help is.
func misused(args []string, err error) error {
	meant := ""
	var parse *kong.ParseError
	if errors.As(err, &parse) && parse.Context.Selected() != nil {
		meant = parse.Context.Selected().Name + " "
	}
	text := err.Error()
	if missing, ok := strings.CutPrefix(text, "expected "); ok && meant != "" {
		text = "argument missing: " + strings.Trim(missing, `"`)
	} else if meant == "" && !strings.HasPrefix(args[0], "-") {
		text = strings.Replace(text, "unexpected argument", "unknown command", 1)
	}
	return usage(fmt.Errorf("%s\nSee: swarmlog %s--help", text, meant))
}

type versionCommand struct {
	JSON bool `name:"json" help:"Print one JSON object: {\"version\"}."`
}

// Run prints the version.
func (c *versionCommand) Run(s *streams) error {
	if c.JSON {
		return json.NewEncoder(s.out).Encode(struct {
			Version string `json:"version"`
		}{app.Version()})
	}
	_, err := fmt.Fprintln(s.out, "swarmlog", app.Version())
	return err
}
