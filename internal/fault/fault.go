// Package fault owns what an error means: its class, which decides between
// trying again, dead-lettering and stopping, and its code, which Go, HTTP and
// the command line share. It imports nothing of ours and keeps no state.
package fault

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Class says what is to be done about an error.
type Class int

const (
	// Transient errors are tried again with back-off. Errors without a class are transient.
	Transient Class = iota
	// Unavailable errors say that something the step depends on is down: tried again without a limit of attempts,
	// since no record is to blame.
	Unavailable
	// Permanent errors dead-letter their record at once: trying again can't help.
	Permanent
	// Fatal errors stop the agent: going on would break a promise.
	Fatal
)

func (c Class) String() string {
	switch c {
	case Unavailable:
		return "unavailable"
	case Permanent:
		return "permanent"
	case Fatal:
		return "fatal"
	default:
		return "transient"
	}
}

type classified struct {
	error
	class Class
}

func (c *classified) Unwrap() error { return c.error }

// As gives err a class. A nil err stays nil.
func As(class Class, err error) error {
	if err == nil {
		return nil
	}
	return &classified{error: err, class: class}
}

// Permanentf is As(Permanent, fmt.Errorf(…)).
func Permanentf(format string, args ...any) error {
	return As(Permanent, fmt.Errorf(format, args...))
}

// Fatalf is As(Fatal, fmt.Errorf(…)).
func Fatalf(format string, args ...any) error {
	return As(Fatal, fmt.Errorf(format, args...))
}

// ClassOf is the class of the outermost classified error in err's chain.
// A cancelled context is transient, whatever wraps it.
func ClassOf(err error) Class {
	if errors.Is(err, context.Canceled) {
		return Transient
	}
	var c *classified
	if errors.As(err, &c) {
		return c.class
	}
	return Transient
}

// blamed is an error with the name of what it came from, and how long that asks to be left alone.
type blamed struct {
	error
	dependency string
	after      time.Duration
}

func (b *blamed) Unwrap() error { return b.error }

// On names what an error came from: a model's server, an HTTP API, a database, anything that many steps depend on and
// that can be down for all of them. The name is for people and tells dependencies apart; it must hold no secret, and
// there should be few of them (a host, not an address with ids). A nil err stays nil.
func On(dependency string, err error) error {
	if err == nil {
		return nil
	}
	return &blamed{error: err, dependency: dependency}
}

// After says how long what err came from asks to be left alone, as Retry-After does. A nil err stays nil.
func After(d time.Duration, err error) error {
	if err == nil || d <= 0 {
		return err
	}
	return &blamed{error: err, after: d}
}

// DependencyOf is what err came from: the outermost name in its chain, or "".
func DependencyOf(err error) string {
	for b := (*blamed)(nil); errors.As(err, &b); err = b.error {
		if b.dependency != "" {
			return b.dependency
		}
	}
	return ""
}

// AfterOf is how long what err came from asks to be left alone, or 0.
func AfterOf(err error) time.Duration {
	for b := (*blamed)(nil); errors.As(err, &b); err = b.error {
		if b.after > 0 {
			return b.after
		}
	}
	return 0
}
