package prove

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/killkit"
	"github.com/swarmlog/swarmlog/internal/ledger/postgres"
	"github.com/swarmlog/swarmlog/ledger"
)

// Pair is a Kafka cluster and a PostgreSQL server to prove on, in place of the embedded broker and ledger. Each worker
// is then a process of its own.
type Pair struct {
	Brokers    []string
	Ledger     string        // connection string; it goes to workers by their environment
	Membership string        // leases (default) or kafka
	LeaseTime  time.Duration // default 5 s
	Every      time.Duration // between the beginnings of two faults; default 5 s
	Faults     []Fault       // default: all
	ID         string        // names topics, tables and schema; default: drawn from the seed
}

// Fault is what happens to a worker.
type Fault string

// The faults.
const (
	FaultKill  Fault = "kill"  // SIGKILL, and started again
	FaultPause Fault = "pause" // SIGSTOP, for less than a lease lasts or for more
	FaultMove  Fault = "move"  // ended in order, so that its partitions are handed over, and started again
)

// PairVerdict is what happened on Kafka and PostgreSQL.
type PairVerdict struct {
	Membership string `json:"membership"`
	Workers    int    `json:"workers"`
	Kills      int    `json:"kills"`
	Pauses     int    `json:"pauses"`
	Moves      int    `json:"moves"`
	Timing     Timing `json:"timing"`
}

func (p *Pair) setDefaults() {
	if p.Membership == "" {
		p.Membership = "leases"
	}
	if p.LeaseTime <= 0 {
		p.LeaseTime = 5 * time.Second
	}
	if p.Every <= 0 {
		p.Every = 5 * time.Second
	}
	if len(p.Faults) == 0 {
		p.Faults = []Fault{FaultKill, FaultPause, FaultMove}
	}
}

// Environment of a worker's process.
const (
	envBrokers = "SWARMLOG_PROVE_BROKERS"
	envLedger  = "SWARMLOG_PROVE_LEDGER"
)

func (c Config) workerData(n int) string { return filepath.Join(c.Data, fmt.Sprintf("worker-%d", n+1)) }

// pairGround is where a proof on a pair happens.
type pairGround struct {
	broker *kafka.Broker
	ledger *postgres.DB
}

func (g pairGround) close() error {
	g.broker.Close()
	return g.ledger.Close()
}

// shortestSession is the least time that brokers wait for a member as they come (group.min.session.timeout.ms).
const shortestSession = 6 * time.Second

// openPair connects to both servers.
func openPair(ctx context.Context, p *Pair, name string) (pairGround, error) {
	b, err := kafka.Open(ctx, kafka.Options{Seeds: p.Brokers, ClientID: name, Group: kafka.Group{Session: max(p.LeaseTime, shortestSession)}})
	if err != nil {
		return pairGround{}, err
	}
	db, err := postgres.Open(ctx, postgres.Options{DSN: p.Ledger, Schema: "proof_" + p.ID, LeaseTime: p.LeaseTime})
	if err != nil {
		b.Close()
		return pairGround{}, err
	}
	return pairGround{b, db}, nil
}

// onPair proves on a Kafka cluster and a PostgreSQL server, with workers that are processes of their own.
func (p *proof) onPair(ctx context.Context) (v Verdict, err error) {
	if p.Pair.ID == "" {
		p.Pair.ID = strconv.FormatUint(p.Seed, 36)
	}
	p.names, p.brokers = namesOf(p.Pair.ID), p.Pair.Brokers
	g, err := openPair(ctx, p.Pair, "prove")
	if err != nil {
		return Verdict{}, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	agents := &proofAgents{names: p.names}
	topics := agents.topics()
	for _, t := range agents.topics() {
		topics = append(topics, broker.TopicSpec{Name: engine.DeadTopic(t.Name), Partitions: t.Partitions})
	}
	if err := g.broker.Create(ctx, topics...); err != nil {
		return Verdict{}, err
	}
	s, err := p.startStaff(ctx, g)
	if err != nil {
		return Verdict{}, err
	}
	defer s.killAll()
	if err := p.underFire(ctx, s); err != nil {
		return Verdict{}, err
	}
	p.tell("settling")
	if p.stuck, err = p.settle(ctx, g); err != nil {
		return Verdict{}, err
	}
	if p.held, err = p.audit(ctx); err != nil {
		return Verdict{}, err
	}
	if err := s.endAll(); err != nil {
		return Verdict{}, err
	}
	p.tell("verifying")
	if v, err = p.verify(ctx, g.ledger); err != nil {
		return Verdict{}, fmt.Errorf("verify: %w", err)
	}
	v.Pair = &PairVerdict{Membership: p.Pair.Membership, Workers: p.Workers, Kills: s.done[FaultKill], Pauses: s.done[FaultPause], Moves: s.done[FaultMove]}
	v.Kills = v.Pair.Kills
	if v.Pair.Timing, err = p.timing(ctx, g.ledger, s.kills); err != nil {
		return Verdict{}, err
	}
	if v.Clean() && !p.stuck {
		err = p.clear(ctx, g)
	}
	return v, err
}

// underFire produces while faults happen, and returns once all events are accepted and every worker is well again.
func (p *proof) underFire(ctx context.Context, s *staff) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	producing := make(chan error, 1)
	go func() { producing <- p.produce(ctx) }()
	firing, cease := context.WithCancel(ctx)
	defer cease()
	fired := make(chan error, 1)
	go func() { fired <- s.fire(firing) }()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-producing:
			cease()
			return errors.Join(err, <-fired)
		case err := <-fired:
			cancel()
			return errors.Join(err, <-producing)
		case <-tick.C:
			p.kills = s.faults()
			p.tell("producing")
		}
	}
}

// stuckOnPair is how long nothing may move before a proof on a pair is judged as it stands.
const stuckOnPair = time.Minute

// settle waits until every record is finished and every outbox is empty; stuck says that nothing moved any more.
func (p *proof) settle(ctx context.Context, g pairGround) (stuck bool, err error) {
	var moved time.Time
	last := ""
	for {
		left, now, err := p.left(ctx, g)
		if err != nil {
			return false, err
		}
		if left == 0 {
			return false, nil
		}
		if now != last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > stuckOnPair {
			return true, nil
		}
		if !wait(ctx, nil, 200*time.Millisecond) {
			return false, ctx.Err()
		}
	}
}

// left is how many records aren't finished, outboxes included, and a picture of all progress.
func (p *proof) left(ctx context.Context, g pairGround) (left int64, picture string, err error) {
	totals, err := g.ledger.Totals(ctx)
	if err != nil {
		return 0, "", err
	}
	left = totals.Outbox
	var b strings.Builder
	leases := map[ledger.Key]ledger.Lease{}
	for _, l := range totals.Leases {
		leases[l.Key] = l
		fmt.Fprintf(&b, "%s/%d %d %+v\n", l.Topic, l.Partition, l.Next, l.Counters)
	}
	for name, group := range map[string]string{p.names.in: agentFirst, p.names.out: agentSecond} {
		topics, err := g.broker.Topics(ctx, name)
		if err != nil {
			return 0, "", err
		}
		ranges, err := g.broker.Offsets(ctx, name)
		if err != nil {
			return 0, "", err
		}
		for n, r := range ranges {
			l := leases[ledger.Key{Group: group, TopicID: topics[0].ID, Partition: int32(n)}]
			left += max(0, r.End-l.Next)
			for _, span := range l.Finished {
				left -= span.To - span.From + 1
			}
		}
	}
	return left, b.String(), nil
}

// clear drops the proof's tables; its topics stay to their retention, as the broker's interface has no deletion.
func (p *proof) clear(ctx context.Context, g pairGround) error {
	return g.ledger.Setup(ctx, func(ctx context.Context, tx ledger.Tx) error {
		for _, table := range []string{p.names.effect, p.names.last} {
			if _, err := tx.Exec(ctx, "DROP TABLE "+table); err != nil {
				return err
			}
		}
		return nil
	})
}

// check refuses what is missing, and faults that don't exist.
func (p *Pair) check() error {
	if len(p.Brokers) == 0 || p.Ledger == "" {
		return fmt.Errorf("%w: a proof on Kafka and PostgreSQL needs brokers and a ledger: give both", ErrConfig)
	}
	for _, f := range p.Faults {
		if !slices.Contains([]Fault{FaultKill, FaultPause, FaultMove}, f) {
			return fmt.Errorf("%w: there's no fault %q: kill, pause and move are", ErrConfig, f)
		}
	}
	return nil
}

// killed is a kill, as timing judges it.
type killed struct {
	at    time.Time
	owned []ledger.Key // what the worker held when it was killed
}

// command is a worker's process.
func (p *proof) command(n int) killkit.Command {
	return killkit.Command{Name: fmt.Sprintf("worker %d", n+1), Path: p.Binary,
		Args: []string{"prove-node", "--data", p.workerData(n), "--worker", fmt.Sprintf("w%d", n+1), "--seed", strconv.FormatUint(p.Seed, 10),
			"--id", p.Pair.ID, "--membership", p.Pair.Membership, "--lease-time", p.Pair.LeaseTime.String()},
		Env:    append(slices.Clone(p.Env), envBrokers+"="+strings.Join(p.Pair.Brokers, ","), envLedger+"="+p.Pair.Ledger),
		Output: filepath.Join(p.Data, fmt.Sprintf("worker-%d.log", n+1)), MaxOutput: 16 << 20,
		Ready: killkit.Line(readyLine), ReadyWait: time.Minute}
}
