// Package devservices owns the servers that tests and development need: three
// Apache Kafka brokers, one PostgreSQL, a browser and promtool. It takes them by address
// where one is given, else from Docker where an engine answers, else it gets
// their programs (Maven, Debian's packages) and starts them itself, on free
// ports of 127.0.0.1.
//
// It is equipment of the repository and no part of the product: nothing that
// cmd/swarmlog links may import it, and it imports nothing of the product's.
//
// What survives a crash: the servers, which are processes of their own, and a
// state file in the cache folder that names each by process id and start time.
// Stop ends exactly those; a process that got a stranger's id is left alone.
// The servers' data doesn't outlive Stop.
package devservices

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Names of what can be asked for.
const (
	Kafka    = "kafka"
	Postgres = "postgres"
	Chromium = "chromium"
	Promtool = "promtool"
)

// Environment variables. The first three are read, as given addresses, and exported for the tests.
const (
	EnvKafka    = "SWARMLOG_KAFKA"    // bootstrap addresses, comma-separated
	EnvPostgres = "SWARMLOG_POSTGRES" // a connection URL
	EnvChrome   = "CHROME"            // path of a Chromium or Chrome
	EnvPromtool = "PROMTOOL"          // path of Prometheus' promtool
	EnvCache    = "SWARMLOG_CACHE"    // cache folder; default: swarmlog in the user's cache folder
)

// Brokers is how many Kafka brokers are started.
const Brokers = 3

// Options say where things are kept and who hears of progress.
type Options struct {
	Cache  string                           // folder for programs, state and logs; "": EnvCache, else the user's cache folder
	Logf   func(format string, args ...any) // progress, a line a call; nil: silence
	Getenv func(string) string              // nil: os.Getenv
}

// Missing is a service that couldn't be had.
type Missing struct {
	Name string
	Err  error // why, and what to do
}

// Report is what Start found or did.
type Report struct {
	Kafka    string   // bootstrap addresses, comma-separated; "" where missing or not asked for
	Postgres string   // connection URL, with its password
	Chromium string   // path
	Promtool string   // path
	Started  []string // services that this call started; others were given or ran already
	Missing  []Missing
}

// Env is the report as environment variables, NAME=value.
func (r *Report) Env() []string {
	var env []string
	for _, v := range []struct{ name, value string }{{EnvKafka, r.Kafka}, {EnvPostgres, r.Postgres}, {EnvChrome, r.Chromium}, {EnvPromtool, r.Promtool}} {
		if v.value != "" {
			env = append(env, v.name+"="+v.value)
		}
	}
	return env
}

// InCI tells whether a continuous-integration service runs this: there, a service that's missing is a failure.
func InCI() bool {
	v := strings.ToLower(os.Getenv("CI"))
	return v != "" && v != "0" && v != "false"
}

// Time limits. Getting programs may download some hundred megabytes.
const (
	getLimit   = 10 * time.Minute
	readyLimit = 90 * time.Second
	stopLimit  = 15 * time.Second
	givenLimit = 10 * time.Second
)

// desk is one call's view of the cache folder.
type desk struct {
	cache  string
	logf   func(string, ...any)
	getenv func(string) string
	state  *state
}

func open(ctx context.Context, o Options) (*desk, func(), error) {
	d := &desk{cache: o.Cache, logf: o.Logf, getenv: o.Getenv}
	if d.getenv == nil {
		d.getenv = os.Getenv
	}
	if d.logf == nil {
		d.logf = func(string, ...any) {}
	}
	if d.cache == "" {
		d.cache = d.getenv(EnvCache)
	}
	if d.cache == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, nil, fmt.Errorf("find the cache folder: %w; set %s", err, EnvCache)
		}
		d.cache = filepath.Join(user, "swarmlog")
	}
	var err error
	if d.cache, err = filepath.Abs(d.cache); err != nil {
		return nil, nil, fmt.Errorf("resolve the cache folder: %w", err)
	}
	if err := os.MkdirAll(d.path("logs"), 0o755); err != nil {
		return nil, nil, fmt.Errorf("make the cache folder: %w; set %s to one that can be written", err, EnvCache)
	}
	unlock, err := lock(ctx, d.path("lock"), d.logf)
	if err != nil {
		return nil, nil, err
	}
	if d.state, err = loadState(d.path("state.json")); err != nil {
		unlock()
		return nil, nil, err
	}
	return d, unlock, nil
}

func (d *desk) path(elem ...string) string {
	return filepath.Join(append([]string{d.cache}, elem...)...)
}

// Start sees to it that the named services run (all, where none is named) and are ready, and returns their
// addresses. Those that run already are returned as they are. What can't be had is in the report's Missing; an
// error means that the cache folder itself, or a name, is at fault.
func Start(ctx context.Context, o Options, names ...string) (*Report, error) {
	if len(names) == 0 {
		names = []string{Kafka, Postgres}
	}
	d, unlock, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer unlock()
	r := &Report{}
	for _, name := range names {
		var started bool
		switch name {
		case Kafka:
			r.Kafka, started, err = d.server(ctx, kafkaServer{})
		case Postgres:
			r.Postgres, started, err = d.server(ctx, postgresServer{})
		case Chromium:
			r.Chromium, err = d.chromium(ctx)
		case Promtool:
			r.Promtool, err = d.promtool(ctx)
		default:
			return r, fmt.Errorf("no service is called %q: choose among %s, %s, %s and %s", name, Kafka, Postgres, Chromium, Promtool)
		}
		if started {
			r.Started = append(r.Started, name)
		}
		if err != nil {
			r.Missing = append(r.Missing, Missing{name, err})
		}
	}
	return r, nil
}

// Stop ends the named services that Start started (all, where none is named) and forgets their data. What isn't
// running is passed over.
func Stop(ctx context.Context, o Options, names ...string) error {
	d, unlock, err := open(ctx, o)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for name := range d.state.Instances {
		if len(names) == 0 || slices.Contains(names, name) {
			errs = append(errs, d.stop(ctx, name))
		}
	}
	return errors.Join(errs...)
}

// Status is one line a service that Start started: whether it runs, since when and where.
type Status struct {
	Name, How, Version string
	Address            string // without a password
	Since              time.Time
	Running            bool
}

// List tells what Start started and Stop hasn't ended.
func List(ctx context.Context, o Options) ([]Status, error) {
	d, unlock, err := open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var list []Status
	for name, i := range d.state.Instances {
		address := i.Address
		if name == Postgres {
			address = hidePassword(address)
		}
		list = append(list, Status{name, i.How, i.Version, address, i.Since, d.running(ctx, i)})
	}
	slices.SortFunc(list, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// server is one kind of server: how to launch it and how to know that it works.
type server interface {
	name() string
	env() string
	// docker and native launch it and record what they launched in i, before it is ready.
	docker(ctx context.Context, d *desk, i *instance) error
	native(ctx context.Context, d *desk, i *instance) error
	// answers tells whether the server at address works and is of a version that will do; it returns what it is.
	answers(ctx context.Context, address string) (version string, err error)
}

// server finds or starts one server and returns its address.
func (d *desk) server(ctx context.Context, s server) (address string, started bool, err error) {
	if given := d.getenv(s.env()); given != "" {
		if _, err := d.ready(ctx, s, &instance{Address: given}, givenLimit); err != nil {
			return "", false, fmt.Errorf("%s is given by %s, but: %w; correct the address, or unset it to have one started", s.name(), s.env(), err)
		}
		d.logf("%s: using the given address (%s)", s.name(), s.env())
		return given, false, nil
	}
	if i := d.state.Instances[s.name()]; i != nil {
		if d.running(ctx, i) {
			if _, err := d.ready(ctx, s, i, givenLimit); err == nil {
				d.logf("%s: already running (%s, %s)", s.name(), i.Version, i.How)
				return i.Address, false, nil
			}
		}
		d.logf("%s: what an earlier start left doesn't answer; starting anew", s.name())
		if err := d.stop(ctx, s.name()); err != nil {
			return "", false, err
		}
	}
	if dockerAnswers(ctx) {
		if address, err = d.launch(ctx, s, "docker", s.docker); err == nil {
			return address, true, nil
		}
		d.logf("%s: Docker answers, but: %v; starting it without", s.name(), err)
	}
	// A free port may be taken between being found and being used: then once more, with others.
	for range 2 {
		if address, err = d.launch(ctx, s, "native", s.native); err == nil {
			return address, true, nil
		}
		if !errors.Is(err, errPortTaken) {
			break
		}
	}
	return "", false, err
}

// launch starts a server and waits until it is ready; one that doesn't become so is ended again.
func (d *desk) launch(ctx context.Context, s server, how string, f func(context.Context, *desk, *instance) error) (string, error) {
	begin := time.Now()
	i := &instance{How: how, Since: begin.UTC().Truncate(time.Second)}
	d.state.Instances[s.name()] = i
	err := f(ctx, d, i)
	if err == nil {
		err = d.state.save()
	}
	if err == nil {
		i.Version, err = d.ready(ctx, s, i, readyLimit)
	}
	if err == nil {
		err = d.state.save()
	}
	if err != nil {
		return "", errors.Join(err, d.stop(context.WithoutCancel(ctx), s.name()))
	}
	d.logf("%s: ready after %.1f s (%s, %s)", s.name(), time.Since(begin).Seconds(), i.Version, how)
	return i.Address, nil
}

// ready waits until a server works, at most for limit, and while its processes live.
func (d *desk) ready(ctx context.Context, s server, i *instance, limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		version, err := s.answers(ctx, i.Address)
		if err == nil {
			return version, nil
		}
		for _, p := range i.Processes {
			if !p.alive() {
				return "", exitError(s.name(), p)
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s isn't ready after %s: %w%s", s.name(), limit, err, i.logTail())
		case <-tick.C:
		}
	}
}
