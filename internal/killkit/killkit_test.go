//go:build unix

package killkit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/internal/killkit"
)

const (
	modeVar  = "KILLKIT_CHILD"
	addrVar  = "KILLKIT_ADDR"
	patience = 20 * time.Second
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(modeVar); mode != "" {
		os.Exit(child(mode))
	}
	goleak.VerifyTestMain(m)
}

// child is what the test binary does when a test starts it as a child process.
func child(mode string) int {
	switch mode {
	case "fail":
		fmt.Println("about to fail")
		return 3
	case "chatty":
		for range 5000 {
			fmt.Println(strings.Repeat("chat ", 20))
		}
		fmt.Println("ready")
	case "deaf":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
	case "polite":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("ready")
		<-c
		fmt.Println("bye")
		return 0
	case "tick", "family", "starter":
		return connected(mode)
	}
	select {}
}

// connected is a child that the test sees end by the end of its connection.
func connected(mode string) int {
	conn, err := net.Dial("tcp", os.Getenv(addrVar))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("ready")
	switch mode {
	case "family": // with a child in the same group
		grandchild := exec.Command(os.Args[0])
		grandchild.Env = append(os.Environ(), modeVar+"=tick")
		if err := grandchild.Start(); err != nil {
			fmt.Println(err)
			return 1
		}
	case "starter": // with a child of its own, by this package
		_, err := killkit.Start(context.Background(), killkit.Command{Env: []string{modeVar + "=tick"}, Ready: killkit.Line("ready")})
		if err != nil {
			fmt.Println(err)
			return 1
		}
	}
	for {
		if _, err := fmt.Fprintln(conn, "tick"); err != nil {
			return 0
		}
		time.Sleep(time.Millisecond)
	}
}

// listener takes the connections of children.
func listener(t *testing.T) (addr string, accept func() *bufio.Reader) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String(), func() *bufio.Reader {
		t.Helper()
		if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(c)
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		return r
	}
}

// gone fails the test where the process at the other end lives on.
func gone(t *testing.T, r io.Reader) {
	t.Helper()
	if _, err := io.Copy(io.Discard, r); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the process is still there: %v", err)
	}
}

func start(t *testing.T, mode string, change ...func(*killkit.Command)) *killkit.Process {
	t.Helper()
	p, err := killkit.Start(t.Context(), command(mode, change...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func command(mode string, change ...func(*killkit.Command)) killkit.Command {
	cmd := killkit.Command{Name: mode, Env: []string{modeVar + "=" + mode}, Ready: killkit.Line("ready"), ReadyWait: patience}
	for _, c := range change {
		c(&cmd)
	}
	return cmd
}

func at(addr string) func(*killkit.Command) {
	return func(c *killkit.Command) { c.Env = append(c.Env, addrVar+"="+addr) }
}

func TestKillTakesTheWholeGroup(t *testing.T) {
	t.Parallel()
	addr, accept := listener(t)
	p := start(t, "family", at(addr))
	one, two := accept(), accept()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	gone(t, one)
	gone(t, two)
	if p.Running() {
		t.Error("a killed process runs")
	}
	if err := p.Kill(); err != nil {
		t.Errorf("second kill: %v", err)
	}
	if err := p.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("how it ended: %v", err)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	addr, accept := listener(t)
	p := start(t, "tick", at(addr))
	r := accept()
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" {
		awaitState(t, p.Pid(), 'T')
	}
	if err := p.Resume(); err != nil {
		t.Fatal(err)
	}
	for range 10_000 / 5 { // more than can have been under way
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil { // one that is paused
		t.Fatal(err)
	}
	gone(t, r)
	if err := p.Pause(); !errors.Is(err, killkit.ErrExited) {
		t.Errorf("pause after the end: %v", err)
	}
}

// awaitState waits until the system says that a process is in a state.
func awaitState(t *testing.T, pid int, want byte) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if i := strings.LastIndexByte(string(b), ')'); i > 0 && b[i+2] == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process state: %s", b)
		}
		runtime.Gosched()
	}
}

func TestTerminate(t *testing.T) {
	t.Parallel()
	p := start(t, "polite")
	if err := p.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := p.Terminate(patience); err != nil { // a paused one, too
		t.Fatal(err)
	}
	if !strings.Contains(p.Tail(), "bye") {
		t.Errorf("output: %q", p.Tail())
	}
	if err := p.Terminate(patience); !errors.Is(err, killkit.ErrExited) {
		t.Errorf("terminate after the end: %v", err)
	}

	deaf := start(t, "deaf")
	if err := deaf.Terminate(10 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("terminate a deaf process: %v", err)
	}
	if deaf.Running() {
		t.Error("the deaf process lives")
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	p := start(t, "polite")
	pid := p.Pid()
	for range 2 {
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if p.Starts() != 3 || p.Pid() == pid || !p.Running() {
		t.Errorf("starts %d, pid %d after %d, running %t", p.Starts(), p.Pid(), pid, p.Running())
	}
}

func TestNotReady(t *testing.T) {
	t.Parallel()
	_, err := killkit.Start(t.Context(), command("fail"))
	if !errors.Is(err, killkit.ErrExited) || !strings.Contains(err.Error(), "about to fail") || !strings.Contains(err.Error(), "status 3") {
		t.Errorf("a process that fails at once: %v", err)
	}
	addr, accept := listener(t)
	_, err = killkit.Start(t.Context(), command("tick", at(addr), func(c *killkit.Command) {
		c.Ready, c.ReadyWait = killkit.Line("never said"), 50*time.Millisecond
	}))
	if err == nil || !strings.Contains(err.Error(), "never said") {
		t.Errorf("a process that doesn't get ready: %v", err)
	}
	_ = accept
	_, err = killkit.Start(t.Context(), killkit.Command{Path: filepath.Join(t.TempDir(), "missing")})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing binary: %v", err)
	}
}

func TestReadyByAddress(t *testing.T) {
	t.Parallel()
	addr, _ := listener(t)
	if err := killkit.Dial(addr)(t.Context(), nil); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	refused := errors.New("not yet")
	err := killkit.Until(func(context.Context) error { return refused })(ctx, nil)
	if !errors.Is(err, refused) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("never ready: %v", err)
	}
}

func TestContextEndsTheProcess(t *testing.T) {
	t.Parallel()
	addr, accept := listener(t)
	ctx, cancel := context.WithCancel(t.Context())
	p, err := killkit.Start(ctx, command("tick", at(addr)))
	if err != nil {
		t.Fatal(err)
	}
	r := accept()
	cancel()
	gone(t, r)
	if err := p.Wait(t.Context()); err == nil {
		t.Error("it ended well")
	}
	if err := p.Restart(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("restart after the context: %v", err)
	}
}

// TestNobodySurvivesTheStarter kills a process that has started one with this package.
func TestNobodySurvivesTheStarter(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("only Linux can promise that, so there's nothing to test")
		return
	}
	t.Parallel()
	addr, accept := listener(t)
	p := start(t, "starter", at(addr))
	one, two := accept(), accept()
	if err := syscall.Kill(p.Pid(), syscall.SIGKILL); err != nil { // it alone: its child has a group of its own
		t.Fatal(err)
	}
	gone(t, one)
	gone(t, two)
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out")
	bound := func(c *killkit.Command) { c.Output, c.MaxOutput = file, 64<<10 }
	p := start(t, "chatty", bound)
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, name := range []string{file, file + ".1"} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		sum += info.Size()
	}
	if sum > 64<<10 || sum < 32<<10 {
		t.Errorf("%d bytes of output are kept", sum)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(string(b), "ready\n") {
		t.Error("the latest output isn't what was kept")
	}
}

func TestSchedule(t *testing.T) {
	decide := func(seed uint64) (got []int) {
		s, err := killkit.NewSchedule(seed, t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			d := s.Between(time.Second, 2*time.Second)
			if d < time.Second || d > 2*time.Second {
				t.Fatalf("%s isn't between 1s and 2s", d)
			}
			got = append(got, s.Pick(7), int(d))
		}
		return got
	}
	first, again, other := decide(7), decide(7), decide(8)
	if !slices.Equal(first, again) {
		t.Error("the same seed decides otherwise")
	}
	if slices.Equal(first, other) {
		t.Error("other seeds decide the same")
	}
	t.Setenv(killkit.SeedVar, "42")
	if s, err := killkit.NewSchedule(0, t.Logf); err != nil || s.Seed != 42 {
		t.Errorf("seed of the environment: %v, %v", s, err)
	}
	t.Setenv(killkit.SeedVar, "many")
	if _, err := killkit.NewSchedule(0, t.Logf); err == nil {
		t.Error("a seed that is no number was taken")
	}
}

func TestScheduleKills(t *testing.T) {
	t.Parallel()
	p := start(t, "polite")
	s, err := killkit.NewSchedule(1, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(t.Context(), p, 3, 0, 5*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if p.Starts() != 4 || !p.Running() {
		t.Errorf("starts %d, running %t", p.Starts(), p.Running())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Kill(ctx, p, 1, time.Hour, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("a schedule whose context has ended: %v", err)
	}
}
