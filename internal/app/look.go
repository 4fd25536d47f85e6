package app

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/swarmlog/swarmlog/internal/circuit"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/httpapi"
	"github.com/swarmlog/swarmlog/internal/ledger/postgres"
	"github.com/swarmlog/swarmlog/internal/telemetry/status"
	"github.com/swarmlog/swarmlog/ledger"
)

// rateWindow is what rates look back over.
const rateWindow = 10 * time.Second

// Index is what a swarm keeps in tables of its own, for people to look at. All functions may be nil.
type Index struct {
	Count  func(ctx context.Context, tx ledger.Tx) (documents, pages int64, err error)
	Search func(ctx context.Context, l Readable, words string, limit int) ([]httpapi.Hit, error)
	Pages  func(ctx context.Context, tx ledger.Tx, yield func(httpapi.Page) error) error
	// Dead names dead letters for people, and leaves out those that nobody needs to act on any more.
	Dead func(ctx context.Context, tx ledger.Tx, letters []status.DeadLetter) ([]status.DeadLetter, error)
	// Notes tells of things that are no dead letters and that a person should know still.
	Notes func() []string
}

// Readable is a ledger as far as it's read.
type Readable interface {
	Read(ctx context.Context, f func(context.Context, ledger.Tx) error) error
}

// meters are the rates of the swarm and of its agents.
type meters struct {
	mu     sync.Mutex
	all    *status.Meter
	agents map[string]*status.Meter
}

func newMeters() *meters {
	return &meters{all: status.NewMeter(rateWindow), agents: map[string]*status.Meter{}}
}

func (m *meters) observe(agent string, at time.Time, total int64) float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if agent == "" {
		return m.all.Observe(at, total)
	}
	if m.agents[agent] == nil {
		m.agents[agent] = status.NewMeter(rateWindow)
	}
	return m.agents[agent].Observe(at, total)
}

// Status is the run as it is now.
func (a *App) Status(ctx context.Context) (status.Status, error) { return a.status.Status(ctx) }

// Look is the run as it is at this moment, where Status may be a second old.
func (a *App) Look(ctx context.Context) (status.Status, error) { return a.look(ctx) }

// look takes the status from the engines, the ledger, the broker and the swarm's own index.
func (a *App) look(ctx context.Context) (status.Status, error) {
	now := time.Now()
	s := status.Status{Swarm: a.config.Name, State: a.state.Load().(status.State), Started: a.started, Time: now,
		Model: a.config.ModelLine}
	if a.ledger == nil || len(a.engines) == 0 {
		return s, nil
	}
	totals, err := a.remembered(ctx)
	if err != nil {
		return s, err
	}
	s.Documents, s.Pages = totals.documents, totals.pages
	s.Inference, s.DeadLetters = totals.Inference, totals.dead
	s.BacklogRows, s.ParkedAggregates = totals.Waiting, totals.Parked
	drain := a.config.Drain
	setZero(&drain, defaultDrain)
	s.DrainSeconds = drain.Seconds()
	for _, e := range a.engines {
		s.JournalDropped += e.JournalDropped()
	}
	counters := map[string]ledger.Counters{}
	for _, l := range totals.Leases {
		c := counters[l.Group]
		c.Add(l.Counters)
		counters[l.Group] = c
		if l.TopicID != [16]byte{} { // a source's offers aren't records
			s.Records.Add(l.Counters)
		}
	}
	s.Agents = a.lookAgents(now, counters)
	s.StepsPerSecond = a.meters.observe("", now, s.Settled())
	s.Broker = a.lookBroker(totals.logBytes)
	s.Ledger = a.lookLedger()
	s.Warnings = a.warnings()
	s.Complete()
	s.TimeLeftSeconds = status.TimeLeft(s.Remaining, s.StepsPerSecond)
	if s.State == status.Running && s.Remaining != nil && *s.Remaining == 0 && totals.Outbox == 0 && sourcesIdle(s.Agents) {
		s.State = status.Idle
	}
	if len(a.Failed()) > 0 {
		s.State = status.Failed
	}
	return s, nil
}

func (a *App) lookBroker(logBytes int64) status.Broker {
	b := status.Broker{Address: a.BrokerAddr(), LogBytes: logBytes}
	for _, err := range a.brokerHealth() {
		b.Health = append(b.Health, err.Error())
	}
	return b
}

// brokerHealth is what is wrong with the embedded broker.
func (a *App) brokerHealth() []error {
	if a.server == nil {
		return nil
	}
	return a.server.Health()
}

// LedgerPlace is where the ledger is, for people: without credentials, and "" where it's in memory.
func (a *App) LedgerPlace() string {
	if db, ok := a.ledger.(*postgres.DB); ok {
		return db.Place()
	}
	return a.inData(LedgerFile)
}

func (a *App) lookLedger() (l status.Ledger) {
	if l.Path = a.LedgerPlace(); !a.shared() && l.Path != "" {
		for _, suffix := range []string{"", "-wal"} {
			if info, err := os.Stat(l.Path + suffix); err == nil {
				l.Bytes += info.Size()
			}
		}
	}
	return l
}

func sourcesIdle(agents []status.Agent) bool {
	for _, a := range agents {
		if a.Kind == "source" && a.State == status.AgentRunning {
			return false
		}
	}
	return true
}

// lookAgents joins what the engines of this process know of each agent.
func (a *App) lookAgents(now time.Time, counters map[string]ledger.Counters) []status.Agent {
	var order []string
	byName := map[string]*status.Agent{}
	for _, e := range a.engines {
		for _, s := range e.Status() {
			g := byName[s.Name]
			if g == nil {
				g = &status.Agent{Name: s.Name, Kind: a.kind(s), State: status.AgentIdle, Outcomes: counters[s.Name]}
				byName[s.Name], order = g, append(order, s.Name)
			}
			join(g, s, now)
		}
	}
	agents := make([]status.Agent, len(order))
	for i, name := range order {
		agents[i] = *byName[name]
		c := agents[i].Outcomes
		agents[i].Rate = a.meters.observe(name, now, c.Delivered()-c.Waiting)
	}
	return agents
}

// kindInternal is what agents are that nobody wrote.
const kindInternal = "internal"

func (a *App) kind(s engine.AgentStatus) string {
	switch {
	case s.Source:
		return "source"
	case a.config.Kinds[s.Name] != "":
		return a.config.Kinds[s.Name]
	case s.Name == engine.ForwardAgent:
		return kindInternal
	default:
		return "go"
	}
}

func join(g *status.Agent, s engine.AgentStatus, now time.Time) {
	g.InFlight += int64(s.Running)
	g.Queued += int64(s.Queued - s.Running)
	g.WeightBytes += s.Weight
	g.Paused = s.Paused
	g.StepLimitSeconds = s.StepLimit.Seconds()
	if s.Queued > 0 || (s.Source && !s.Idle) {
		g.State = status.AgentRunning
	}
	for _, p := range s.Partitions {
		g.Partitions = append(g.Partitions, lookPartition(p, now))
		if p.Next < p.End && g.State == status.AgentIdle {
			g.State = status.AgentRunning
		}
	}
	for _, l := range s.Lanes {
		lane := status.Lane{Subject: l.Subject, Topic: l.Topic, Partition: l.Partition, Queued: int64(l.Queued),
			WeightBytes: l.Weight, Attempt: l.Attempt}
		if !l.Started.IsZero() {
			lane.RunningSeconds = now.Sub(l.Started).Seconds()
		}
		g.Lanes = append(g.Lanes, lane)
	}
	g.LateGaps += int64(s.LateGaps)
	for _, gap := range s.Gaps {
		g.Gaps = append(g.Gaps, status.Gap{Subject: gap.Subject, Topic: gap.Topic, Partition: gap.Partition, Since: gap.Since, Reason: gap.Reason})
	}
	for _, c := range s.Circuits {
		if c.State != circuit.Closed {
			g.Circuits = append(g.Circuits, status.Circuit{Dependency: c.Dependency, Open: c.State == circuit.Open, Reason: c.Cause, Since: c.Since})
		}
	}
	if s.Failed != nil {
		g.State, g.Reason = status.AgentStopped, s.Failed.Error()
	}
}

func lookPartition(p engine.PartitionStatus, now time.Time) status.Partition {
	lag := p.Lag
	out := status.Partition{Topic: p.Topic, Partition: p.Partition, Epoch: p.Epoch, Next: p.Next, End: p.End, Lag: &lag,
		Lanes: int64(p.Lanes), LaneDepth: int64(p.Deepest), Parked: int64(p.Parked), Outbox: int64(p.Outbox)}
	var age float64
	switch {
	case !p.Pending.IsZero():
		age = max(0, now.Sub(p.Pending).Seconds())
		out.LagSeconds = &age
	case lag == 0:
		out.LagSeconds = &age
	}
	if p.Outbox > 0 {
		out.OutboxSeconds = now.Sub(p.Unsent).Seconds()
	}
	if !p.Oldest.IsZero() {
		out.OldestStepSeconds = now.Sub(p.Oldest).Seconds()
	}
	return out
}

// warnings are what a person should know besides the dead letters.
func (a *App) warnings() []string {
	warnings := a.troubles()
	if a.config.Index.Notes != nil {
		warnings = append(warnings, a.config.Index.Notes()...)
	}
	return warnings
}

// troubles are what keeps agents, the log or the ledger from their work now.
func (a *App) troubles() []string {
	troubles := []string{}
	failed := a.Failed()
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		troubles = append(troubles, fmt.Sprintf("agent %s stopped: %s", name, engine.FirstLine(failed[name].Error())))
	}
	for _, err := range a.brokerHealth() {
		troubles = append(troubles, err.Error())
	}
	troubles = append(troubles, a.reach.troubles()...)
	for _, e := range a.engines {
		if err := e.Stalled(); err != nil {
			troubles = append(troubles, "nothing can be committed at present: "+err.Error())
		}
	}
	return troubles
}

// taken is what was last read from the ledger for a look, and at which commit and dead letter.
type taken struct {
	ledger.Totals
	documents, pages int64
	dead             []status.DeadLetter // the newest first
	logBytes         int64               // measured by walking the log's files
	at, letters      int64
	known            bool
}

// remembered reads totals and the swarm's own counts, unless nothing was committed since they were read last: an idle
// run asks its ledger and its disk nothing. Where others commit too, nobody here knows that.
func (a *App) remembered(ctx context.Context) (taken, error) {
	var commits int64
	for _, e := range a.engines {
		commits += e.Commits()
	}
	a.mu.Lock()
	last := a.taken
	a.mu.Unlock()
	dead, letters := a.letters.newest(status.MaxDeadLetters)
	if last.known && last.at == commits && last.letters == letters && !a.shared() {
		return last, nil
	}
	t := taken{at: commits, letters: letters, known: true}
	if a.server != nil {
		t.logBytes = a.server.LogBytes()
	}
	var err error
	if t.Totals, err = a.ledger.Totals(ctx); err != nil {
		return t, err
	}
	err = a.ledger.Read(ctx, func(ctx context.Context, tx ledger.Tx) (err error) {
		if a.config.Index.Count != nil {
			if t.documents, t.pages, err = a.config.Index.Count(ctx, tx); err != nil {
				return err
			}
		}
		t.dead, err = a.named(ctx, tx, dead)
		return err
	})
	if err != nil {
		return t, err
	}
	a.mu.Lock()
	a.taken = t
	a.mu.Unlock()
	return t, nil
}

// ready is why the run can't do its work now.
func (a *App) ready(context.Context) []string {
	var reasons []string
	if s := a.state.Load().(status.State); s != status.Running {
		reasons = append(reasons, "the run is "+string(s))
	}
	return append(reasons, a.troubles()...)
}

func (a *App) httpOptions() httpapi.Options {
	o := httpapi.Options{Version: Version(), Status: a.status, Events: a.ring, Ready: a.ready, Registry: a.reg, Logger: a.log,
		Public: a.config.ListenPublic, Hands: a.hands()}
	if search := a.config.Index.Search; search != nil {
		o.Search = func(ctx context.Context, words string, limit int) ([]httpapi.Hit, error) {
			return search(ctx, a.ledger, words, limit)
		}
	}
	if pages := a.config.Index.Pages; pages != nil {
		o.Pages = func(ctx context.Context) iter.Seq2[httpapi.Page, error] {
			return func(yield func(httpapi.Page, error) bool) {
				err := a.ledger.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
					return pages(ctx, tx, func(p httpapi.Page) error {
						if !yield(p, nil) {
							return errEnough
						}
						return nil
					})
				})
				if err != nil && !errors.Is(err, errEnough) {
					yield(httpapi.Page{}, err)
				}
			}
		}
	}
	return o
}
