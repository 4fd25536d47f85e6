package prove

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/internal/engine"
)

// Worker is the child process of a proof on Kafka and PostgreSQL. Where those are it's told by its environment.
type Worker struct {
	Data       string
	Name       string
	ID         string // of the proof
	Membership string
	LeaseTime  time.Duration
	Seed       uint64
	Out        io.Writer
	Logger     *slog.Logger
}

// Run works until ctx ends.
func (w Worker) Run(ctx context.Context) (err error) {
	notes, err := newFrost(w.Seed, false, frostPath(w.Data))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, notes.close()) }()
	pair := &Pair{Brokers: strings.Split(os.Getenv(envBrokers), ","), Ledger: os.Getenv(envLedger), ID: w.ID, LeaseTime: w.LeaseTime}
	g, err := openPair(ctx, pair, "prove-"+w.ID+"-"+w.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	agents := &proofAgents{seed: w.Seed, names: namesOf(w.ID), read: g.ledger.Read}
	e, err := engine.New(engine.Options{Swarm: "proof-" + w.ID, Worker: w.Name, Ledger: notes.wrap(w.Name, g.ledger), Broker: g.broker,
		Logger: w.Logger, LeaseTime: w.LeaseTime, Membership: engine.Membership(w.Membership)}, agents.all(), nil)
	if err != nil {
		return err
	}
	fmt.Fprintln(w.Out, readyLine)
	return e.Run(ctx)
}
