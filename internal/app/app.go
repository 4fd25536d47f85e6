// Package app wires: it's the one place that sees implementations, and makes a
// running swarm of an embedded broker, a ledger, an engine and an HTTP face. It
// starts them in the order of the path of a record and stops them in the
// reverse one, within bounded time, also where starting fails halfway.
//
// What survives a crash is in the data folder: log/ (the broker's), ledger.db
// (the ledger's). The lock and the address file tell others that, and where,
// this process runs.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/internal/telemetry"
	"github.com/swarmlog/swarmlog/internal/telemetry/recent"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"

	"github.com/prometheus/client_golang/prometheus"
)

// Config says what to run. Name and Data are required, Data unless InMemory.
type Config struct {
	Name         string
	Data         string // folder
	InMemory     bool
	Listen       string // HTTP address; "": none
	BrokerListen string // "": a free port
	Topics       []broker.TopicSpec
	Agents       []engine.Agent
	Sources      []engine.Source
	Logger       *slog.Logger

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
	// Wrap puts something between a worker's engine and the ledger: faults, for proofs.
	Wrap func(worker string, l ledger.Ledger) ledger.Ledger
}

const defaultPartitions = 8

// ErrAgentFailed is wrapped by Stop's error where an agent stopped for good while the others went on.
var ErrAgentFailed = errors.New("an agent stopped for good")

// App is a running swarm.
type App struct {
	config  Config
	log     *slog.Logger
	started time.Time

	server  *embedded.Server
	broker  *kafka.Broker
	ledger  *sqlite.DB
	answers engine.Inferrer
	engines []*engine.Engine
	ring    *recent.Ring
	letters *letters
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
	a := &App{config: c, log: c.Logger, started: time.Now(), ring: recent.New(512, time.Now), letters: newLetters(),
		meters: newMeters(), reg: prometheus.NewRegistry(), done: make(chan struct{})}
	a.metrics = telemetry.NewMetrics(a.reg)
	a.state.Store(status.Starting)
	a.status = status.Cached(status.SourceFunc(a.look), time.Second, time.Now)
	for _, part := range []struct {
		name  string
		start func(context.Context) error
	}{
		{"data folder", a.openFolder},
		{"broker", a.startBroker},
		{"ledger", a.openLedger},
		{"topics", a.createTopics},
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

func (a *App) openFolder(ctx context.Context) error {
	if a.config.InMemory {
		return nil
	}
	f, err := lockFolder(ctx, a.config.Data)
	if err != nil {
		return err
	}
	a.onClose("data folder", func(context.Context) error { return f.unlock() })
	return nil
}

func (a *App) startBroker(ctx context.Context) error {
	o := embedded.Options{Addr: a.config.BrokerListen, Logger: a.log}
	if !a.config.InMemory {
		o.Dir = filepath.Join(a.config.Data, "log")
	}
	server, err := embedded.Start(ctx, o)
	if err != nil {
		return err
	}
	a.server = server
	a.onClose("broker", func(context.Context) error { return server.Close() })
	// The embedded broker forgets its idempotence window when it's killed: one request at a time keeps the order then.
	a.broker, err = kafka.Open(ctx, kafka.Options{Seeds: []string{server.Addr()}, ClientID: "swarmlog-" + a.config.Name,
		Logger: a.log, OneInflight: true, Uncompressed: true, Throttled: a.metrics.Throttled})
	if err != nil {
		return err
	}
	a.onClose("broker's client", func(context.Context) error { a.broker.Close(); return nil })
	return nil
}

func (a *App) openLedger(ctx context.Context) error {
	path := ":memory:"
	if !a.config.InMemory {
		path = filepath.Join(a.config.Data, LedgerFile)
	}
	db, err := sqlite.Open(ctx, path, sqlite.Options{Logger: a.log})
	if err != nil {
		return err
	}
	a.ledger = db
	a.onClose("ledger", func(context.Context) error { return db.Close() })
	if a.config.Closed != nil {
		a.onClose("agents", func(context.Context) error { a.config.Closed(); return nil })
	}
	if a.config.Opened != nil {
		a.answers, err = a.config.Opened(ctx, db)
	}
	return err
}

// createTopics makes the declared topics, those that agents name, and a dead-letter topic for each that is read.
func (a *App) createTopics(ctx context.Context) error {
	specs := append([]broker.TopicSpec(nil), a.config.Topics...)
	known := map[string]int32{}
	for _, s := range specs {
		known[s.Name] = s.Partitions
	}
	want := func(names ...string) {
		for _, n := range names {
			if _, ok := known[n]; !ok {
				known[n] = defaultPartitions
				specs = append(specs, broker.TopicSpec{Name: n, Partitions: defaultPartitions})
			}
		}
	}
	for _, g := range a.config.Agents {
		want(g.Reads...)
		want(g.Emits...)
	}
	for _, s := range a.config.Sources {
		want(s.Emits...)
	}
	for _, g := range a.config.Agents {
		for _, t := range g.Reads {
			dead := engine.DeadTopic(t)
			if _, ok := known[dead]; !ok {
				known[dead] = known[t]
				specs = append(specs, broker.TopicSpec{Name: dead, Partitions: known[t]})
			}
		}
	}
	if err := a.broker.Create(ctx, specs...); err != nil {
		return err
	}
	return a.loadLetters(ctx)
}

func (a *App) runEngines(ctx context.Context) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for n := range a.config.Workers {
		worker := fmt.Sprintf("local-%d", n+1)
		var l ledger.Ledger = a.ledger
		if a.config.Wrap != nil {
			l = a.config.Wrap(worker, l)
		}
		e, err := engine.New(engine.Options{Swarm: a.config.Name, Worker: worker, Ledger: l, Broker: a.broker, Inferrer: a.answers,
			Logger: a.log.With("worker", worker), Meter: a.metrics, Notify: a.noticed, ShowsDead: a.config.ShowsDead, LeaseTime: a.config.LeaseTime, Drain: a.config.Drain},
			a.config.Agents, a.config.Sources)
		if err != nil {
			stop()
			return err
		}
		a.engines = append(a.engines, e)
	}
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

func (a *App) serve(ctx context.Context) error {
	a.reg.MustRegister(telemetry.NewCollector(a.status, a.log))
	if a.config.Listen != "" {
		l, err := httpapi.Listen(ctx, a.config.Listen)
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
	if a.config.InMemory {
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
