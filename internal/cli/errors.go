package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"

	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/doctor"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/prove"
	"github.com/swarmlog/swarmlog/ledger"
)

// Exit codes; docs/cli.md describes them.
const (
	exitOK     = 0
	exitFailed = 1 // it was tried and failed, or a verdict isn't clean
	exitUsage  = 2 // the command line or a file given to it is wrong; nothing was done
	exitInUse  = 3 // another process has what this one needs
	exitLoses  = 4 // doctor found what can lose data, or a start was refused for it
	exitWarns  = 5 // doctor found what is worth a warning, and nothing that loses data
)

// kind is what kind of error it is, for programs: its code, which is stable, and the exit code.
type kind struct {
	code string
	exit int
}

// All kinds; docs/cli.md describes them.
var (
	failed   = kind{"failed", exitFailed}
	notClean = kind{"not_clean", exitFailed}
	badUsage = kind{"usage", exitUsage}
	badSwarm = kind{"bad_swarm", exitUsage}
	noData   = kind{"no_data", exitUsage}
	inUse    = kind{"in_use", exitInUse}
	risk     = kind{"risk", exitLoses}
	warns    = kind{"warns", exitWarns}
)

// coded is an error whose kind is known where it's made.
type coded struct {
	error
	kind kind
}

func (c coded) Unwrap() error { return c.error }

// usage marks an error as one of the command line or of a file given to it.
func usage(err error) error { return coded{err, badUsage} }

// opened marks errors of opening a data folder: where nothing has run yet, and where it's no folder.
func opened(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return coded{err, noData}
	case errors.Is(err, syscall.ENOTDIR):
		return usage(fmt.Errorf("%w; give --data the folder that swarmlog up runs on", err))
	}
	return err
}

// errNotClean is wrapped where a verdict isn't clean.
var errNotClean = errors.New("the verdict isn't clean")

// errSaid is wrapped where all that is to be said has been printed.
var errSaid = errors.New("said already")

// kindOf is the one table from errors to kinds. The first that fits counts.
func kindOf(err error) kind {
	var problems config.Problems
	var c coded
	switch {
	case errors.As(err, &problems):
		return badSwarm
	case errors.As(err, &c):
		return c.kind
	case errors.Is(err, prove.ErrConfig):
		return badUsage
	case errors.Is(err, ledger.ErrInUse), errors.Is(err, httpapi.ErrPortTaken):
		return inUse
	case errors.Is(err, errNotClean):
		return notClean
	case errors.Is(err, doctor.ErrNoRisk):
		return badUsage
	case errors.Is(err, errLoses), errors.Is(err, doctor.ErrRisk):
		return risk
	case errors.Is(err, errWarns):
		return warns
	}
	return failed
}

// say prints an error for people, or for programs as {"error": {"code", "message", "problems"}}; problems are those of a
// swarm.yaml and left out where there are none.
func say(w io.Writer, asJSON bool, err error) {
	if errors.Is(err, errSaid) {
		return
	}
	var problems config.Problems
	errors.As(err, &problems)
	switch {
	case !asJSON && problems != nil: // each begins with its place, which editors and terminals can open
		fmt.Fprintln(w, problems)
		return
	case !asJSON:
		fmt.Fprintf(w, "swarmlog: %v\n", err)
		return
	}
	type content struct {
		Code     string         `json:"code"`
		Message  string         `json:"message"`
		Problems []checkProblem `json:"problems,omitempty"`
	}
	lines := json.NewEncoder(w)
	lines.SetEscapeHTML(false)
	_ = lines.Encode(struct { // that standard error is closed can't be told to anyone
		Error content `json:"error"`
	}{content{kindOf(err).code, err.Error(), asProblems(problems)}})
}
