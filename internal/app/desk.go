package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/ledger/postgres"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/ledger"
)

// Where says where a swarm's log and ledger are: on the servers that its settings name, where they name PostgreSQL, or
// in a data folder.
type Where struct {
	Name     string // of the swarm; "": swarmlog. It names the client to the brokers.
	Settings config.Settings
	Data     string // folder of what is embedded
	Logger   *slog.Logger
}

// Desk is a swarm's broker and ledger in the hands of a command: no agent works on it here.
//
// A data folder belongs to one process at a time. While one runs a swarm on it, Broker and Ledger are nil, and what a
// command wants is asked of that process, at Running.
type Desk struct {
	Broker  broker.Broker // nil also where the settings name PostgreSQL and no broker
	Ledger  ledger.Ledger
	Swarm   string // its name; "": nobody said it
	Running string // URL of the process that has the data folder; "": none has, or nothing is embedded

	parts []closer
}

// ErrNoAddress says that a process has the data folder and serves no HTTP.
var ErrNoAddress = errors.New("the process that runs on the folder serves no HTTP: stop it first, or run it with --listen")

// Connect opens what a command needs. Where nothing has run yet, in a data folder or a database, it's an error that wraps
// fs.ErrNotExist.
func Connect(ctx context.Context, w Where) (*Desk, error) {
	if w.Logger == nil {
		w.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Desk{Swarm: w.Name}
	open := d.openFolder
	if !w.Settings.Postgres.DSN.IsZero() {
		open = d.openServers
	}
	if err := open(ctx, w); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close ends what Connect began, the last first.
func (d *Desk) Close() error {
	var errs []error
	for i := len(d.parts) - 1; i >= 0; i-- {
		if err := d.parts[i].close(context.Background()); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", d.parts[i].name, err))
		}
	}
	d.parts = nil
	return errors.Join(errs...)
}

func (d *Desk) onClose(name string, f func() error) {
	d.parts = append(d.parts, closer{name, func(context.Context) error { return f() }})
}

func (d *Desk) openServers(ctx context.Context, w Where) error {
	o, err := postgresOptions(w.Settings.Postgres)
	if err != nil {
		return err
	}
	o.Logger, o.LeaseTime, o.Existing = w.Logger, w.Settings.Worker.LeaseTime, true
	db, err := postgres.Open(ctx, *o)
	if err != nil {
		return err
	}
	d.Ledger = db
	d.onClose("ledger", db.Close)
	if len(w.Settings.Kafka.Brokers) == 0 {
		return nil
	}
	k, err := kafkaOptions(w.Settings.Kafka)
	if err != nil {
		return err
	}
	return d.openBroker(ctx, w, *k)
}

func (d *Desk) openBroker(ctx context.Context, w Where, o KafkaOptions) error {
	if o.ClientID == "" {
		o.ClientID = "swarmlog-" + cmp.Or(w.Name, "command")
	}
	o.Logger = w.Logger
	opening, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	b, err := kafka.Open(opening, o)
	if err != nil {
		return err
	}
	d.Broker = b
	d.onClose("broker's client", func() error { b.Close(); return nil })
	return nil
}

func (d *Desk) openFolder(ctx context.Context, w Where) error {
	running, err := Running(w.Data)
	if err != nil {
		return err
	}
	if running {
		return d.findRunning(w.Data)
	}
	path := filepath.Join(w.Data, LedgerFile)
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("open data folder %s: %w: nothing has run in this folder yet; start it with swarmlog up, or name your servers (--brokers, --ledger)",
			w.Data, err)
	}
	f, err := lockFolder(ctx, w.Data)
	if err != nil {
		return err
	}
	d.onClose("data folder", f.unlock)
	if d.Swarm == "" {
		if d.Swarm, err = readName(w.Data); err != nil {
			return err
		}
	}
	server, err := embedded.Start(ctx, embedded.Options{Dir: filepath.Join(w.Data, "log"), Logger: w.Logger})
	if err != nil {
		return err
	}
	d.onClose("broker", server.Close)
	db, err := sqlite.Open(ctx, path, sqlite.Options{Logger: w.Logger})
	if err != nil {
		return err
	}
	d.Ledger = db
	d.onClose("ledger", db.Close)
	return d.openBroker(ctx, w, toEmbedded(server))
}

func (d *Desk) findRunning(data string) error {
	a, err := ReadAddress(data)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && a.HTTP == "":
		return fmt.Errorf("data folder %s: %w: %w", data, ledger.ErrInUse, ErrNoAddress)
	case err != nil:
		return err
	}
	d.Running = a.HTTP
	return nil
}
