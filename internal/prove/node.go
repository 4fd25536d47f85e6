package prove

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// What the node prints: once it works, once nothing moves any more, and in that case whether all is settled.
const (
	readyLine = "node is ready"
	restLine  = "node has come to rest"
	stuckLine = "not all is settled"
)

// Names of the proof's agents.
const (
	agentFirst  = "first"
	agentSecond = "second"
)

// partitions of each of the proof's topics.
const partitions = 8

// Node is the child process of a proof.
type Node struct {
	Data         string
	BrokerListen string
	Workers      int
	Seed         uint64
	Settle       bool // let no lease run out, and tell when all is settled
	Out          io.Writer
	Logger       *slog.Logger
}

// Run works until ctx ends.
func (n Node) Run(ctx context.Context) (err error) {
	agents := &proofAgents{seed: n.Seed, names: plainNames}
	frost, err := newFrost(n.Seed, n.Workers > 1 && !n.Settle, frostPath(n.Data))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, frost.close()) }()
	a, err := app.Start(ctx, app.Config{
		Name: "proof", Data: n.Data, BrokerListen: n.BrokerListen, Workers: n.Workers, Logger: n.Logger,
		LeaseTime: leaseTime,
		Wrap: func(worker string, l ledger.Ledger) ledger.Ledger {
			agents.read = l.Read
			return frost.wrap(worker, l)
		},
		Topics: agents.topics(), Agents: agents.all(),
	})
	if err != nil {
		return err
	}
	if got := a.BrokerAddr(); got != n.BrokerListen {
		return errors.Join(fmt.Errorf("address %s was taken, and the producers know no other", n.BrokerListen), a.Stop(ctx))
	}
	thawed := frost.run(ctx)
	fmt.Fprintln(n.Out, readyLine)
	if n.Settle {
		err = n.comeToRest(ctx, a)
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case <-a.Done():
		}
	}
	thawed()
	return errors.Join(err, a.Stop(context.WithoutCancel(ctx)))
}

// stuckAfter is how long nothing may move before the proof is judged as it stands: what is missing then counts as lost.
const stuckAfter = 20 * time.Second

// comeToRest waits until all is settled, or nothing moves any more, and says so.
func (n Node) comeToRest(ctx context.Context, a *app.App) error {
	var moved time.Time
	last := ""
	for {
		idle, err := a.Idle(ctx)
		if err == nil && idle {
			_, err := fmt.Fprintln(n.Out, restLine)
			return err
		}
		s, err := a.Status(ctx)
		if err != nil {
			return err
		}
		if now := fmt.Sprint(s.Records); now != last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > stuckAfter {
			_, err := fmt.Fprintf(n.Out, "%s: %s, and nothing has moved for %s: %+v\n", restLine, stuckLine, stuckAfter, s.Records)
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// proofAgents write an effect for each event, and fail now and then on purpose.
type proofAgents struct {
	seed  uint64
	names names
	read  func(context.Context, func(context.Context, ledger.Tx) error) error
}

func (p *proofAgents) topics() []broker.TopicSpec {
	return []broker.TopicSpec{{Name: p.names.in, Partitions: partitions}, {Name: p.names.out, Partitions: partitions}}
}

func (p *proofAgents) all() []engine.Agent {
	return []engine.Agent{p.agent(agentFirst, p.names.in, p.names.out), p.agent(agentSecond, p.names.out)}
}

func (p *proofAgents) agent(name, reads string, emits ...string) engine.Agent {
	return engine.Agent{Name: name, Reads: []string{reads}, Emits: emits, Setup: p.names.create,
		Limits: engine.Limits{Steps: 64, Backoff: 5 * time.Millisecond, MaxWait: 100 * time.Millisecond, Attempts: 100},
		Handle: func(ctx context.Context, e event.Event, s *engine.Step) error {
			return p.handle(ctx, name, e, s, len(emits) > 0)
		}}
}

// handle looks at what the aggregate's last committed effect is before it makes the next: a step that ran before its
// predecessor had committed is found out by what it saw.
func (p *proofAgents) handle(ctx context.Context, agent string, e event.Event, s *engine.Step, emits bool) error {
	var n number
	if err := e.Decode(&n); err != nil {
		return err
	}
	chance := p.chance(agent, e.ID)
	if s.Attempt() == 1 && chance%199 == 0 {
		return errors.New("handler fails on purpose")
	}
	var saw int64
	if err := p.read(ctx, func(ctx context.Context, tx ledger.Tx) error {
		err := tx.QueryRow(ctx, `SELECT n FROM `+p.names.last+` WHERE agent = $1 AND aggregate = $2`, agent, e.Subject).Scan(&saw)
		if errors.Is(err, ledger.ErrNoRows) {
			return nil
		}
		return err
	}); err != nil {
		return err
	}
	at, epoch, attempt := s.Position(), s.Epoch(), s.Attempt()
	s.Tx(func(ctx context.Context, tx ledger.Tx) error {
		if err := p.names.write(ctx, tx, effect{agent, e.Subject, n.N, saw, at.Partition, epoch}); err != nil {
			return err
		}
		if attempt == 1 && chance%211 == 0 {
			return errors.New("effect fails on purpose")
		}
		return nil
	})
	if emits {
		s.Emit(event.New(eventType, e.Subject, n))
	}
	return nil
}

func (p *proofAgents) chance(agent, id string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %s", p.seed, agent, id)
	return h.Sum64()
}
