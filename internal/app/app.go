// Package app wires: it's the one place that sees implementations, and makes a
// running swarm of a broker, a ledger, an engine and an HTTP face. It starts
// them in the order of the path of a record and stops them in the reverse one,
// within bounded time, also where starting fails halfway.
//
// Broker and ledger come in two kinds each, and all else is the same: embedded,
// in a data folder, or servers of one's own, which several processes share.
//
// What survives a crash is on those servers, or in the data folder: log/ (the
// broker's), ledger.db (the ledger's). The folder's lock and address file tell
// others that, and where, this process runs.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/salt"
	"github.com/swarmlog/swarmlog/internal/telemetry"
	"github.com/swarmlog/swarmlog/internal/telemetry/recent"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"

	"github.com/prometheus/client_golang/prometheus"
)

// Config says what to run. Name is required, and so is Data where the broker or the ledger is embedded, unless InMemory.
type Config struct {
	Name         string
	File         string // that it comes from, as commands name it; "": none
	Data         string // folder of what is embedded
	InMemory     bool
	Listen       string // HTTP address; "": none
	ListenPublic bool   // Listen may be an address that others reach: health and metrics alone are served there then
	BrokerListen string // of the embedded broker; "": a free port

	Kafka    *KafkaOptions    // a cluster of one's own; nil: the embedded broker
	Postgres *PostgresOptions // a ledger in PostgreSQL; nil: one in SQLite
	Pool     string           // of workers that this process belongs to; "": none
	// AcceptRisk names what would be refused at the start and is accepted, as swarmlog doctor names it.
	AcceptRisk []string
	// Worker is this process's id, unique among running ones. Default: "local" where the ledger is embedded, else made
	// of the host's name and drawn.
	Worker  string
	Topics  []broker.TopicSpec
	Agents  []engine.Agent
	Sources []engine.Source
	Logger  *slog.Logger

	// Examine refuses to start on servers that can lose what they acknowledge, but for what AcceptRisk names.
	Examine bool

	// Opened is called with the ledger before anything uses it; it returns what answers model calls, or nil. It may be nil.
	Opened func(ctx context.Context, l ledger.Ledger) (engine.Inferrer, error)
	// Closed is called at the end, once nothing runs any more. It may be nil.
	Closed func()
	// Index is what the swarm's own tables hold, for people; the zero value: nothing.
	Index Index
	// Kinds says what each agent is ("built-in reader"), ModelLine which model is used.
	Kinds     map[string]string
	ModelLine string
	// ShowsDead says that whoever starts the run shows its dead letters, so the log need not warn of them.
	ShowsDead bool

	Workers   int           // engines in this process; default 1
	LeaseTime time.Duration // default: the engine's
	Drain     time.Duration // default: the engine's
	// Membership is how workers come to their partitions; default: the engine's.
	Membership engine.Membership
	StuckAfter time.Duration // default: the engine's
	// Journal is a topic for events about workers, leases and steps; "": none. It's made where it doesn't exist. Where that
	// can't be, the start fails with JournalAsked, and otherwise goes on without a journal.
	Journal      string
	JournalAsked bool
	// Wrap puts something between a worker's engine and the ledger: faults, for proofs.
	Wrap func(worker string, l ledger.Ledger) ledger.Ledger
}

// ErrAgentFailed is wrapped by Stop's error where an agent stopped for good while the others went on.
var ErrAgentFailed = errors.New("an agent stopped for good")

// App is a running swarm.
type App struct {
	config  Config
	log     *slog.Logger
	started time.Time

	server  *embedded.Server // nil: the broker is elsewhere
	broker  *kafka.Broker
	ledger  ledger.Ledger
	salts   *salt.Topics // of those that are commutative
	reach   *reach       // nil: nothing is elsewhere
	answers engine.Inferrer
	engines []*engine.Engine
	ring    *recent.Ring
	letters *letterBook
	meters  *meters
	status  status.Source
	metrics *telemetry.Metrics
	reg     *prometheus.Registry

	httpAddr string
	state    atomic.Value // status.State
	closers  []closer     // in the order of starting
	drain    func()       // ends the engines; nil: there are none yet
	done     chan struct{}
	stopOnce sync.Once
	stopErr  error

	mu       sync.Mutex
	failures []error // of engines that ended by themselves
	taken    taken
}

type closer struct {
	name  string
	close func(context.Context) error
}

// Start starts everything and returns once the engines run.
func Start(ctx context.Context, c Config) (*App, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Workers <= 0 {
		c.Workers = 1
	}
	if c.Worker == "" && c.Postgres != nil {
		c.Worker = config.Worker{}.WorkerID(drawnEnd())
	}
	a := &App{config: c, log: c.Logger, started: time.Now(), ring: recent.New(512, time.Now), letters: newLetters(),
		meters: newMeters(), reg: prometheus.NewRegistry(), done: make(chan struct{})}
	a.metrics = telemetry.NewMetrics(a.reg)
	a.salts = a.commutative()
	a.state.Store(status.Starting)
	a.status = status.Cached(status.SourceFunc(a.look), time.Second, time.Now)
	for _, part := range []struct {
		name  string
		start func(context.Context) error
	}{
		{"data folder", a.openFolder},
		{"broker", a.startBroker},
		{"database", a.refuseDatabase},
		{"ledger", a.openLedger},
		{"topics", a.createTopics},
		{"journal", a.createJournal},
		{"risks", a.refuseRisks},
		{"dead letters", a.loadLetters},
		{"servers", a.watchServers},
		{"engines", a.makeEngines}, // before anybody can ask for the status, which reads them
		{"http", a.serve},
		{"engine", a.runEngines},
	} {
		if err := part.start(ctx); err != nil {
			return nil, errors.Join(err, a.closeAll(context.WithoutCancel(ctx)))
		}
	}
	a.state.Store(status.Running)
	return a, nil
}

func (a *App) onClose(name string, f func(context.Context) error) {
	a.closers = append(a.closers, closer{name, f})
}

// closeAll ends what was started, the last first, each with its share of time.
func (a *App) closeAll(ctx context.Context) error {
	var errs []error
	for i := len(a.closers) - 1; i >= 0; i-- {
		if err := a.closers[i].close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop %s: %w", a.closers[i].name, err))
		}
	}
	a.closers = nil
	return errors.Join(errs...)
}

func (a *App) makeEngines(context.Context) error {
	for n := range a.config.Workers {
		worker := a.workerID(n)
		l := a.ledger
		if a.config.Wrap != nil {
			l = a.config.Wrap(worker, l)
		}
		e, err := engine.New(a.engineOptions(worker, l), a.config.Agents, a.config.Sources)
		if err != nil {
			return err
		}
		a.engines = append(a.engines, e)
	}
	return nil
}

func (a *App) runEngines(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, e := range a.engines {
		running.Go(func() {
			if err := e.Run(work); err != nil {
				a.mu.Lock()
				a.failures = append(a.failures, err)
				a.mu.Unlock()
				stop()
			}
		})
	}
	watching := make(chan struct{})
	go func() { defer close(watching); telemetry.NewWatch(a.metrics, a.status, a.log).Run(work) }()
	go func() { running.Wait(); close(a.done) }()
	a.drain = func() { stop(); running.Wait(); <-watching }
	a.onClose("engine", func(context.Context) error { a.drain(); return nil })
	return nil
}

func (a *App) engineOptions(worker string, l ledger.Ledger) engine.Options {
	c := &a.config
	return engine.Options{Swarm: c.Name, Worker: worker, Pool: c.Pool, Membership: c.Membership, Ledger: l, Broker: a.broker,
		Inferrer: a.answers, Salts: a.salts, Logger: a.log.With("worker", worker), Meter: a.metrics, Notify: a.noticed,
		ShowsDead: c.ShowsDead, LeaseTime: c.LeaseTime, Drain: c.Drain, Journal: c.Journal, StuckAfter: c.StuckAfter}
}

func (a *App) serve(ctx context.Context) error {
	a.reg.MustRegister(telemetry.NewCollector(a.status, a.log))
	if a.config.Listen != "" {
		listen := httpapi.Listen
		if a.config.ListenPublic {
			listen = httpapi.ListenPublic
		}
		l, err := listen(ctx, a.config.Listen)
		if err != nil {
			return err
		}
		a.httpAddr = "http://" + l.Addr().String()
		serving, stop := context.WithCancel(context.WithoutCancel(ctx))
		done := make(chan error, 1)
		h := httpapi.New(a.httpOptions())
		go func() { done <- httpapi.Serve(serving, l, h, a.log) }()
		a.onClose("http", func(context.Context) error { stop(); return <-done })
	}
	if !a.hasFolder() {
		return nil
	}
	return a.writeAddress()
}

// Done is closed when the engines have ended, by Stop or since they can't go on.
func (a *App) Done() <-chan struct{} { return a.done }

// Drain lets running steps end and begins no others; what was done can be looked at until Stop.
func (a *App) Drain() {
	a.state.Store(status.Draining)
	if a.drain != nil {
		a.drain()
	}
}

// Stop drains and ends everything; later calls return what the first one did.
func (a *App) Stop(ctx context.Context) error {
	a.stopOnce.Do(func() {
		a.state.Store(status.Draining)
		err := a.closeAll(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.stopErr = errors.Join(append(a.failures, err, a.agentFailure())...)
	})
	return a.stopErr
}

// agentFailure tells which agents stopped for good, by name.
func (a *App) agentFailure() error {
	failed := a.Failed()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		errs = append(errs, fmt.Errorf("%w: %s: %w", ErrAgentFailed, name, failed[name]))
	}
	return errors.Join(errs...)
}

// Failed is why agents stopped for good, by agent.
func (a *App) Failed() map[string]error {
	all := map[string]error{}
	for _, e := range a.engines {
		for name, err := range e.Failed() {
			all[name] = err
		}
	}
	return all
}
