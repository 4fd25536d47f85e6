package cli

import (
	"context"
	"log/slog"
	"strings"

	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/config"
)

// location is where a swarm is, for commands that look at one or decide something about it. PostgreSQL is used where a
// swarm.yaml, the environment or --ledger names one, unless --data is given; else the data folder.
type location struct {
	Swarm   string   `help:"A swarm.yaml, or its folder, whose servers to use."`
	Data    string   `help:"Data folder of the swarm, running or not. Default: .swarmlog, where no PostgreSQL is named."`
	Brokers []string `help:"Addresses of Kafka brokers (host:port); also SWARMLOG_BROKERS."`
	Ledger  string   `help:"PostgreSQL's connection string; also SWARMLOG_LEDGER, which keeps a password out of the list of processes."`
}

const defaultData = ".swarmlog"

// where reads the settings; the error is one of usage.
func (l location) where(log *slog.Logger) (app.Where, error) {
	flags := []config.Flag{{Name: "brokers", Value: strings.Join(l.Brokers, ",")}, {Name: "ledger", Value: l.Ledger}}
	w := app.Where{Data: l.Data, Logger: log}
	if l.Swarm != "" {
		s, err := config.Load(l.Swarm, flags...)
		if err != nil {
			return w, usage(err)
		}
		w.Name, w.Settings = s.Name, s.Settings
	} else {
		s, err := config.LoadSettings(flags...)
		if err != nil {
			return w, usage(err)
		}
		w.Settings = s
	}
	switch {
	case w.Data != "":
		w.Settings.Postgres, w.Settings.Kafka = config.Postgres{}, config.Kafka{}
	default:
		w.Data = defaultData
	}
	return w, nil
}

// connect opens what the command needs.
func (l location) connect(ctx context.Context, log *slog.Logger) (*app.Desk, error) {
	w, err := l.where(log)
	if err != nil {
		return nil, err
	}
	d, err := app.Connect(ctx, w)
	if err != nil {
		return nil, opened(err)
	}
	return d, nil
}

// index opens what the swarm has read.
func (l location) index(ctx context.Context) (*app.Data, error) {
	w, err := l.where(nil)
	if err != nil {
		return nil, err
	}
	d, err := app.OpenWhere(ctx, w)
	if err != nil {
		return nil, opened(err)
	}
	return d, nil
}
