package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/internal/salt"
	"github.com/swarmlog/swarmlog/ledger"
)

// Options are what an engine works with. Ledger, Broker and Worker are required.
type Options struct {
	Swarm    string // names the sources of emitted events: swarmlog://SWARM/AGENT
	Worker   string // unique among running workers; the same after a restart, so that it takes its leases back at once
	Pool     string
	Ledger   ledger.Ledger
	Broker   broker.Broker
	Inferrer Inferrer
	Salts    *salt.Topics // topics whose events are commutative; nil: none
	Logger   *slog.Logger
	Meter    Meter
	Notify   func(Notice) // what happened, for people; must not block
	// ShowsDead says that Notify shows people every dead letter, so the log need not warn of them.
	ShowsDead bool
	Rand      func() float64 // jitter, in [0, 1)

	LeaseTime time.Duration // default 15 s
	// Membership is how workers come to their partitions; all workers of a swarm have the same.
	Membership Membership

	// Journal is a topic to which events about workers, leases and steps are appended (see TypeWorkerQuiet and those that
	// follow it); "": none. It has to exist.
	Journal string

	StuckAfter time.Duration // how long a handler may ignore its cancellation until Run ends with an error; default 2 minutes

	Patience time.Duration // how long running steps may hold up a hand-over before they are carried; default 150 ms
	Drain    time.Duration // how long Stop lets running steps go on; default 10 s
	Batch    int           // steps of one commit; default 512
	Horizon  time.Duration // how long seen ids are kept, in log time; default 7 days
	Keep     time.Duration // how long recorded calls are kept; default 30 days
	Look     time.Duration // how often topics are looked at, which others may change; default 5 s
}

func (o *Options) setDefaults() {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Meter == nil {
		o.Meter = noMeter{}
	}
	if o.Notify == nil {
		o.Notify = func(Notice) {}
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	setDefault(&o.LeaseTime, 15*time.Second)
	setDefault(&o.Membership, MembershipLeases)
	setDefault(&o.StuckAfter, 2*time.Minute)
	setDefault(&o.Patience, 150*time.Millisecond)
	setDefault(&o.Drain, 10*time.Second)
	setDefault(&o.Batch, 512)
	setDefault(&o.Horizon, 7*24*time.Hour)
	setDefault(&o.Keep, 30*24*time.Hour)
	setDefault(&o.Look, 5*time.Second)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Engine runs agents and sources in one worker.
type Engine struct {
	opts    Options
	log     *slog.Logger
	groups  []*group
	sources []*source
	commits *committer
	relay   *relay
	ended   *ended
	journal *journal
	stuck   chan error // why the engine has to end

	carriedWake chan struct{} // something is carried of a partition that was taken
	poked       chan struct{} // somebody has decided something
	others      atomic.Int32  // live workers beside this one
	draining    atomic.Bool
	usurped     atomic.Bool  // another process has this worker's id
	lost        atomic.Int32 // partitions, since the last heartbeat
	seen        atomic.Pointer[view]
	planner     planner
	topics      *topics
	alarms      alarms

	started time.Time
	shared  atomic.Bool // leases have been taken for the first time
	running sync.WaitGroup
}

// New checks the agents and makes an engine; Run starts it.
func New(opts Options, agents []Agent, sources []Source) (*Engine, error) {
	opts.setDefaults()
	if opts.Ledger == nil || opts.Broker == nil || opts.Worker == "" {
		return nil, errors.New("engine: Ledger, Broker and Worker are required")
	}
	if m := opts.Membership; m != MembershipLeases && m != MembershipKafka {
		return nil, fmt.Errorf("engine: membership %q: use %q or %q", m, MembershipLeases, MembershipKafka)
	}
	if err := route.SelfTest(); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	e := &Engine{opts: opts, log: opts.Logger, carriedWake: make(chan struct{}, 1), poked: make(chan struct{}, 1),
		ended: &ended{steps: map[ledger.Fence][]int64{}, wake: make(chan struct{}, 1)}}
	e.journal, e.stuck = newJournal(opts), make(chan error, 1)
	e.commits = newCommitter(opts)
	e.topics = newTopics(opts)
	e.relay = newRelay(opts, e.commits, e.topics)
	names := map[string]bool{}
	for _, a := range agents {
		if a.Name == ForwardAgent {
			return nil, fmt.Errorf("engine: agent name %s is the engine's own; choose another", a.Name)
		}
		if a.Name == "" || a.Handle == nil || len(a.Reads) == 0 {
			return nil, fmt.Errorf("engine: agent %q needs a name, a handler and a topic to read", a.Name)
		}
		if names[a.Name] {
			return nil, fmt.Errorf("engine: two agents are called %q; a name is the identity of a group's progress, so give each its own", a.Name)
		}
		names[a.Name] = true
		e.groups = append(e.groups, newGroup(e, a))
	}
	if len(agents) > 0 {
		e.groups = append(e.groups, newGroup(e, forwarder(agents)))
	}
	for _, s := range sources {
		if s.Name == "" || s.Run == nil {
			return nil, fmt.Errorf("engine: source %q needs a name and a function to run", s.Name)
		}
		if names[s.Name] {
			return nil, fmt.Errorf("engine: two agents are called %q; a name is the identity of a group's progress, so give each its own", s.Name)
		}
		names[s.Name] = true
		e.sources = append(e.sources, newSource(e, s))
	}
	return e, nil
}

// Run works until ctx ends, then drains: running steps may finish for Options.Drain, what they did is committed
// and the leases are given back. It returns nil after a drain, or why it could not start, or which handler it ended for
// (see Options.StuckAfter): then the process should end.
func (e *Engine) Run(ctx context.Context) error {
	e.started = time.Now()
	if err := e.prepare(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before it had begun
		}
		return err
	}
	// The parts outlive ctx, since draining needs them; stop ends them, in the reverse of the order of the path.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	e.goDo(func() { e.commits.run(work) })
	e.goDo(func() { e.relay.run(work) })
	e.goDo(func() { e.ended.run(work, e) })
	e.goDo(func() { e.journal.run(work) })
	leases, stopLeases := context.WithCancel(work)
	var holding sync.WaitGroup
	holding.Go(func() { e.keepLeases(leases) })
	holding.Go(func() { e.watchCarried(leases) })
	holding.Go(func() { e.watchPeople(leases) })
	holding.Go(func() { e.watchTopics(leases) })
	for _, g := range e.groups {
		holding.Go(func() { g.run(leases) })
		if g.inKafka() {
			holding.Go(func() { g.join(leases) })
		}
	}
	for _, s := range e.sources {
		holding.Go(func() { s.run(leases) })
	}
	var stuck error
	select {
	case <-ctx.Done():
	case stuck = <-e.stuck:
		e.log.Error("this worker ends", "error", stuck)
	}
	if errors.Is(stuck, errUsurped) { // whatever it gave back would be the other one's
		e.loseAll()
	} else {
		e.log.Info("draining", "limit", e.opts.Drain)
		e.drain(work)
	}
	stopLeases()
	holding.Wait()
	stop()
	e.running.Wait()
	if errors.Is(stuck, errUsurped) {
		return stuck
	}
	return errors.Join(stuck, e.giveBack(context.WithoutCancel(ctx)))
}

func (e *Engine) goDo(f func()) { e.running.Go(f) }

// prepare ends this worker's life before, makes agents' own tables and looks up all topics, so that a typing error shows at the start.
func (e *Engine) prepare(ctx context.Context) error {
	// What a life before this one carried ended with it; heartbeats would keep it.
	if err := e.opts.Ledger.Retire(ctx, e.opts.Worker); err != nil {
		return fmt.Errorf("put down what worker %s carried before: %w", e.opts.Worker, err)
	}
	if err := e.journal.lookUp(ctx, e.opts.Broker); err != nil {
		return err
	}
	if err := e.lookAtControls(ctx); err != nil { // before anything of a paused agent is taken
		return err
	}
	for _, g := range e.groups {
		if g.spec.Setup == nil {
			continue
		}
		if err := e.opts.Ledger.Setup(ctx, g.spec.Setup); err != nil {
			return fmt.Errorf("set up agent %s: %w", g.spec.Name, err)
		}
	}
	for _, s := range e.sources {
		if s.spec.Setup == nil {
			continue
		}
		if err := e.opts.Ledger.Setup(ctx, s.spec.Setup); err != nil {
			return fmt.Errorf("set up source %s: %w", s.spec.Name, err)
		}
	}
	for _, g := range e.groups {
		if err := g.lookUp(ctx); err != nil {
			return err
		}
	}
	targets := map[string]bool{}
	for _, g := range e.groups {
		for _, t := range g.targets() {
			targets[t] = true
		}
	}
	for _, s := range e.sources {
		for _, t := range s.spec.Emits {
			targets[t] = true
		}
	}
	return e.relay.lookUp(ctx, targets)
}

// drain lets what runs finish, for a bounded time, and then waits until it is committed and, if possible, published.
func (e *Engine) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Drain)
	defer cancel()
	for _, s := range e.sources {
		s.stop()
	}
	e.draining.Store(true)
	if e.others.Load() > 0 { // they take what this worker gives up only once they see that it's no longer one to share with
		e.announceEnd(ctx)
	}
	var handing sync.WaitGroup
	for _, g := range e.groups {
		parts := g.stopAdmitting()
		if e.others.Load() > 0 || g.inKafka() {
			handing.Go(func() {
				g.handOverAll(ctx, parts)
				g.leaveKafka()
			})
		}
	}
	handing.Wait()
	for _, g := range e.groups {
		g.awaitRunning(ctx)
	}
	for _, s := range e.sources {
		s.awaitStopped(ctx)
	}
	e.commits.flush(ctx)
	e.relay.flush(ctx)
	e.relay.halt()
	e.commits.flush(ctx)
}

// announceEnd tells the others that this worker ends, and goes on until they look for what it's about to give up.
func (e *Engine) announceEnd(ctx context.Context) {
	if err := e.renew(ctx); err != nil {
		e.log.Warn("others can't be told that this worker ends", "error", err)
		return
	}
	if e.opts.Membership == MembershipLeases {
		sleep(ctx, min(planKnown, e.opts.Drain/4))
	}
}

func (e *Engine) giveBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var fences []ledger.Fence
	for _, g := range e.groups {
		fences = append(fences, g.fences()...)
	}
	for _, s := range e.sources {
		fences = append(fences, s.fences()...)
	}
	if e.planner.fence.Epoch != 0 {
		fences = append(fences, e.planner.fence)
	}
	if err := e.opts.Ledger.Release(ctx, fences...); err != nil {
		return fmt.Errorf("give back %d leases: %w", len(fences), err)
	}
	if err := e.opts.Ledger.Retire(ctx, e.opts.Worker); err != nil {
		return err
	}
	e.report(ctx)
	return nil
}

// Failed is why an agent stopped for good, by agent; empty while all is well.
func (e *Engine) Failed() map[string]error {
	failed := map[string]error{}
	for _, g := range e.groups {
		if err := g.failure(); err != nil {
			failed[g.spec.Name] = err
		}
	}
	for _, s := range e.sources {
		if err := s.failure(); err != nil {
			failed[s.spec.Name] = err
		}
	}
	return failed
}

// Stalled is why nothing can be committed at present, or nil.
func (e *Engine) Stalled() error { return e.commits.stalled() }

// Commits counts transactions since the start: while it stands still, the ledger's totals do too.
func (e *Engine) Commits() int64 { return e.commits.commits() }
