package app

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"

	"github.com/swarmlog/swarmlog/internal/agents"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/inference"
	"github.com/swarmlog/swarmlog/ledger"
)

// declared is a swarm.yaml on its way to a Config: it holds what built-in agents need once the ledger is open.
type declared struct {
	swarm  *config.Swarm
	log    *slog.Logger
	ledger ledger.Ledger
	models *inference.Service
	built  []agents.Built

	mu    sync.Mutex
	scans map[string]agents.Scan
}

// FromSwarm makes a Config of a swarm.yaml, on a data folder.
func FromSwarm(s *config.Swarm, data string, log *slog.Logger) (Config, error) {
	d := &declared{swarm: s, log: log, scans: map[string]agents.Scan{}}
	c := Config{Name: s.Name, Data: data, Logger: log, Opened: d.opened, Closed: d.closed, Kinds: map[string]string{},
		ModelLine: modelLine(s), Index: Index{Count: count, Search: search, Pages: pages, Notes: d.notes}}
	for _, t := range s.Topics {
		c.Topics = append(c.Topics, broker.TopicSpec{Name: t.Name, Partitions: t.Partitions, Replicas: t.Replicas, Config: t.Config})
	}
	absolute, err := filepath.Abs(data)
	if err != nil {
		return Config{}, fmt.Errorf("make data folder %s absolute: %w", data, err)
	}
	deps := agents.Deps{Read: d.read, Exclude: []string{absolute}, Cache: filepath.Join(absolute, "cache"), OnScan: d.scanned, Logger: log}
	for _, a := range s.Agents {
		built, err := agents.Build(a, deps)
		if err != nil {
			d.closed()
			return Config{}, err
		}
		d.built = append(d.built, built)
		c.Kinds[a.Name] = "built-in " + string(a.Kind)
		if built.Source != nil {
			c.Sources = append(c.Sources, *built.Source)
		} else {
			c.Agents = append(c.Agents, *built.Agent)
		}
	}
	return c, nil
}

// opened makes the tables that people's queries read, and the service that answers model calls.
func (d *declared) opened(ctx context.Context, l ledger.Ledger) (engine.Inferrer, error) {
	d.ledger = l
	if err := l.Setup(ctx, agents.Setup); err != nil {
		return nil, err
	}
	models, err := inference.New(l, d.swarm.Models, inference.Options{Tenant: d.swarm.Name, Logger: d.log})
	if err != nil {
		return nil, err
	}
	d.models = models
	return models, nil
}

func (d *declared) closed() {
	for _, b := range d.built {
		b.Close()
	}
	if d.models != nil {
		d.models.Close()
	}
}

func (d *declared) read(ctx context.Context, f func(context.Context, ledger.Tx) error) error {
	return d.ledger.Read(ctx, f)
}

func (d *declared) scanned(agent string, s agents.Scan) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.scans[agent] = s
}

// notes tells of files that nobody reads.
func (d *declared) notes() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var notes []string
	for _, s := range d.scans {
		if s.Unsupported > 0 {
			notes = append(notes, fmt.Sprintf("%d files of other kinds were left alone; read are .txt, .md, .html and .pdf", s.Unsupported))
		}
	}
	return notes
}

func modelLine(s *config.Swarm) string {
	if names := s.BuiltinAgents(); len(names) > 0 {
		return strings.Join(names, " and ") + " use the built-in model (extractive summaries, hashed n-gram vectors); " +
			"for a real one set OPENAI_BASE_URL and OPENAI_API_KEY, or models in " + filepath.Base(s.File)
	}
	var used []string
	for _, a := range s.Agents {
		if m := s.Model(a.Model); m != nil {
			used = append(used, fmt.Sprintf("%s: %s", a.Name, m.Model))
		}
	}
	return strings.Join(used, ", ")
}

func count(ctx context.Context, tx ledger.Tx) (documents, pages int64, err error) {
	c, err := agents.Count(ctx, tx)
	return c.Split, c.Complete, err
}

func search(ctx context.Context, tx ledger.Tx, words string, limit int) ([]httpapi.Hit, error) {
	found, err := agents.Search(ctx, tx, words, limit)
	hits := make([]httpapi.Hit, len(found))
	for i, h := range found {
		hits[i] = httpapi.Hit{Document: h.Name, Path: h.Path, Page: h.Page, Part: h.Part, Excerpt: h.Excerpt, Score: h.Score}
	}
	return hits, err
}

func pages(ctx context.Context, tx ledger.Tx, yield func(httpapi.Page) error) error {
	return agents.Pages(ctx, tx, func(p agents.PageRow) error {
		return yield(httpapi.Page{Document: p.Name, Path: p.Path, Page: p.Page, Part: p.Part, SHA256: p.SHA256, Summary: p.Summary, Steps: p.Steps})
	})
}
