package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/internal/agents"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/inference"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

// queryTime bounds embedding what a person looks for.
const queryTime = 10 * time.Second

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

// FromSwarm makes a Config of a swarm.yaml, on a data folder: everything embedded.
func FromSwarm(s *config.Swarm, data string, log *slog.Logger) (Config, error) {
	absolute, err := filepath.Abs(data)
	if err != nil {
		return Config{}, fmt.Errorf("make data folder %s absolute: %w", data, err)
	}
	c, err := fromSwarm(s, agents.Deps{Exclude: []string{absolute}, Cache: filepath.Join(absolute, "cache"), Logger: log})
	c.Data = data
	return c, err
}

// OnServers makes a Config of a swarm.yaml for one worker among several, on the servers that its settings name.
func OnServers(s *config.Swarm, log *slog.Logger) (Config, error) {
	if err := s.NeedsServers(s.File); err != nil {
		return Config{}, err
	}
	kafka, err := kafkaOptions(s.Kafka)
	if err != nil {
		return Config{}, err
	}
	postgres, err := postgresOptions(s.Postgres)
	if err != nil {
		return Config{}, err
	}
	cache := ""
	if folder, err := os.UserCacheDir(); err == nil { // else the PDF reader is compiled at each start
		cache = filepath.Join(folder, "swarmlog")
	}
	c, err := fromSwarm(s, agents.Deps{Cache: cache, Logger: log})
	if err != nil {
		return Config{}, err
	}
	c.Kafka, c.Postgres, c.Examine, c.AcceptRisk = kafka, postgres, true, s.AcceptRisk
	c.Worker, c.Pool = s.Worker.WorkerID(drawnEnd()), s.Worker.Pool
	c.LeaseTime, c.Drain, c.Membership = s.Worker.LeaseTime, s.Worker.Drain, engine.Membership(s.Kafka.Membership)
	if s.Journal == "" { // several workers, of whom something can be told
		c.Journal = s.Name + ".journal"
	}
	for i := range c.Agents {
		if a := s.Agent(c.Agents[i].Name); a != nil { // what compares a shadow runs anywhere
			c.Agents[i].Pool = a.Pool
		}
	}
	for i := range c.Sources {
		c.Sources[i].Pool = s.Agent(c.Sources[i].Name).Pool
	}
	return c, nil
}

// fromSwarm makes what doesn't depend on where broker and ledger are.
func fromSwarm(s *config.Swarm, deps agents.Deps) (Config, error) {
	d := &declared{swarm: s, log: deps.Logger, scans: map[string]agents.Scan{}}
	c := Config{Name: s.Name, File: s.File, Logger: deps.Logger, StuckAfter: s.Worker.StuckAfter, Opened: d.opened, Closed: d.closed, Kinds: map[string]string{},
		ModelLine: modelLine(s), Index: Index{Count: count, Search: d.search, Pages: pages, Dead: d.dead, Notes: d.notes}}
	if s.Journal != config.JournalOff {
		c.Journal, c.JournalAsked = s.Journal, s.Journal != ""
	}
	for _, t := range s.Topics {
		c.Topics = append(c.Topics, broker.TopicSpec{Name: t.Name, Partitions: t.Partitions, Replicas: t.Replicas, Config: t.Config, Commutative: t.Commutative})
	}
	deps.Read, deps.OnScan = d.read, d.scanned
	if err := d.build(&c, deps); err != nil {
		d.closed()
		return Config{}, err
	}
	return c, nil
}

// build makes the agents, and beside those that have a new version what runs and compares it.
func (d *declared) build(c *Config, deps agents.Deps) error {
	byName := map[string]*engine.Agent{}
	for _, a := range d.swarm.Agents {
		built, err := agents.Build(a, deps)
		if err != nil {
			return err
		}
		d.built = append(d.built, built)
		c.Kinds[a.Name] = "built-in " + string(a.Kind)
		switch {
		case built.Source != nil:
			c.Sources = append(c.Sources, *built.Source)
			continue
		case a.ShadowOf == "":
			c.Agents = append(c.Agents, *built.Agent)
		default:
			c.Kinds[a.Name] = fmt.Sprintf("built-in %s, shadow of %s", a.Kind, a.ShadowOf)
		}
		byName[a.Name] = built.Agent
	}
	for _, a := range d.swarm.Agents {
		if a.ShadowOf == "" {
			continue
		}
		beside, err := engine.Shadow(*byName[a.ShadowOf], *byName[a.Name])
		if err != nil {
			return err
		}
		c.Agents = append(c.Agents, beside...)
		for _, one := range beside {
			if c.Kinds[one.Name] == "" {
				c.Kinds[one.Name] = kindInternal
			}
		}
	}
	return nil
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

// dead names the files that dead letters are about; with several inputs by their paths, since names may repeat.
func (d *declared) dead(ctx context.Context, tx ledger.Tx, letters []status.DeadLetter) ([]status.DeadLetter, error) {
	ask := make([]agents.Letter, len(letters))
	for i, l := range letters {
		ask[i] = agents.Letter{Subject: l.Subject, Reason: l.Reason}
	}
	about, err := agents.Letters(ctx, tx, ask)
	if err != nil {
		return nil, err
	}
	inputs := 0
	for _, a := range d.swarm.Agents {
		inputs += len(a.Input)
	}
	named := make([]status.DeadLetter, 0, len(letters))
	for i, l := range letters {
		if about[i] == nil {
			named = append(named, l)
		}
		for _, f := range about[i] {
			one := l
			one.Subject, one.Reason = f.Name, strings.TrimPrefix(l.Reason, f.Path+": ")
			if inputs > 1 {
				one.Subject = f.Path
			}
			if f.Page > 0 {
				one.Subject += fmt.Sprintf(", page %d", f.Page)
			}
			named = append(named, one)
		}
	}
	return named, nil
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

// search finds pages by words and by likeness. The query is embedded by the model that embedded the pages, before the
// ledger is read; where that model is away, words alone have to do.
func (d *declared) search(ctx context.Context, l Readable, words string, limit int) ([]httpapi.Hit, error) {
	model := d.embedding()
	if model == "" {
		return search(ctx, l, words, limit)
	}
	asking, cancel := context.WithTimeout(ctx, queryTime)
	answer, err := d.models.Query(asking, model, words)
	cancel()
	if err != nil {
		d.log.Warn("a search goes by words alone, since its query can't be embedded", "model", model, "error", err)
	}
	return find(ctx, l, func(ctx context.Context, tx ledger.Tx) ([]agents.Hit, error) {
		return agents.SearchWith(ctx, tx, words, agents.Vectored{Vector: answer.Vector, Model: answer.Model}, limit)
	})
}

// embedding is the model, other than the built-in one, by which pages are embedded; "": the built-in one.
func (d *declared) embedding() string {
	for _, a := range d.swarm.Agents {
		if m := d.swarm.Model(a.Model); a.Kind == config.Embedder && m != nil && m.Provider != config.Builtin {
			return a.Model
		}
	}
	return ""
}

// search finds pages with the built-in model.
func search(ctx context.Context, l Readable, words string, limit int) ([]httpapi.Hit, error) {
	return find(ctx, l, func(ctx context.Context, tx ledger.Tx) ([]agents.Hit, error) {
		return agents.Search(ctx, tx, words, limit)
	})
}

func find(ctx context.Context, l Readable, by func(context.Context, ledger.Tx) ([]agents.Hit, error)) ([]httpapi.Hit, error) {
	var hits []httpapi.Hit
	err := l.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
		found, err := by(ctx, tx)
		hits = make([]httpapi.Hit, len(found))
		for i, h := range found {
			hits[i] = httpapi.Hit{Document: h.Name, Path: h.Path, Page: h.Page, Part: h.Part, Excerpt: h.Excerpt, Score: h.Score}
		}
		return err
	})
	return hits, err
}

func pages(ctx context.Context, tx ledger.Tx, yield func(httpapi.Page) error) error {
	return agents.Pages(ctx, tx, func(p agents.PageRow) error {
		return yield(httpapi.Page{Document: p.Name, Path: p.Path, Page: p.Page, Part: p.Part, SHA256: p.SHA256, Summary: p.Summary, Steps: p.Steps})
	})
}
