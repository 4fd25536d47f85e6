package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/control"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/letters"
	"github.com/swarmlog/swarmlog/ledger"
)

// Hands are what a person may do with the swarm: here, where the desk has its broker and ledger, else by way of the
// process that has them.
func (d *Desk) Hands() httpapi.Hands {
	if d.Running != "" {
		return newRemote(d.Running)
	}
	return newHands(d.Swarm, d.Broker, d.Ledger, nil)
}

// hands do things over a broker and a ledger of this process.
type hands struct {
	tray    letters.Tray
	console control.Console
	decided func() // so that workers of this process look at once; nil: there are none
}

func newHands(swarm string, b broker.Broker, l ledger.Ledger, decided func()) *hands {
	if decided == nil {
		decided = func() {}
	}
	return &hands{letters.Tray{Broker: b, Ledger: l}, control.Console{Swarm: swarm, Broker: b, Ledger: l}, decided}
}

// errNoBroker says that only a ledger is named.
var errNoBroker = errors.New("no broker is named: give --brokers, or --swarm FILE with the swarm's settings")

func (h *hands) log() error {
	if h.tray.Broker == nil {
		return errNoBroker
	}
	return nil
}

func (h *hands) Letters(ctx context.Context, f letters.Filter, o letters.Options, yield func(*letters.Letter) error) error {
	if err := h.log(); err != nil {
		return err
	}
	return h.tray.List(ctx, f, o, yield)
}

func (h *hands) Act(ctx context.Context, verb letters.Verb, f letters.Filter, dry bool, o letters.Options, visit func(*letters.Letter) error) (letters.Account, error) {
	if err := h.log(); err != nil {
		return letters.Account{}, err
	}
	defer h.decided()
	return h.tray.Act(ctx, verb, f, dry, o, visit)
}

func (h *hands) Agents(ctx context.Context) ([]control.AgentRow, error) { return h.console.Agents(ctx) }

func (h *hands) Pause(ctx context.Context, agent, reason string) error {
	defer h.decided()
	return h.console.Pause(ctx, agent, reason)
}

func (h *hands) Resume(ctx context.Context, agent string) error {
	defer h.decided()
	return h.console.Resume(ctx, agent)
}

func (h *hands) Rewind(ctx context.Context, r control.Rewinding, dry bool) (control.RewindReport, error) {
	if err := h.log(); err != nil {
		return control.RewindReport{}, err
	}
	if dry {
		return h.console.PlanRewind(ctx, r)
	}
	return h.console.Rewind(ctx, r)
}

func (h *hands) Shadow(ctx context.Context, agent, shadow string, examples int) (control.ShadowReport, error) {
	return h.console.Shadow(ctx, agent, shadow, examples)
}

func (h *hands) Recover(ctx context.Context, agents []string, reset bool) (control.Recovery, error) {
	if err := h.log(); err != nil {
		return control.Recovery{}, err
	}
	return h.console.Recover(ctx, agents, reset)
}

// hands are those of a running swarm, which knows its agents also where they haven't worked yet.
func (a *App) hands() httpapi.Hands {
	return newHands(a.config.Name, a.broker, a.ledger, func() {
		for _, e := range a.engines {
			e.Poke()
		}
	})
}

// nameFile holds the swarm's name in its data folder: groups in Kafka begin with it.
const nameFile = "swarm"

func writeName(folder, name string) error {
	path := filepath.Join(folder, nameFile)
	err := os.WriteFile(path+".new", []byte(name+"\n"), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("write the swarm's name into the data folder: %w", err)
	}
	return nil
}

// readName is the name of the swarm that ran on a data folder, or "".
func readName(folder string) (string, error) {
	b, err := os.ReadFile(filepath.Join(folder, nameFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the swarm's name from the data folder: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
