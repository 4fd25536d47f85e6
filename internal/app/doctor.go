package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/doctor"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/ledger/postgres"
)

const (
	// DefaultRecoveryTime is how long an outage and catching up with it may take, unless somebody says otherwise.
	DefaultRecoveryTime = 24 * time.Hour
	// sampled is how many of a topic's last records are looked at for their keys.
	sampled = 1000
	// sampleQuiet is how long the end of a topic is waited for.
	sampleQuiet = 2 * time.Second
	// defaultDrain and defaultConnections are those of the engine and of the PostgreSQL ledger.
	defaultLease       = 15 * time.Second
	defaultDrain       = 10 * time.Second
	defaultConnections = 10
	defaultStepLimit   = 5 * time.Minute
)

// ErrNothingToLookAt says that a swarm names no server.
var ErrNothingToLookAt = errors.New("no server is named: doctor looks at a Kafka cluster and a PostgreSQL database: write kafka and postgres into the swarm.yaml, or give --brokers and --ledger")

// Examine takes a look at the servers that a swarm names, and at what works on them. It changes nothing there. A server
// that doesn't answer is an error.
func Examine(ctx context.Context, s *config.Swarm, recovery time.Duration, log *slog.Logger) (doctor.Snapshot, error) {
	e := examination{name: s.Name, members: s.Kafka.Membership == config.MembershipKafka}
	for _, t := range s.Topics {
		e.topics = append(e.topics, t.Name)
	}
	for _, a := range s.Agents {
		e.agents = append(e.agents, examinedAgent{a.Name, a.Reads, a.Emits, a.Limits.Timeout})
	}
	e.seen.Swarm = doctor.Swarm{File: s.File, RecoveryTime: recovery, LeaseTime: s.Worker.LeaseTime, Drain: s.Worker.Drain}
	if s.Postgres.DSN.IsZero() && len(s.Kafka.Brokers) == 0 {
		return doctor.Snapshot{}, ErrNothingToLookAt
	}
	if len(s.Kafka.Brokers) > 0 {
		o, err := kafkaOptions(s.Kafka)
		if err != nil {
			return doctor.Snapshot{}, err
		}
		if o.ClientID == "" {
			o.ClientID = "swarmlog-" + s.Name
		}
		o.Logger = log
		opening, cancel := context.WithTimeout(ctx, openTime)
		defer cancel()
		b, err := kafka.Open(opening, *o)
		if err != nil {
			return doctor.Snapshot{}, err
		}
		defer b.Close()
		e.broker, e.kafka = b, o
	}
	if !s.Postgres.DSN.IsZero() {
		o, err := postgresOptions(s.Postgres)
		if err != nil {
			return doctor.Snapshot{}, err
		}
		e.postgres = o
	}
	err := e.look(ctx)
	return e.seen, err
}

// refuseRisks refuses a start that could lose data, unless each risk is accepted by name; accepted ones are logged.
func (a *App) refuseRisks(ctx context.Context) error {
	if !a.config.Examine {
		return nil
	}
	e := examination{name: a.config.Name, members: a.config.Membership == engine.MembershipKafka, broker: a.broker, kafka: a.config.Kafka, postgres: a.config.Postgres}
	for _, t := range a.declaredTopics() {
		e.topics = append(e.topics, t.Name)
	}
	for _, g := range a.config.Agents {
		e.agents = append(e.agents, examinedAgent{g.Name, g.Reads, g.Emits, g.Limits.Timeout})
	}
	for _, g := range a.config.Sources {
		e.agents = append(e.agents, examinedAgent{name: g.Name, emits: g.Emits})
	}
	e.seen.Swarm = doctor.Swarm{File: cmp.Or(a.config.File, "FILE"), RecoveryTime: DefaultRecoveryTime, LeaseTime: a.config.LeaseTime, Drain: a.config.Drain}
	if err := e.look(ctx); err != nil {
		return fmt.Errorf("look whether the servers keep what they acknowledge: %w", err)
	}
	findings := doctor.Examine(e.seen)
	if err := doctor.Refused(findings, a.config.AcceptRisk); err != nil {
		return err
	}
	for _, f := range findings {
		switch f.Severity {
		case doctor.LosesData:
			a.log.Warn("a risk is accepted", "check", f.Check, "object", f.Object, "found", f.Found, "mend", f.Mend)
		case doctor.Warning:
			a.log.Warn(f.Found, "check", f.Check, "object", f.Object, "mend", f.Mend)
		default:
			a.log.Debug(f.Found, "check", f.Check, "object", f.Object, "mend", f.Mend)
		}
	}
	return nil
}

// refuseDatabase refuses a database that can lose what it has committed, by the names of the risks, before the ledger
// opens it and refuses without them.
func (a *App) refuseDatabase(ctx context.Context) error {
	if !a.config.Examine || a.config.Postgres == nil {
		return nil
	}
	e := examination{name: a.config.Name, postgres: a.config.Postgres}
	if err := e.database(ctx); err != nil {
		return err
	}
	return doctor.Refused(doctor.Examine(e.seen), a.config.AcceptRisk)
}

// examination is one look at a swarm's servers.
type examination struct {
	name     string
	members  bool // partitions are assigned by Kafka groups
	topics   []string
	agents   []examinedAgent
	broker   *kafka.Broker    // nil: not named
	kafka    *KafkaOptions    // nil: not named, or embedded
	postgres *PostgresOptions // nil: not named

	state *postgres.State // nil: unknown
	seen  doctor.Snapshot
}

type examinedAgent struct {
	name         string
	reads, emits []string
	limit        time.Duration
}

func (e *examination) look(ctx context.Context) error {
	s := &e.seen.Swarm
	setZero(&s.RecoveryTime, DefaultRecoveryTime)
	setZero(&s.LeaseTime, defaultLease)
	setZero(&s.Drain, defaultDrain)
	s.MaxBatch = kafka.MaxBatchBytes
	for _, a := range e.agents {
		setZero(&a.limit, defaultStepLimit)
		s.Agents = append(s.Agents, doctor.Agent{Name: a.name, StepLimit: a.limit})
	}
	if e.postgres != nil {
		if err := e.database(ctx); err != nil {
			return err
		}
	}
	if e.broker == nil {
		return nil
	}
	if e.members {
		g := e.broker.Group()
		s.Members = &doctor.Members{Session: g.Session, Rebalance: g.Rebalance}
	}
	// What was reported is read before the ledger, and the log's ends after it, so that what moves meanwhile looks like
	// no fault.
	reported := e.reported(ctx)
	if err := e.cluster(ctx); err != nil {
		return err
	}
	e.ledger(ctx)
	e.progress(ctx, reported)
	return e.sample(ctx)
}

func setZero[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

func (e *examination) blind(what string, err error) {
	e.seen.Blind = append(e.seen.Blind, doctor.Blind{What: what, Why: err.Error()})
}

func (e *examination) database(ctx context.Context) error {
	s, err := postgres.Inspect(ctx, *e.postgres)
	if err != nil {
		return err
	}
	left := s.MaxConns - s.InUse
	if s.OwnLimit >= 0 {
		left = min(left, s.OwnLimit)
	}
	d := &doctor.Database{Host: s.Host, Name: s.Database, User: s.User, Version: s.Version, Number: s.Number, InRecovery: s.InRecovery, Fsync: s.Fsync,
		FullPageWrites: s.FullPageWrites, SynchronousCommit: s.SynchronousCommit.Value, CommitSource: s.SynchronousCommit.Source, StandbyNames: s.StandbyNames,
		Connections: left, Clock: doctor.Clock{Name: "the database", There: s.Clock, Here: s.Asked, Trip: s.Trip}}
	for _, standby := range s.Standbys {
		d.Standbys = append(d.Standbys, doctor.Standby{Name: standby.Name, Sync: standby.Sync})
		if standby.Sync == "" {
			e.blind("stand-bys of the database", errors.New("grant the role pg_monitor"))
		}
	}
	e.seen.Database = d
	e.seen.Swarm.Connections = e.postgres.MaxConns
	setZero(&e.seen.Swarm.Connections, defaultConnections)
	return nil
}

// groupOf is the Kafka group that an agent's progress is reported under.
func (e *examination) groupOf(agent string) string { return e.name + "." + agent }

// wants is what there is to look at of the cluster.
func (e *examination) wants() (look kafka.Look, deadOf map[string]string) {
	deadOf = map[string]string{}
	add := func(list *[]string, names ...string) {
		for _, n := range names {
			if !slices.Contains(*list, n) {
				*list = append(*list, n)
			}
		}
	}
	add(&look.Topics, e.topics...)
	for _, a := range e.agents {
		add(&look.Topics, a.reads...)
		add(&look.Topics, a.emits...)
		add(&look.Reads, a.reads...)
		add(&look.Writes, a.emits...)
		if len(a.reads) > 0 {
			look.Groups = append(look.Groups, e.groupOf(a.name))
			look.Agents = append(look.Agents, e.groupOf(a.name))
		}
		for _, t := range a.reads {
			dead := engine.DeadTopic(t)
			deadOf[dead] = t
			add(&look.Topics, dead)
			add(&look.Writes, dead)
		}
	}
	return look, deadOf
}

func (e *examination) cluster(ctx context.Context) error {
	look, deadOf := e.wants()
	c, err := e.broker.Inspect(ctx, look)
	if err != nil {
		return err
	}
	to := &doctor.Cluster{Kind: c.Kind, Version: c.Version, Clients: c.Clients}
	if e.kafka != nil {
		to.Bootstrap = strings.Join(e.kafka.Seeds, ",")
		if e.kafka.SASL != nil {
			to.User = e.kafka.SASL.User
		}
	}
	for _, n := range c.Nodes {
		to.Brokers = append(to.Brokers, doctor.Broker{ID: n.ID, Config: n.Config})
	}
	now := time.Now()
	for _, t := range c.Topics {
		topic := doctor.Topic{Name: t.Name, DeadOf: deadOf[t.Name], Missing: t.Missing, Config: t.Config, Newest: t.Newest, Seen: now}
		for _, p := range t.Partitions {
			topic.Partitions = append(topic.Partitions, doctor.Partition(p))
		}
		to.Topics = append(to.Topics, topic)
	}
	for _, q := range c.Quotas {
		to.Quotas = append(to.Quotas, doctor.Quota(q))
	}
	for _, d := range c.Denied {
		to.Denied = append(to.Denied, doctor.Denied(d))
	}
	for _, b := range c.Blind {
		e.seen.Blind = append(e.seen.Blind, doctor.Blind(b))
	}
	if c.Clock != nil {
		to.Clock = &doctor.Clock{Name: fmt.Sprintf("broker %d", c.Clock.Node), There: c.Clock.Time, Here: c.Clock.Asked, Trip: c.Clock.Trip}
	}
	e.seen.Cluster = to
	return nil
}

// reported is what agents' groups have committed to the brokers, by agent; agents that can't be asked about are left out.
func (e *examination) reported(ctx context.Context) map[string]map[string]map[int32]int64 {
	all := map[string]map[string]map[int32]int64{}
	for _, a := range e.agents {
		if len(a.reads) == 0 {
			continue
		}
		committed, err := e.broker.Committed(ctx, e.groupOf(a.name))
		if err != nil {
			e.blind("what group "+e.groupOf(a.name)+" has committed", err)
			continue
		}
		all[a.name] = committed
	}
	return all
}

// ledger reads who works on what, where the ledger is in PostgreSQL.
func (e *examination) ledger(ctx context.Context) {
	if e.postgres == nil {
		return
	}
	state, err := postgres.Peek(ctx, *e.postgres, e.seen.Swarm.LeaseTime)
	switch {
	case errors.Is(err, postgres.ErrOtherSchema):
		return // no worker of this version has run on it
	case err != nil:
		e.blind("progress in the ledger", err)
		return
	}
	e.state = &state
	for _, w := range state.Workers {
		worker := doctor.Worker{ID: w.ID}
		if !w.Oldest.IsZero() {
			worker.Oldest = max(w.Beat.Sub(w.Oldest), 0)
		}
		e.seen.Swarm.Workers = append(e.seen.Swarm.Workers, worker)
	}
}

// progress compares how far agents got with what the log holds.
func (e *examination) progress(ctx context.Context, reported map[string]map[string]map[int32]int64) {
	if e.state == nil {
		return
	}
	ranges := map[string][]broker.Range{}
	ids := map[string]broker.TopicID{}
	for _, l := range e.state.Leases {
		committed, ours := reported[l.Group]
		if !ours {
			continue
		}
		if _, asked := ranges[l.Topic]; !asked {
			ranges[l.Topic] = nil
			if topics, err := e.broker.Topics(ctx, l.Topic); err == nil {
				ids[l.Topic] = topics[0].ID
				if r, err := e.broker.Offsets(ctx, l.Topic); err == nil {
					ranges[l.Topic] = r
				}
			}
		}
		r := ranges[l.Topic]
		if ids[l.Topic] != l.TopicID || int(l.Partition) >= len(r) {
			continue // of a topic that was here before, or that isn't there now
		}
		p := doctor.Progress{Agent: l.Group, Topic: l.Topic, Partition: l.Partition, Next: l.Next, Start: r[l.Partition].Start, End: r[l.Partition].End, Committed: -1}
		if next, ok := committed[l.Topic][l.Partition]; ok {
			p.Committed = next
		}
		e.seen.Swarm.Progress = append(e.seen.Swarm.Progress, p)
	}
}

// sample reads the keys of topics' last records.
func (e *examination) sample(ctx context.Context) error {
	for i := range e.seen.Cluster.Topics {
		t := &e.seen.Cluster.Topics[i]
		if t.Missing || t.DeadOf != "" {
			continue
		}
		topics, err := e.broker.Topics(ctx, t.Name)
		if err != nil {
			e.blind("keys of topic "+t.Name, err)
			continue
		}
		if e.state != nil {
			t.Slots = e.state.Slots[topics[0].ID]
		}
		records, err := e.broker.Tail(ctx, topics[0], int64(max(1, sampled/max(1, int(topics[0].Partitions)))), sampleQuiet)
		if ctx.Err() != nil {
			return fmt.Errorf("look at topic %s: %w", t.Name, ctx.Err())
		}
		if err != nil {
			e.blind("keys of topic "+t.Name, err)
			continue
		}
		for _, r := range records {
			t.Sample = append(t.Sample, doctor.Key{Partition: r.Partition, Bytes: r.Key, Time: r.Time})
		}
	}
	return nil
}
