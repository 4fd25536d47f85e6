package devservices

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// env is an environment of its own; a name that isn't there is unset.
func env(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

func options(t *testing.T, values map[string]string) Options {
	return Options{Cache: t.TempDir(), Logf: t.Logf, Getenv: env(values)}
}

// sleeper is a process that does nothing, ended when the test is.
func sleeper(t *testing.T) process {
	t.Helper()
	p, err := spawn(exec.Command("sleep", "600"), filepath.Join(t.TempDir(), "log"), syscall.SIGTERM)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := endAll(context.Background(), []process{p}); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestStopSparesAStrangerUnderAKnownProcessID(t *testing.T) {
	t.Parallel()
	ours, stranger := sleeper(t), sleeper(t)
	recorded := stranger
	recorded.Start += "0" // the id is the stranger's by now, the start time isn't
	o := options(t, nil)
	s := &state{file: filepath.Join(o.Cache, "state.json"), Instances: map[string]*instance{
		Kafka: {How: "native", Processes: []process{ours, recorded}},
	}}
	if err := s.save(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there's nothing to do
		if err := Stop(context.Background(), o); err != nil {
			t.Fatal(err)
		}
		if ours.alive() {
			t.Error("our own process lives on after Stop")
		}
		if !stranger.alive() {
			t.Fatal("Stop ended a process that isn't ours")
		}
	}
	if list, err := List(context.Background(), o); err != nil || len(list) != 0 {
		t.Errorf("after Stop, List is %v, %v", list, err)
	}
}

func TestEndAllKillsWhatDoesNotListen(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	p, err := spawn(exec.Command("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1; done"), log, syscall.SIGTERM)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(10 * time.Second)
	for b, _ := os.ReadFile(log); len(b) == 0 && time.Now().Before(deadline); b, _ = os.ReadFile(log) {
		time.Sleep(10 * time.Millisecond)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // no patience: the first wait ends at once
	_ = endAll(ctx, []process{p})
	if !waitAll(context.Background(), []process{p}, 10*time.Second) {
		t.Error("a process that ignores SIGTERM lives on")
	}
}

func TestDamagedStateIsNamed(t *testing.T) {
	t.Parallel()
	o := options(t, nil)
	file := filepath.Join(o.Cache, "state.json")
	if err := os.WriteFile(file, []byte("{cut"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Stop(context.Background(), o); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("Stop on a damaged state file says %v", err)
	}
}

func TestGivenAddressThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Start(ctx, options(t, map[string]string{EnvPostgres: postgresURL("secret", ports[0])}), Postgres)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Missing) != 1 || r.Postgres != "" {
		t.Fatalf("report %+v, want PostgreSQL missing", r)
	}
	said := r.Missing[0].Err.Error()
	if !strings.Contains(said, EnvPostgres) || strings.Contains(said, "secret") {
		t.Errorf("the error should name %s and keep the password: %s", EnvPostgres, said)
	}
}

func TestStartOfAnUnknownName(t *testing.T) {
	t.Parallel()
	if _, err := Start(context.Background(), options(t, nil), "redis"); err == nil {
		t.Error("Start of an unknown service gave no error")
	}
}

func TestChromiumByEnvironment(t *testing.T) {
	t.Parallel()
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Start(context.Background(), options(t, map[string]string{EnvChrome: sh}), Chromium)
	if err != nil || r.Chromium != sh || !slices.Contains(r.Env(), EnvChrome+"="+sh) {
		t.Errorf("Start: %+v, %v", r, err)
	}
	if _, err := FindChromium(env(map[string]string{EnvChrome: "/nowhere/chromium"})); err == nil {
		t.Error("a CHROME that isn't there was taken")
	}
}

func TestInstallSaysWhatToDo(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	d := &desk{logf: t.Logf}
	err := d.install(context.Background(), "X is needed", "x-server")
	if err == nil || !strings.Contains(err.Error(), "x-server") {
		t.Errorf("without apt-get: %v", err)
	}
	script(t, bin, "apt-get", `echo "$*" >> "`+bin+`/calls"`)
	err = d.install(context.Background(), "X is needed", "x-server")
	if !root() {
		if err == nil || !strings.Contains(err.Error(), "sudo apt-get install x-server") {
			t.Errorf("not as root: %v", err)
		}
		return
	}
	calls, _ := os.ReadFile(filepath.Join(bin, "calls"))
	if err != nil || !strings.Contains(string(calls), " update\n") || !strings.Contains(string(calls), "install --no-install-recommends x-server\n") {
		t.Errorf("as root: %v; apt-get was called with:\n%s", err, calls)
	}
}

func script(t *testing.T, folder, name, body string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// A real engine isn't at hand everywhere: the client's calls are checked against a script in its place.
func TestDockerCalls(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	script(t, bin, "docker", `echo "$*" >> "`+bin+`/calls"`)
	ctx := context.Background()
	if !dockerAnswers(ctx) {
		t.Fatal("an engine that answers isn't seen")
	}
	o := options(t, nil)
	d, unlock, err := open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for _, s := range []server{kafkaServer{}, postgresServer{}} {
		i := &instance{How: "docker"}
		d.state.Instances[s.name()] = i
		if err := s.docker(ctx, d, i); err != nil {
			t.Fatal(err)
		}
		if err := d.stop(ctx, s.name()); err != nil {
			t.Fatal(err)
		}
		calls, _ := os.ReadFile(filepath.Join(bin, "calls"))
		for _, c := range i.Containers {
			if !strings.Contains(string(calls), "--name "+c+" ") || !strings.Contains(string(calls), "rm --force --volumes "+c+"\n") {
				t.Errorf("container %s wasn't run and removed:\n%s", c, calls)
			}
		}
		if i.Network != "" && !strings.Contains(string(calls), "network rm "+i.Network+"\n") {
			t.Errorf("network %s wasn't removed:\n%s", i.Network, calls)
		}
		for line := range strings.Lines(string(calls)) {
			if strings.HasPrefix(line, "run ") && !strings.Contains(line, "--publish 127.0.0.1:") {
				t.Errorf("a container is published beyond loopback: %s", line)
			}
		}
		if want := map[string]int{Kafka: Brokers, Postgres: 1}[s.name()]; len(i.Containers) != want {
			t.Errorf("%s: %d containers, want %d", s.name(), len(i.Containers), want)
		}
	}
	script(t, bin, "docker", "exit 1")
	if dockerAnswers(ctx) {
		t.Error("a client without an engine counts as Docker")
	}
}

func TestBrokerConfig(t *testing.T) {
	t.Parallel()
	c := brokerConfig(2, `/data\2`, []int{1, 2, 3, 11, 12, 13})
	for _, want := range []string{"node.id=2\n", "listeners=PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:12\n",
		"controller.quorum.voters=1@127.0.0.1:11,2@127.0.0.1:12,3@127.0.0.1:13\n", "min.insync.replicas=2\n",
		"default.replication.factor=3\n", `log.dirs=/data\\2/data` + "\n"} {
		if !strings.Contains(c, want) {
			t.Errorf("the configuration lacks %q:\n%s", want, c)
		}
	}
}

// TestPostgresLife is the whole life of a service that is started here: once, found again, ended, gone.
func TestPostgresLife(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if findPostgres(ctx) == "" && !root() && !dockerAnswers(ctx) {
		if InCI() {
			t.Fatal("PostgreSQL isn't installed")
		}
		t.Skip("NOT RUN: PostgreSQL isn't installed: install it (apt-get install postgresql)")
	}
	o := options(t, nil)
	o.Getenv = env(map[string]string{"JAVA_HOME": os.Getenv("JAVA_HOME")})
	t.Cleanup(func() {
		if err := Stop(context.WithoutCancel(ctx), o); err != nil {
			t.Error(err)
		}
	})
	first, err := Start(ctx, o, Postgres)
	if err != nil || len(first.Missing) > 0 || !slices.Equal(first.Started, []string{Postgres}) {
		t.Fatalf("first start: %+v, %v", first, err)
	}
	second, err := Start(ctx, o, Postgres)
	if err != nil || second.Postgres != first.Postgres || len(second.Started) != 0 {
		t.Fatalf("second start: %+v, %v; want the first one's address", second, err)
	}
	list, err := List(ctx, o)
	if err != nil || len(list) != 1 || !list[0].Running || strings.Contains(list[0].Address, mustPassword(t, first.Postgres)) {
		t.Errorf("List is %+v, %v", list, err)
	}
	if err := Stop(ctx, o); err != nil {
		t.Fatal(err)
	}
	if _, err := (postgresServer{}).answers(ctx, first.Postgres); err == nil {
		t.Error("PostgreSQL answers after Stop")
	}
	left, _ := filepath.Glob(filepath.Join(o.Cache, "run", "*"))
	if len(left) != 0 {
		t.Errorf("Stop left data behind: %v", left)
	}
}

func mustPassword(t *testing.T, address string) string {
	t.Helper()
	c, err := pgx.ParseConfig(address)
	if err != nil || c.Password == "" {
		t.Fatalf("no password in the address: %v", err)
	}
	return c.Password
}

// A server that dies while starting is told at once, with its last words, and not waited for.
func TestServerThatDiesWhileStarting(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	d, unlock, err := open(ctx, options(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for words, want := range map[string]error{"cannot read config": nil, "bind: Address already in use": errPortTaken} {
		begin := time.Now()
		_, err = d.launch(ctx, postgresServer{}, "native", func(_ context.Context, d *desk, i *instance) error {
			ports, err := freePorts(1)
			if err != nil {
				return err
			}
			p, err := spawn(exec.Command("sh", "-c", "echo '"+words+"'; sleep 0.1"), d.path("logs", "x.log"), syscall.SIGTERM)
			i.Processes, i.Address = append(i.Processes, p), postgresURL("x", ports[0])
			return err
		})
		if err == nil || time.Since(begin) > readyLimit/2 {
			t.Errorf("%q: %v after %s", words, err, time.Since(begin))
		}
		if want != nil && !errors.Is(err, want) || want == nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%q: the error is %v", words, err)
		}
	}
}
