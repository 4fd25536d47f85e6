package app

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/salt"
)

const (
	defaultPartitions = 8
	// deadRetention is how long dead letters are kept where a topic is made for them: long enough for people to come
	// back to them.
	deadRetention    = 30 * 24 * time.Hour
	journalRetention = 30 * 24 * time.Hour
)

// createTopics makes the declared topics, those that agents name, and a dead-letter topic for each that is read, with
// as many partitions as that one has. Those that exist are left alone, and nothing is asked for that would need the
// right to create topics then.
func (a *App) createTopics(ctx context.Context) error {
	if err := a.createMissing(ctx, a.declaredTopics()); err != nil {
		return err
	}
	var dead []broker.TopicSpec
	known := map[string]bool{}
	for _, t := range a.config.Topics {
		known[t.Name] = true
	}
	for _, g := range a.config.Agents {
		for _, t := range g.Reads {
			name := engine.DeadTopic(t)
			if known[name] {
				continue
			}
			known[name] = true
			source, err := a.broker.Topics(ctx, t)
			if err != nil {
				return err
			}
			dead = append(dead, broker.TopicSpec{Name: name, Partitions: source[0].Partitions,
				Config: map[string]string{"retention.ms": strconv.FormatInt(deadRetention.Milliseconds(), 10)}})
		}
	}
	return a.createMissing(ctx, dead)
}

// createJournal makes the journal's topic: with one partition, since what happened is read in order and is little.
func (a *App) createJournal(ctx context.Context) error {
	if a.config.Journal == "" {
		return nil
	}
	err := a.createMissing(ctx, []broker.TopicSpec{{Name: a.config.Journal, Partitions: 1, Config: map[string]string{
		"cleanup.policy": "delete", "retention.ms": strconv.FormatInt(journalRetention.Milliseconds(), 10)}}})
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case a.config.JournalAsked:
		return fmt.Errorf("make the journal's topic: %w; make it yourself, or write journal: off", err)
	}
	a.log.Warn("nothing is journalled, since the topic can't be made: make it yourself, or write journal: off", "topic", a.config.Journal, "error", err)
	a.config.Journal = ""
	return nil
}

// commutative are the topics whose hot keys are spread.
func (a *App) commutative() *salt.Topics {
	var names []string
	for _, t := range a.config.Topics {
		if t.Commutative {
			names = append(names, t.Name)
		}
	}
	return salt.New(func(c salt.Change) {
		text := "a key dominates its topic; its records are spread"
		if !c.On {
			text = "a key no longer dominates its topic; its records stay together again"
		}
		a.log.Info(text, "topic", c.Topic, "key", c.Key, "share", c.Share)
	}, salt.Options{}, names...)
}

// declaredTopics are the topics that the swarm names, in order.
func (a *App) declaredTopics() []broker.TopicSpec {
	specs := append([]broker.TopicSpec(nil), a.config.Topics...)
	known := map[string]bool{}
	for _, s := range specs {
		known[s.Name] = true
	}
	want := func(names ...string) {
		for _, n := range names {
			if !known[n] {
				known[n] = true
				specs = append(specs, broker.TopicSpec{Name: n, Partitions: defaultPartitions})
			}
		}
	}
	for _, g := range a.config.Agents {
		want(g.Reads...)
		want(g.Emits...)
	}
	for _, s := range a.config.Sources {
		want(s.Emits...)
	}
	return specs
}

func (a *App) createMissing(ctx context.Context, specs []broker.TopicSpec) error {
	var missing []broker.TopicSpec
	for _, s := range specs {
		switch _, err := a.broker.Topics(ctx, s.Name); {
		case errors.Is(err, broker.ErrNoTopic):
			missing = append(missing, s)
		case err != nil:
			return err
		}
	}
	return a.broker.Create(ctx, missing...)
}
