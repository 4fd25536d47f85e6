package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/progress"
	"github.com/swarmlog/swarmlog/internal/telemetry"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

// runReport is how often a worker that has done something says so in its log.
const runReport = time.Minute

type runCommand struct {
	Swarm        string   `arg:"" help:"A swarm.yaml, or the folder that holds one."`
	Brokers      []string `help:"Addresses of some Kafka brokers, host:port (SWARMLOG_BROKERS)."`
	Ledger       string   `help:"PostgreSQL's connection string (SWARMLOG_LEDGER, which other users of this machine can't read)."`
	Worker       string   `help:"This worker's id, unique among running ones (SWARMLOG_WORKER)."`
	Pool         string   `help:"Which of the swarm's pools this worker belongs to (SWARMLOG_POOL)."`
	Membership   string   `help:"Who decides which worker has which partition: leases or kafka (SWARMLOG_MEMBERSHIP)."`
	LeaseTime    string   `help:"After how long a worker that gives no sign is replaced (SWARMLOG_LEASE_TIME). Default: 15s."`
	Drain        string   `help:"How long running steps may go on after the first signal to end (SWARMLOG_DRAIN). Default: 10s."`
	Listen       string   `help:"Address of the live page, the API, health and metrics; off: none (SWARMLOG_LISTEN). Default: 127.0.0.1:8080, or a free port."`
	ListenPublic bool     `help:"Let --listen be an address that others reach; only health and metrics are served there (SWARMLOG_LISTEN_PUBLIC)."`
	AcceptRisk   []string `help:"Name of what would be refused at the start, as swarmlog doctor names it (SWARMLOG_ACCEPT_RISK)."`
	Input        []string `help:"Folder of documents to read instead of the one that the swarm names. May be repeated." sep:"none"`
	ExitWhenIdle bool     `help:"End with 0 once no record of the swarm is left unsettled."`
	LogLevel     string   `help:"Least level of log lines on standard error: debug, info, warn or error (SWARMLOG_LOG_LEVEL). Default: info."`
	LogFormat    string   `help:"Form of log lines: text or json (SWARMLOG_LOG_FORMAT). Default: text, with --json json."`
	JSON         bool     `name:"json" help:"Print JSON lines: ready, then stopped."`
}

// flags are the settings that were given.
func (c *runCommand) flags() []config.Flag {
	public := ""
	if c.ListenPublic {
		public = "on"
	}
	return []config.Flag{{Name: "brokers", Value: strings.Join(c.Brokers, ",")}, {Name: "ledger", Value: c.Ledger},
		{Name: "worker", Value: c.Worker}, {Name: "pool", Value: c.Pool}, {Name: "membership", Value: c.Membership},
		{Name: "lease-time", Value: c.LeaseTime}, {Name: "drain", Value: c.Drain}, {Name: "listen", Value: c.Listen},
		{Name: "listen-public", Value: public}, {Name: "accept-risk", Value: strings.Join(c.AcceptRisk, ",")},
		{Name: "log-level", Value: c.LogLevel}, {Name: "log-format", Value: c.LogFormat}}
}

// Run works as one of a swarm's workers until it's told to end.
func (c *runCommand) Run(ctx context.Context, s *streams) error {
	swarm, err := config.Load(c.Swarm, c.flags()...)
	if err == nil {
		err = swarm.NeedsServers(swarm.File)
	}
	if err == nil && len(c.Input) > 0 {
		if err = checkInput(c.Input); err == nil {
			err = swarm.SetInput(c.Input...)
		}
	}
	if err == nil {
		err = checkListen(swarm.Worker)
	}
	if err != nil {
		return usage(err)
	}
	format := swarm.Worker.LogFormat
	if format == "" && c.JSON {
		format = "json"
	}
	log, _, err := telemetry.NewLogger(s.err, swarm.Worker.LogLevel, format)
	if err != nil {
		return usage(err)
	}
	if swarm.Postgres.DSN.InArguments() {
		log.Warn("a password stands in this process's arguments, where other users of this machine can read it: use SWARMLOG_LEDGER or dsn_file")
	}
	if sasl := swarm.Kafka.SASL; !swarm.Kafka.TLS.On && (sasl.Mechanism == config.Plain || sasl.Mechanism == config.OAuthBearer) {
		log.Warn("the brokers are given a password or token without TLS: whoever is on the way can read it; set kafka.tls", "mechanism", sasl.Mechanism)
	}
	boundMemory()
	w := &worker{runCommand: c, streams: s, log: log, started: time.Now()}
	if err := w.work(ctx, swarm); err != nil {
		return fmt.Errorf("run %s: %w", c.Swarm, err)
	}
	return nil
}

// checkListen refuses an address that others reach, unless they may.
func checkListen(w config.Worker) error {
	if w.Listen == "" || w.Listen == "off" || w.ListenPublic {
		return nil
	}
	if err := httpapi.CheckListen(w.Listen); err != nil {
		return fmt.Errorf("--listen: %w; or give --listen-public, and only health and metrics are served there", err)
	}
	return nil
}

// worker is one run of the command.
type worker struct {
	*runCommand
	*streams
	log     *slog.Logger
	started time.Time
	app     *app.App
}

func (w *worker) work(ctx context.Context, swarm *config.Swarm) error {
	cfg, err := app.OnServers(swarm, w.log)
	if err != nil {
		return err
	}
	cfg.ListenPublic = swarm.Worker.ListenPublic
	if cfg.Listen, err = w.address(ctx, swarm.Worker.Listen); err != nil {
		return err
	}
	if cfg.ListenPublic {
		w.log.Warn("health and metrics are served to whoever reaches the address: nobody is asked who they are yet", "listen", cfg.Listen)
	}
	w.log = w.log.With("worker", cfg.Worker)
	w.log.Info("starting", "swarm", swarm.Name, "agents", len(swarm.Agents), "pool", cfg.Pool)
	if w.app, err = app.Start(ctx, cfg); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	}
	if err := w.ready(cfg, swarm); err != nil {
		return errors.Join(err, w.app.Stop(context.WithoutCancel(ctx)))
	}
	w.follow(ctx)
	// A second signal ends the process at once: the first has been heard.
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	w.app.Drain()
	last, lookErr := w.app.Look(context.WithoutCancel(ctx))
	err = w.app.Stop(context.WithoutCancel(ctx))
	return errors.Join(err, w.stopped(cfg.Worker, last, lookErr))
}

// address is the one asked for, or the usual one where that is free.
func (w *worker) address(ctx context.Context, asked string) (string, error) {
	switch asked {
	case "":
	case "off":
		return "", nil
	default:
		return asked, nil
	}
	l, err := httpapi.Listen(ctx, defaultListen)
	if err != nil {
		return "127.0.0.1:0", nil //nolint:nilerr // it's taken: another worker's, perhaps
	}
	return defaultListen, l.Close()
}

// readyLine says that the worker is at work.
type readyLine struct {
	Type    string   `json:"type"`
	Swarm   string   `json:"swarm"`
	Worker  string   `json:"worker"`
	Pool    string   `json:"pool"`
	Agents  []string `json:"agents"`
	Address string   `json:"address"` // URL of health and metrics; "": none
	Broker  string   `json:"broker"`
	Ledger  string   `json:"ledger"`
}

func (w *worker) ready(cfg app.Config, swarm *config.Swarm) error {
	line := readyLine{Type: "ready", Swarm: cfg.Name, Worker: cfg.Worker, Pool: cfg.Pool, Address: w.app.HTTPAddr(),
		Broker: w.app.BrokerAddr(), Ledger: w.app.LedgerPlace(), Agents: []string{}}
	var elsewhere []string
	for _, a := range swarm.Agents {
		if a.Pool != "" && a.Pool != cfg.Pool {
			elsewhere = append(elsewhere, a.Name+" (pool "+a.Pool+")")
			continue
		}
		line.Agents = append(line.Agents, a.Name)
	}
	w.log.Info("ready", "agents", strings.Join(line.Agents, " "), "broker", line.Broker, "ledger", line.Ledger, "address", line.Address)
	if len(elsewhere) > 0 {
		w.log.Info("some agents run on workers of other pools only", "agents", strings.Join(elsewhere, " "))
	}
	if w.JSON {
		return w.print(line)
	}
	_, err := fmt.Fprintf(w.out, "ready: worker %s of %s; %s\n", line.Worker, line.Swarm, orNone(line.Address))
	return err
}

func orNone(address string) string {
	if address == "" {
		return "no HTTP"
	}
	return address
}

// follow returns once the worker is to end, and logs now and then what it has done.
func (w *worker) follow(ctx context.Context) {
	report := time.NewTicker(runReport)
	defer report.Stop()
	idle := make(<-chan time.Time)
	if w.ExitWhenIdle {
		look := time.NewTicker(4 * idleCheck)
		defer look.Stop()
		idle = look.C
	}
	var last int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.app.Done():
			return
		case <-idle:
			if done, err := w.app.Idle(ctx); err == nil && done {
				return
			}
		case <-report.C:
			s, err := w.app.Status(ctx)
			if err != nil {
				continue // what can't be reached is logged already
			}
			if n := s.Settled(); n != last {
				last = n
				w.log.Info("at work", "settled", n, "steps_per_second", s.StepsPerSecond, "state", string(s.State), "dead", s.Records.Dead, "waiting", s.Records.Waiting)
			}
		}
	}
}

// stoppedLine says what there is once the worker has ended.
type stoppedLine struct {
	Type     string           `json:"type"`
	Worker   string           `json:"worker"`
	Records  *ledger.Counters `json:"records"` // of the whole swarm until now; null where the ledger can't be asked
	Warnings []string         `json:"warnings"`
	Elapsed  float64          `json:"elapsed_seconds"`
}

func (w *worker) stopped(id string, last status.Status, lookErr error) error {
	line := stoppedLine{Type: "stopped", Worker: id, Warnings: []string{}, Elapsed: time.Since(w.started).Seconds()}
	if lookErr == nil {
		line.Records, line.Warnings = &last.Records, last.Warnings
	}
	w.log.Info("stopped", "after", time.Since(w.started).Round(time.Millisecond))
	if w.JSON {
		return w.print(line)
	}
	_, err := fmt.Fprintf(w.out, "stopped: worker %s; what it did is committed, and others have its partitions now\n", progress.Printable(id))
	return err
}

func (w *worker) print(v any) error {
	lines := json.NewEncoder(w.out)
	lines.SetEscapeHTML(false)
	return lines.Encode(v)
}
