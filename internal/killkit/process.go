package killkit

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	defaultMaxOutput = 1 << 20
	defaultReadyWait = 30 * time.Second
	pipeWait         = 2 * time.Second // for output that a lost grandchild still holds open
	dieWait          = 10 * time.Second
	tailBytes        = 4 << 10 // of output, in errors
)

// ErrExited says that the process isn't running.
var ErrExited = errors.New("process has ended")

// Command says what to run.
type Command struct {
	Name string // for messages; default: the last part of Path
	Path string // "" is the running binary itself
	Args []string
	Env  []string // KEY=VALUE, added to this process's
	Dir  string

	// Output is a file that takes what the process writes to standard output and standard error, over all restarts.
	// It holds the latest output: at half of MaxOutput the file moves to Output + ".1", replacing the one before.
	Output    string
	MaxOutput int64 // bytes of both; default 1 MiB

	Ready     Ready         // Start and Restart return once it's met; nil: at once
	ReadyWait time.Duration // how long that may take; default 30 s
}

// Process is a started command. Its methods are safe for concurrent use.
type Process struct {
	cmd Command
	ctx context.Context
	out *output

	mu     sync.Mutex
	run    *run
	starts int
}

// run is one life of the process.
type run struct {
	exec *exec.Cmd
	pid  int
	done chan struct{} // closed when it has ended
	err  error         // how, once done is closed
}

// Start runs a command and waits until it's ready. The process is killed when ctx ends, and when it doesn't become
// ready.
func Start(ctx context.Context, cmd Command) (*Process, error) {
	if cmd.Path == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the running binary: %w", err)
		}
		cmd.Path = self
	}
	if cmd.Name == "" {
		cmd.Name = cmd.Path[strings.LastIndexByte(cmd.Path, os.PathSeparator)+1:]
	}
	if cmd.MaxOutput <= 0 {
		cmd.MaxOutput = defaultMaxOutput
	}
	if cmd.ReadyWait <= 0 {
		cmd.ReadyWait = defaultReadyWait
	}
	p := &Process{cmd: cmd, ctx: ctx, out: &output{path: cmd.Output, max: cmd.MaxOutput}}
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Process) start(ctx context.Context) error {
	if err := p.ctx.Err(); err != nil {
		return fmt.Errorf("start %s: %w", p.cmd.Name, err)
	}
	if err := p.out.open(); err != nil {
		return fmt.Errorf("start %s: %w", p.cmd.Name, err)
	}
	r := &run{exec: exec.Command(p.cmd.Path, p.cmd.Args...), done: make(chan struct{})}
	r.exec.Env = append(os.Environ(), p.cmd.Env...)
	r.exec.Dir = p.cmd.Dir
	r.exec.Stdout, r.exec.Stderr = p.out, p.out
	r.exec.WaitDelay = pipeWait
	r.exec.SysProcAttr = attributes()

	started := make(chan error)
	go r.live(started, p.out)
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.cmd.Name, err)
	}
	stop := context.AfterFunc(p.ctx, r.kill)
	go func() {
		<-r.done
		stop()
	}()
	p.mu.Lock()
	p.run = r
	p.starts++
	p.mu.Unlock()
	return p.await(ctx, r)
}

// live starts the process and sees it off, on one thread that belongs to it: Linux sends the death signal when the
// thread that forked ends, not the process (https://go.dev/issue/27505).
func (r *run) live(started chan<- error, out *output) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := r.exec.Start(); err != nil {
		out.close()
		started <- err
		return
	}
	r.pid = r.exec.Process.Pid
	started <- nil
	if awaitExit(r.pid) {
		_ = r.signal(killSignal) // what it left of its group, while its id can't be another's
	}
	r.err = r.exec.Wait()
	out.close()
	close(r.done)
}

// await waits for the ready condition.
func (p *Process) await(ctx context.Context, r *run) error {
	if p.cmd.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, p.cmd.ReadyWait)
	defer cancel()
	go func() {
		select {
		case <-r.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := p.cmd.Ready(ctx, p)
	if err == nil {
		return nil
	}
	select {
	case <-r.done:
		return fmt.Errorf("%s ended before it was ready: %w; its last output:\n%s", p.cmd.Name, exit(r.err), p.Tail())
	default:
	}
	r.kill()
	<-r.done
	return fmt.Errorf("%s didn't get ready: %w; its last output:\n%s", p.cmd.Name, err, p.Tail())
}

// exit is how a process ended, as an error also where it ended well.
func exit(err error) error {
	if err == nil {
		return fmt.Errorf("%w with status 0", ErrExited)
	}
	return fmt.Errorf("%w: %w", ErrExited, err)
}

func (p *Process) current() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// signal signals the group, unless it's gone.
func (r *run) signal(s syscall.Signal) error {
	return signalGroup(r.pid, s)
}

func (r *run) kill() {
	select {
	case <-r.done:
	default:
		_ = r.signal(killSignal) // where it fails the group has just ended
	}
}

// Kill kills the process and its group, and returns when it's gone. Killing one that has ended is no error.
func (p *Process) Kill() error {
	r := p.current()
	r.kill()
	select {
	case <-r.done:
		return nil
	case <-time.After(dieWait):
		return fmt.Errorf("kill %s: process %d is still there after %s", p.cmd.Name, r.pid, dieWait)
	}
}

// Pause stops the process and its group (SIGSTOP) where it stands; Resume lets it go on.
func (p *Process) Pause() error { return p.send("pause", stopSignal) }

// Resume lets a paused process go on (SIGCONT).
func (p *Process) Resume() error { return p.send("resume", continueSignal) }

func (p *Process) send(what string, s syscall.Signal) error {
	r := p.current()
	select {
	case <-r.done:
		return fmt.Errorf("%s %s: %w", what, p.cmd.Name, exit(r.err))
	default:
	}
	if err := r.signal(s); err != nil {
		return fmt.Errorf("%s %s: %w", what, p.cmd.Name, err)
	}
	return nil
}

// Terminate asks the process to end (SIGTERM), and kills it when it hasn't after timeout, which is an error. One that
// ends with a status other than 0 is an error too.
func (p *Process) Terminate(timeout time.Duration) error {
	r := p.current()
	if err := p.send("terminate", termSignal); err != nil {
		return err
	}
	_ = r.signal(continueSignal) // a paused process wouldn't notice
	select {
	case <-r.done:
		if r.err != nil {
			return fmt.Errorf("terminate %s: %w", p.cmd.Name, r.err)
		}
		return nil
	case <-time.After(timeout):
	}
	err := fmt.Errorf("terminate %s: it didn't end within %s and was killed; its last output:\n%s", p.cmd.Name, timeout, p.Tail())
	return errors.Join(err, p.Kill())
}

// Restart kills the process where it runs, starts it again and waits until it's ready.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Kill(); err != nil {
		return err
	}
	return p.start(ctx)
}

// Wait waits for the process to end by itself; its error is that of a status other than 0 or a signal.
func (p *Process) Wait(ctx context.Context) error {
	r := p.current()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", p.cmd.Name, ctx.Err())
	}
}

// Running tells whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.current().done:
		return false
	default:
		return true
	}
}

// Pid is the id of the process, and of its group.
func (p *Process) Pid() int { return p.current().pid }

// Starts counts how often the process was started.
func (p *Process) Starts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts
}

// Tail is the last output, at most 4 KiB.
func (p *Process) Tail() string { return p.out.tail() }
