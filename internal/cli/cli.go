// Package cli owns the command line: parsing, what is printed, exit codes. Each
// command is one file and one struct. It starts things through package app and
// must not import an implementation of broker or ledger.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/ledger"
)

// Exit codes; docs/cli.md describes them.
const (
	exitOK     = 0
	exitFailed = 1 // it was tried and failed, or a verdict isn't clean
	exitUsage  = 2 // the command line or a file given to it is wrong; nothing was done
	exitInUse  = 3 // another process has what this one needs
)

// command is the whole command line.
type command struct {
	Up      upCommand      `cmd:"" help:"Run a swarm with everything it needs in this one process, on a folder of data."`
	Search  searchCommand  `cmd:"" help:"Search the pages that a swarm has read."`
	Pages   pagesCommand   `cmd:"" help:"List the pages that a swarm has read, with what became of each."`
	Check   checkCommand   `cmd:"" help:"Check a swarm.yaml and name everything that is wrong with it."`
	Prove   proveCommand   `cmd:"" help:"Prove the delivery contract: run numbered events through a swarm whose process is killed, and account for every one."`
	Version versionCommand `cmd:"" help:"Print the version."`

	ProveNode proveNodeCommand `cmd:"" hidden:""`
}

// streams are what a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// coded is an error with an exit code of its own.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

// usage marks an error as one of the command line or of a file given to it.
func usage(err error) error { return coded{err, exitUsage} }

// Main parses, runs and returns the exit code.
func Main(args []string, in io.Reader, out, errOut io.Writer) int {
	var c command
	exited := -1
	parser, err := kong.New(&c, kong.Name("swarmlog"),
		kong.Description("Swarmlog runs swarms of agents on a log: nothing accepted is lost, nothing happens twice, order holds within each aggregate.\n\n"+
			"Start with: swarmlog up examples/papers"),
		kong.Writers(out, errOut), kong.Exit(func(code int) { exited = code }), kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, Summary: true, WrapUpperBound: 100}))
	if err != nil {
		fmt.Fprintf(errOut, "swarmlog: %v\n", err)
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
		fmt.Fprintf(errOut, "swarmlog: %v\nSee: swarmlog %s--help\n", err, known(args))
		return exitUsage
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	run.BindTo(ctx, (*context.Context)(nil))
	run.Bind(&streams{in, out, errOut})
	err = run.Run()
	if err != nil && !errors.Is(err, errSaid) {
		fmt.Fprintf(errOut, "swarmlog: %v\n", err)
	}
	return code(err)
}

// errNotClean is wrapped where a verdict isn't clean.
var errNotClean = errors.New("the verdict isn't clean")

// errSaid is returned where all that is to be said has been printed.
var errSaid = errors.New("said already")

func code(err error) int {
	var c coded
	var problems config.Problems
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &c):
		return c.code
	case errors.As(err, &problems):
		return exitUsage
	case errors.Is(err, ledger.ErrInUse):
		return exitInUse
	default:
		return exitFailed
	}
}

// known is the command that was meant, with a space, if it can be told.
func known(args []string) string {
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") && strings.Contains(" up search pages check prove version ", " "+args[0]+" ") {
		return args[0] + " "
	}
	return ""
}

type versionCommand struct{}

// Run prints the version.
func (versionCommand) Run(s *streams) error {
	_, err := fmt.Fprintln(s.out, "swarmlog", app.Version())
	return err
}
