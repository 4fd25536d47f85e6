package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
)

// Key says where a secret is, never what it is.
type Key struct {
	Env  string // a variable of the environment
	File string // or a file; blanks around its content don't count
}

// IsZero tells that no key is sent.
func (k Key) IsZero() bool { return k == Key{} }

func (k Key) String() string {
	switch {
	case k.Env != "":
		return "environment variable " + k.Env
	case k.File != "":
		return "file " + k.File
	}
	return "no key"
}

// Secret is a secret that no formatting, marshalling or logging shows.
type Secret struct{ value string }

// NewSecret wraps a secret.
func NewSecret(value string) Secret { return Secret{value} }

// Reveal is the secret itself, for the request that carries it.
func (s Secret) Reveal() string { return s.value }

func (Secret) String() string                    { return "[secret]" }
func (Secret) GoString() string                  { return "[secret]" }
func (Secret) MarshalText() ([]byte, error)      { return []byte("[secret]"), nil }
func (Secret) LogValue() slog.Value              { return slog.StringValue("[secret]") }
func (Secret) Format(state fmt.State, verb rune) { _, _ = fmt.Fprint(state, "[secret]") }

// Resolve reads the secret. A zero Key is an empty one.
func (k Key) Resolve() (Secret, error) { return k.secret("the key of the model's server") }

// Credential reads the secret where it's one of a broker's: what says which, for people.
func (k Key) Credential(what string) (Secret, error) { return k.secret(what) }

// secret reads it; what says what it is.
func (k Key) secret(what string) (Secret, error) {
	var value string
	switch {
	case k.Env != "":
		value = os.Getenv(k.Env)
		if strings.TrimSpace(value) == "" {
			return Secret{}, fmt.Errorf("environment variable %s isn't set: set it to %s", k.Env, what)
		}
	case k.File != "":
		b, err := os.ReadFile(k.File)
		if err != nil {
			return Secret{}, fmt.Errorf("read a secret: %w; write %s into this file", err, what)
		}
		value = string(b)
	default:
		return Secret{}, nil
	}
	value = strings.TrimSpace(value)
	if value == "" || strings.ContainsAny(value, "\r\n") {
		return Secret{}, errors.New("the secret in " + k.String() + " is empty or has several lines: it must be " + what + ", alone")
	}
	return Secret{value}, nil
}
