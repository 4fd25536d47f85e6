package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/internal/engine"
)

const (
	// reachEvery is the time between two looks at servers, reachTime what one look may take.
	reachEvery = 2 * time.Second
	reachTime  = 5 * time.Second
	// openTime bounds connecting to a cluster at the start.
	openTime = 30 * time.Second
)

// reach knows which servers that are elsewhere can be reached: an idle worker commits nothing, and would notice only
// when there's work again.
type reach struct {
	servers []*server
	now     func() time.Time
}

type server struct {
	name  string
	probe func(ctx context.Context) error

	mu    sync.Mutex
	err   error // of the last look
	since time.Time
}

// watchServers looks at the servers every few seconds until the app is closed. An outage is told once, and its end.
func (a *App) watchServers(ctx context.Context) error {
	r := &reach{now: time.Now}
	if topic := a.anyTopic(); a.config.Kafka != nil && topic != "" {
		r.servers = append(r.servers, &server{name: "Kafka", probe: func(ctx context.Context) error {
			_, err := a.broker.Topics(ctx, topic)
			return err
		}})
	}
	if a.config.Postgres != nil {
		r.servers = append(r.servers, &server{name: "PostgreSQL", probe: func(ctx context.Context) error {
			_, err := a.ledger.Workers(ctx, time.Second)
			return err
		}})
	}
	a.reach = r
	if len(r.servers) == 0 {
		return nil
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	for _, s := range r.servers {
		running.Go(func() { a.watch(watching, s) })
	}
	a.onClose("watch of servers", func(context.Context) error { stop(); running.Wait(); return nil })
	return nil
}

func (a *App) watch(ctx context.Context, s *server) {
	tick := time.NewTicker(reachEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		asking, cancel := context.WithTimeout(ctx, reachTime)
		err := s.probe(asking)
		cancel()
		if ctx.Err() != nil {
			return
		}
		switch down, changed := s.note(err, a.reach.now()); {
		case changed && err != nil:
			a.log.WarnContext(ctx, "a server can't be reached: work waits, nothing is given up, and it goes on by itself once the server is back",
				"server", s.name, "error", err)
		case changed:
			a.log.InfoContext(ctx, "a server can be reached again", "server", s.name, "after", down.Round(time.Second))
		}
	}
}

// note keeps what a look found, and tells whether that's news, and how long it was otherwise.
func (s *server) note(err error, now time.Time) (down time.Duration, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed = (err == nil) != (s.err == nil)
	if changed {
		down = now.Sub(s.since)
		s.since = now
	}
	s.err = err
	return down, changed
}

// troubles are the servers that can't be reached now.
func (r *reach) troubles() []string {
	if r == nil {
		return nil
	}
	var all []string
	for _, s := range r.servers {
		s.mu.Lock()
		if s.err != nil {
			all = append(all, fmt.Sprintf("%s can't be reached since %s: %s", s.name, s.since.UTC().Format(time.RFC3339), engine.FirstLine(s.err.Error())))
		}
		s.mu.Unlock()
	}
	return all
}

// anyTopic is a topic that this process needs, or "".
func (a *App) anyTopic() string {
	for _, t := range a.declaredTopics() {
		return t.Name
	}
	return ""
}
