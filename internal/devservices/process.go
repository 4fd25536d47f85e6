package devservices

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// errPortTaken says that a server found its port in use.
var errPortTaken = errors.New("a port was taken by someone else meanwhile")

// process is a process that we started. A process id is given again to others, so its start time belongs to it.
type process struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // as startOf tells it
	Stop  int    `json:"stop"`  // the signal that asks it to end
	Log   string `json:"log"`
}

// spawn starts a program that outlives this one: a session of its own, its output in a file.
func spawn(cmd *exec.Cmd, log string, stop syscall.Signal) (process, error) {
	out, err := os.Create(log)
	if err != nil {
		return process{}, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setsid = true
	if err := cmd.Start(); err != nil {
		return process{}, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	start, err := startOf(cmd.Process.Pid)
	go func() { _ = cmd.Wait() }() // so that it is no zombie, should it end while we live
	if err != nil {
		_ = cmd.Process.Kill()
		return process{}, fmt.Errorf("start %s: it ended at once: %w", cmd.Path, err)
	}
	return process{PID: cmd.Process.Pid, Start: start, Stop: int(stop), Log: log}, nil
}

// startOf tells when a living process started, in a form that is compared and nothing else.
func startOf(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if _, err := os.Stat("/proc/self/stat"); err == nil {
			return "", fmt.Errorf("no process %d", pid)
		}
		// No proc file system: ps knows, to the second.
		b, err := exec.Command("ps", "-o", "lstart=", "-p", strconv.Itoa(pid)).Output()
		if err != nil || len(bytes.TrimSpace(b)) == 0 {
			return "", fmt.Errorf("no process %d", pid)
		}
		return string(bytes.TrimSpace(b)), nil
	}
	// The second field is the program's name in parentheses and may hold anything; state is the first field after
	// it, the start time, in ticks since boot, the twentieth.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", fmt.Errorf("no process %d", pid)
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return fields[19] + " " + string(bytes.TrimSpace(boot)), nil
}

// alive tells whether the process still runs; another one under its id doesn't count.
func (p process) alive() bool {
	start, err := startOf(p.PID)
	return err == nil && start == p.Start
}

// endAll asks all to end, waits, and kills what remains.
func endAll(ctx context.Context, ps []process) error {
	for _, p := range ps {
		if p.alive() {
			_ = syscall.Kill(p.PID, syscall.Signal(p.Stop))
		}
	}
	if waitAll(ctx, ps, stopLimit) {
		return nil
	}
	for _, p := range ps {
		if p.alive() {
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
		}
	}
	if waitAll(ctx, ps, stopLimit/3) {
		return nil
	}
	var left []string
	for _, p := range ps {
		if p.alive() {
			left = append(left, strconv.Itoa(p.PID))
		}
	}
	return fmt.Errorf("processes %s don't end; end them by hand", strings.Join(left, ", "))
}

func waitAll(ctx context.Context, ps []process, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		alive := false
		for _, p := range ps {
			alive = alive || p.alive()
		}
		if !alive {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
}

// exitError tells of a server that ended instead of becoming ready.
func exitError(name string, p process) error {
	if strings.Contains(strings.ToLower(tailOf(p.Log, 64<<10)), "address already in use") {
		return fmt.Errorf("%s: %w", name, errPortTaken)
	}
	return fmt.Errorf("%s ended while starting; the end of %s:\n%s", name, p.Log, tailOf(p.Log, 2000))
}

func (i *instance) logTail() string {
	if len(i.Processes) == 0 {
		return ""
	}
	return fmt.Sprintf("; the end of %s:\n%s", i.Processes[0].Log, tailOf(i.Processes[0].Log, 2000))
}

func tailOf(file string, bytes int) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-bytes):])
}

// runs runs a program to its end, within limit, and returns what it printed; on an error its last words are in it.
// Of its arguments only the first is named: others may be long, or secret.
func runs(ctx context.Context, limit time.Duration, cmd func(context.Context) *exec.Cmd) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := cmd(ctx)
	c.WaitDelay = 5 * time.Second
	out, err := c.CombinedOutput()
	text := strings.TrimSpace(string(out))
	what := strings.Join(c.Args[:min(2, len(c.Args))], " ")
	if err != nil && ctx.Err() != nil {
		return text, fmt.Errorf("%s: ended after %s: %w", what, limit, ctx.Err())
	}
	if err != nil {
		return text, fmt.Errorf("%s: %w: %s", what, err, text[max(0, len(text)-1000):])
	}
	return text, nil
}

// command is a program with its arguments, for runs.
func command(name string, args ...string) func(context.Context) *exec.Cmd {
	return func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, name, args...) }
}

// root tells whether we may install packages.
func root() bool { return os.Geteuid() == 0 }

// unprivileged is the account that a server runs as which refuses root: the first of the names that exists.
// It is nil where we aren't root.
func unprivileged(names ...string) (*syscall.Credential, error) {
	if !root() {
		return nil, nil
	}
	for _, n := range names {
		u, err := user.Lookup(n)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, fmt.Errorf("none of the accounts %s exists", strings.Join(names, ", "))
}
