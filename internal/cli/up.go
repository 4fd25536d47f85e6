package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/progress"
	"github.com/swarmlog/swarmlog/internal/telemetry"
)

const (
	defaultListen = "127.0.0.1:8080"
	// idleCheck is the time between two looks whether all is settled, until it is for the first time.
	idleCheck = 100 * time.Millisecond
)

type upCommand struct {
	Swarm        string   `arg:"" help:"A swarm.yaml, or the folder that holds one, such as examples/papers."`
	Data         string   `default:".swarmlog" help:"Folder for the log, the ledger and the index; one process at a time."`
	Input        []string `help:"Folder of documents to read instead of the one that the swarm names. May be repeated." sep:"none"`
	Listen       string   `help:"Loopback address of the live page and the API. Default: 127.0.0.1:8080, or a free port where that is taken."`
	BrokerListen string   `default:"127.0.0.1:9092" help:"Loopback address of the embedded broker, for any Kafka client; a free port where it is taken."`
	ExitWhenIdle bool     `help:"End with 0 once no record is left unsettled."`
	JSON         bool     `name:"json" help:"Print JSON lines; the last one is the summary."`
	LogLevel     string   `default:"warn" enum:"debug,info,warn,error" help:"Least level of log lines on standard error: debug, info, warn or error."`
}

// Run runs the swarm until it's interrupted, or idle where so asked.
func (c *upCommand) Run(ctx context.Context, s *streams) error {
	swarm, err := config.Load(c.Swarm)
	if err != nil {
		return usage(err)
	}
	if len(c.Input) > 0 {
		if err := checkInput(c.Input); err != nil {
			return usage(err)
		}
		if err := swarm.SetInput(c.Input...); err != nil {
			return usage(err)
		}
	}
	if err := c.checkListen(); err != nil {
		return usage(err)
	}
	boundMemory()
	run := &upRun{upCommand: c, streams: s, started: time.Now()}
	return run.run(ctx, swarm)
}

// checkListen refuses addresses that others could reach.
func (c *upCommand) checkListen() error {
	if c.Listen != "" {
		if err := httpapi.CheckListen(c.Listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
	}
	if err := httpapi.CheckListen(c.BrokerListen); err != nil {
		return fmt.Errorf("--broker-listen: %w", err)
	}
	return nil
}

// checkInput refuses folders that aren't there: a typing error shouldn't look like an empty folder.
func checkInput(folders []string) error {
	for _, folder := range folders {
		info, err := os.Stat(folder)
		if err != nil {
			return fmt.Errorf("input folder: %w; name a folder that exists", err)
		}
		if !info.IsDir() {
			return fmt.Errorf("input folder %s is a file; name the folder that it is in", folder)
		}
	}
	return nil
}

// upRun is one run of the command.
type upRun struct {
	*upCommand
	*streams
	started time.Time
	app     *app.App
	display *progress.Display
	told    *progress.Summary // the last that was printed; nil: none
}

func (u *upRun) run(ctx context.Context, swarm *config.Swarm) error {
	if os.Getenv("GOMAXPROCS") == "" {
		// The broker and the ledger of this process sync the disk, and hold a scheduler's processor meanwhile: two more
		// lower the latency of everything else.
		runtime.GOMAXPROCS(runtime.NumCPU() + 2)
	}
	late := &lateWriter{w: u.err} // the display, once there is one: log lines then appear above the status
	log, _, err := telemetry.NewLogger(late, u.LogLevel, "text")
	if err != nil {
		return usage(err)
	}
	cfg, err := app.FromSwarm(swarm, u.Data, log)
	if err != nil {
		return err
	}
	cfg.BrokerListen, cfg.ShowsDead = u.BrokerListen, true
	if u.app, err = u.start(ctx, cfg); err != nil {
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	}
	file, _ := u.out.(*os.File)
	o := progress.Options{Source: u.app, Out: u.out, Mode: progress.Plain}
	if u.JSON {
		o.Mode = progress.JSON
	}
	if file != nil {
		o = progress.For(file, u.JSON, u.app, os.Getenv)
	}
	u.display = progress.New(o)
	if o.Mode == progress.Terminal {
		late.set(u.display)
	}
	if !u.JSON {
		u.greet(cfg.ModelLine)
	}
	err = u.follow(ctx)
	late.set(u.err)
	return err
}

// start starts the swarm, with the live page on its own port or, where none was asked for, on a free one.
func (u *upRun) start(ctx context.Context, cfg app.Config) (*app.App, error) {
	cfg.Listen = u.Listen
	if cfg.Listen == "" {
		cfg.Listen = defaultListen
		if l, err := httpapi.Listen(ctx, defaultListen); err != nil {
			cfg.Listen = "127.0.0.1:0"
		} else if err := l.Close(); err != nil {
			return nil, err
		}
	}
	return app.Start(ctx, cfg)
}

func (u *upRun) greet(model string) {
	fmt.Fprintf(u.display, "page   %s\nbroker %s (any Kafka client)\n", u.app.HTTPAddr(), u.app.BrokerAddr())
	if model != "" {
		fmt.Fprintf(u.display, "model  %s\n", model)
	}
}

// follow shows progress until the run ends, prints the summary when all is settled for the first time, or at the end,
// and stops the swarm.
func (u *upRun) follow(ctx context.Context) error {
	showing, hide := context.WithCancel(context.WithoutCancel(ctx))
	var shown sync.WaitGroup
	shown.Go(func() { _ = u.display.Run(showing) }) // that nobody reads what is shown is no reason to stop working
	defer shown.Wait()
	defer hide()
	idle, err := u.awaitIdle(ctx)
	if err == nil && idle && !u.ExitWhenIdle {
		if !u.JSON {
			err = u.summarize(ctx)
		}
		if err == nil {
			select {
			case <-ctx.Done():
			case <-u.app.Done():
			}
		}
	}
	// A second interrupt ends the process at once: the first has been heard.
	signal.Reset(os.Interrupt)
	last, places, lastErr := u.drain(context.WithoutCancel(ctx))
	stopErr := u.app.Stop(context.WithoutCancel(ctx))
	hide()
	shown.Wait()
	if err = errors.Join(err, stopErr, lastErr); err != nil {
		err = fmt.Errorf("run %s: %w", u.Swarm, err)
	}
	if lastErr == nil {
		err = errors.Join(err, u.farewell(last, places))
	}
	return err
}

// drain ends the steps and takes the last look.
func (u *upRun) drain(ctx context.Context) (progress.Summary, progress.Places, error) {
	idle, err := u.app.Idle(ctx)
	places := u.places(false)
	places.Cut = err != nil || !idle
	u.app.Drain()
	if places.Cut {
		if left, err := u.app.Left(ctx); err == nil { // else there are some, and that's all that is said
			places.Left = left
		}
	}
	last, err := u.lastLook(ctx)
	return last, places, err
}

// farewell prints what was done, unless people were told that already.
func (u *upRun) farewell(last progress.Summary, places progress.Places) error {
	if !u.JSON && u.told != nil && !places.Cut && u.told.Documents == last.Documents && u.told.Pages == last.Pages && u.told.Records == last.Records {
		_, err := fmt.Fprintf(u.display, "Stopped; all that was done is kept in %s.\n", u.Data)
		return err
	}
	return u.display.Summary(last, places)
}

// awaitIdle waits until all is settled; false where the run ended before.
func (u *upRun) awaitIdle(ctx context.Context) (bool, error) {
	for wait := idleCheck; ; wait = min(2*wait, 4*idleCheck) {
		idle, err := u.app.Idle(ctx)
		if err == nil && idle {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, nil
		case <-u.app.Done():
			return false, errors.New("the swarm ended by itself")
		case <-time.After(wait):
		}
	}
}

func (u *upRun) summarize(ctx context.Context) error {
	s, err := u.lastLook(ctx)
	if err != nil {
		return err
	}
	u.told = &s
	return u.display.Summary(s, u.places(true))
}

// lastLook is what was done until now.
func (u *upRun) lastLook(ctx context.Context) (progress.Summary, error) {
	ctx = context.WithoutCancel(ctx)
	s, err := u.app.Look(ctx)
	dead, deadErr := u.app.Dead(ctx)
	return progress.Summary{Documents: s.Documents, Pages: s.Pages, Records: s.Records, Inference: s.Inference, Warnings: s.Warnings,
		Dead: dead, Elapsed: time.Since(u.started)}, errors.Join(err, deadErr)
}

func (u *upRun) places(stays bool) progress.Places {
	search := self() + ` search "words"`
	if u.Data != ".swarmlog" {
		search += " --data " + filepath.Clean(u.Data)
	}
	p := progress.Places{Search: search, Data: u.Data, Stays: stays}
	if stays {
		p.Page, p.Broker = u.app.HTTPAddr(), u.app.BrokerAddr()
	}
	return p
}

// self is how this program is called: go run leaves no binary behind that could be named.
func self() string {
	if path, err := os.Executable(); err == nil && strings.Contains(path, "go-build") {
		return "go run ./cmd/swarmlog"
	}
	return "swarmlog"
}

// lateWriter is a writer whose target may change while it's written to.
type lateWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lateWriter) set(w io.Writer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.w = w
}

func (l *lateWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	w := l.w
	l.mu.Unlock()
	return w.Write(b)
}
