package devservices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// state is what runs, as the cache folder remembers it.
type state struct {
	file      string
	Instances map[string]*instance `json:"instances"`
}

// instance is one running service.
type instance struct {
	How        string    `json:"how"` // docker or native
	Version    string    `json:"version"`
	Address    string    `json:"address"`
	Since      time.Time `json:"since"`
	Processes  []process `json:"processes,omitempty"`
	Containers []string  `json:"containers,omitempty"`
	Network    string    `json:"network,omitempty"` // of the containers
	Folders    []string  `json:"folders,omitempty"` // its data; goes with it
}

func loadState(file string) (*state, error) {
	s := &state{file: file}
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read the state of services: %w", err)
	}
	if err == nil {
		if err := json.Unmarshal(b, s); err != nil {
			return nil, fmt.Errorf("read the state of services in %s: %w; end what still runs by hand and remove the file", file, err)
		}
	}
	if s.Instances == nil {
		s.Instances = make(map[string]*instance)
	}
	return s, nil
}

// save replaces the file as a whole. It holds a password, so it is its owner's alone.
func (s *state) save() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write the state of services: %w", err)
	}
	if err := os.WriteFile(s.file+".new", b, 0o600); err != nil {
		return fmt.Errorf("write the state of services: %w", err)
	}
	if err := os.Rename(s.file+".new", s.file); err != nil {
		return fmt.Errorf("write the state of services: %w", err)
	}
	return nil
}

// lock holds the cache folder while services are started or stopped, so that two calls don't start them twice.
func lock(ctx context.Context, file string, logf func(string, ...any)) (unlock func(), err error) {
	l := flock.New(file)
	got, err := l.TryLock()
	if err == nil && !got {
		logf("waiting for another start or stop in %s", filepath.Dir(file))
		ctx, cancel := context.WithTimeout(ctx, getLimit)
		defer cancel()
		_, err = l.TryLockContext(ctx, 200*time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w; another start or stop of the services may hang there", file, err)
	}
	return func() { _ = l.Unlock() }, nil
}

// running tells whether all parts of a service are there.
func (d *desk) running(ctx context.Context, i *instance) bool {
	for _, p := range i.Processes {
		if !p.alive() {
			return false
		}
	}
	for _, c := range i.Containers {
		if !containerRuns(ctx, c) {
			return false
		}
	}
	return len(i.Processes)+len(i.Containers) > 0
}

// stop ends one service and forgets it. On an error it stays on record, so that stop can be called again.
func (d *desk) stop(ctx context.Context, name string) error {
	i := d.state.Instances[name]
	if i == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*stopLimit)
	defer cancel()
	if err := endAll(ctx, i.Processes); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	if err := removeContainers(ctx, i.Containers, i.Network); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	for _, f := range i.Folders {
		if err := os.RemoveAll(f); err != nil {
			return fmt.Errorf("stop %s: remove its data: %w", name, err)
		}
	}
	if len(i.Processes)+len(i.Containers) > 0 {
		d.logf("%s: stopped", name)
	}
	delete(d.state.Instances, name)
	return d.state.save()
}
