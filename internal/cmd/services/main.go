// Command services starts and stops the servers that tests need, as package
// devservices gets them. It is run by the Makefile:
//
//	services start [NAME…]             start, and print export lines
//	services stop [NAME…]              end what start started, and nothing else
//	services status                    tell what runs
//	services ensure NAME               get one and print its address or path
//	services run [NAME…] -- COMMAND…   start, run a command with the addresses in its environment, stop
//
// Progress goes to standard error. Exit code 0: done; 1: a service can't be
// had, or the command failed; 2: usage. Where a service can't be had, run goes
// on without it and says so at its end; in continuous integration (CI=true)
// that is a failure.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/swarmlog/swarmlog/internal/devservices"
)

const usage = `usage: services start [NAME…] | stop [NAME…] | status | ensure NAME | run [NAME…] -- COMMAND…
names: kafka, postgres, chromium, promtool; without any: kafka and postgres`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

func run(ctx context.Context, args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	o := devservices.Options{Logf: func(format string, args ...any) { fmt.Fprintf(os.Stderr, "services: "+format+"\n", args...) }}
	var err error
	switch verb, rest := args[0], args[1:]; verb {
	case "start":
		err = start(ctx, o, rest)
	case "stop":
		err = devservices.Stop(ctx, o, rest...)
	case "status":
		err = status(ctx, o)
	case "ensure":
		err = ensure(ctx, o, rest)
	case "run":
		return runWith(ctx, o, rest)
	default:
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "services:", err)
		return 1
	}
	return 0
}

// start prints what a shell evaluates: one line of exports.
func start(ctx context.Context, o devservices.Options, names []string) error {
	r, err := devservices.Start(ctx, o, names...)
	if err != nil {
		return err
	}
	if env := r.Env(); len(env) > 0 {
		fmt.Println("export " + strings.Join(quote(env), " "))
	}
	return missing(r)
}

// quote puts values into single quotes, for a shell.
func quote(env []string) []string {
	out := make([]string, len(env))
	for i, e := range env {
		name, value, _ := strings.Cut(e, "=")
		out[i] = name + "='" + strings.ReplaceAll(value, "'", `'\''`) + "'"
	}
	return out
}

func missing(r *devservices.Report) error {
	var errs []error
	for _, m := range r.Missing {
		errs = append(errs, fmt.Errorf("%s can't be had: %w", m.Name, m.Err))
	}
	return errors.Join(errs...)
}

func status(ctx context.Context, o devservices.Options) error {
	list, err := devservices.List(ctx, o)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		fmt.Println("no services run; make services starts them")
	}
	for _, s := range list {
		state := "runs"
		if !s.Running {
			state = "has ended (make services starts it anew)"
		}
		fmt.Printf("%-9s %s since %s  %s, %s, %s\n", s.Name, state, s.Since.Local().Format(time.DateTime), s.Version, s.How, s.Address)
	}
	return nil
}

func ensure(ctx context.Context, o devservices.Options, names []string) error {
	if len(names) != 1 {
		return errors.New("ensure takes one name: kafka, postgres, chromium or promtool")
	}
	r, err := devservices.Start(ctx, o, names...)
	if err != nil {
		return err
	}
	for _, e := range r.Env() {
		_, value, _ := strings.Cut(e, "=")
		fmt.Println(value)
	}
	return missing(r)
}

// runWith runs a command beside the services; it ends those that it started itself, whatever comes of the command.
func runWith(ctx context.Context, o devservices.Options, args []string) int {
	at := slices.Index(args, "--")
	if at < 0 || at == len(args)-1 {
		fmt.Fprintln(os.Stderr, usage)
		return 2
	}
	r, err := devservices.Start(ctx, o, args[:at]...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "services:", err)
		return 1
	}
	code := 1
	lack := missing(r)
	switch {
	case ctx.Err() != nil:
		lack = nil // interrupted: that is why
	case lack == nil || !devservices.InCI():
		code = execute(ctx, args[at+1:], r.Env())
	}
	if started := slices.DeleteFunc(r.Started, func(n string) bool { return n == devservices.Chromium }); len(started) > 0 {
		// The context may be cancelled by now: the clean-up runs all the same, bounded by its own limits.
		if err := devservices.Stop(context.WithoutCancel(ctx), o, started...); err != nil {
			fmt.Fprintln(os.Stderr, "services:", err)
			code = max(code, 1)
		}
	}
	if lack != nil {
		bar := strings.Repeat("!", 78)
		fmt.Fprintf(os.Stderr, "%s\nNOT EVERYTHING RAN. Tests that need these did not:\n%v\n%s\n", bar, lack, bar)
	}
	return code
}

// execute runs the command to its end; an interrupt is passed on to it, and after a while it is killed.
func execute(ctx context.Context, args, env []string) int {
	c := exec.CommandContext(ctx, args[0], args[1:]...)
	c.Env = append(os.Environ(), env...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = 20 * time.Second
	err := c.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode()
	default:
		fmt.Fprintf(os.Stderr, "services: run %s: %v\n", args[0], err)
		return 1
	}
}
