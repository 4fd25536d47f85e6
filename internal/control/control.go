// Package control owns what people want of agents: to pause one, to let it go
// on, to rewind it to a time, and to go on after the ledger went back. It works
// over the interfaces of broker and ledger, publishes nothing and handles no
// record: what is decided is noted in the ledger, where workers look.
//
// Nothing is kept here. Each act may be done twice; one that was interrupted is
// continued by doing it again.
package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/ledger"
)

// Errors that a person can do something about; those that wrap them say what.
var (
	ErrNoAgent  = errors.New("no such agent")
	ErrNoSwarm  = errors.New("the swarm's name isn't known, and its groups in Kafka begin with it: give its file with --swarm FILE")
	ErrRunning  = errors.New("the agent isn't paused")
	ErrAtWork   = errors.New("the agent is paused and its partitions are still held")
	ErrNothing  = errors.New("the agent has read nothing that could be rewound")
	ErrInFuture = errors.New("the time is in the future")
)

// Console is where a person looks at agents and decides about them.
type Console struct {
	Swarm  string // its name; needed for rewinding and recovery
	Broker broker.Broker
	Ledger ledger.Ledger
}

// AgentRow is an agent as the ledger knows it.
type AgentRow struct {
	Agent      string          `json:"agent"`
	Paused     bool            `json:"paused"`
	Reason     string          `json:"reason" doc:"Why it's paused; empty where nobody said so"`
	Since      *time.Time      `json:"since" doc:"Since when it is paused or goes on; null where nobody ever paused it"`
	Topics     []string        `json:"topics" doc:"What it reads; none for a source"`
	Partitions int             `json:"partitions" doc:"That it has ever taken"`
	Held       int             `json:"held" doc:"Of those, the ones that workers hold now"`
	Workers    []string        `json:"workers" doc:"Who holds them"`
	Lag        *int64          `json:"lag_records" doc:"Records not finished, at most; null where the log can't be asked"`
	Outcomes   ledger.Counters `json:"outcomes" doc:"Records delivered to it, by outcome"`
}

// Agents lists every agent that has worked on the ledger or was ever paused, by name.
func (c Console) Agents(ctx context.Context) ([]AgentRow, error) {
	leases, err := c.Ledger.Leases(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	controls, err := c.Ledger.Controls(ctx)
	if err != nil {
		return nil, fmt.Errorf("list agents: %w", err)
	}
	all := map[string]*AgentRow{}
	of := func(name string) *AgentRow {
		if all[name] == nil {
			all[name] = &AgentRow{Agent: name, Topics: []string{}, Workers: []string{}}
		}
		return all[name]
	}
	ends := c.ends(ctx, leases)
	for i := range leases {
		of(leases[i].Group).take(&leases[i], ends)
	}
	for _, k := range controls {
		a := of(k.Group)
		a.Paused, a.Reason = k.Paused, k.Reason
		if !k.At.IsZero() {
			at := k.At.UTC()
			a.Since = &at
		}
	}
	var list []AgentRow
	for _, name := range slices.Sorted(maps.Keys(all)) {
		a := all[name]
		slices.Sort(a.Topics)
		slices.Sort(a.Workers)
		list = append(list, *a)
	}
	return list, nil
}

// take adds a lease to the agent's.
func (a *AgentRow) take(l *ledger.Lease, ends map[string]topicEnds) {
	a.Partitions++
	a.Outcomes.Add(l.Counters)
	if l.Held {
		a.Held++
		if !slices.Contains(a.Workers, l.Owner) {
			a.Workers = append(a.Workers, l.Owner)
		}
	}
	if l.TopicID == [16]byte{} {
		return // a source reads no topic
	}
	if !slices.Contains(a.Topics, l.Topic) {
		a.Topics = append(a.Topics, l.Topic)
		var none int64
		if len(a.Topics) == 1 && ends != nil {
			a.Lag = &none
		}
	}
	if e, ok := ends[l.Topic]; ok && a.Lag != nil && e.id == l.TopicID && int(l.Partition) < len(e.ranges) {
		r := e.ranges[l.Partition]
		*a.Lag += max(0, r.End-max(r.Start, l.Next))
		for _, s := range l.Finished {
			*a.Lag -= s.To - s.From + 1
		}
	}
}

// topicEnds is what a topic holds.
type topicEnds struct {
	id     broker.TopicID
	ranges []broker.Range
}

// ends asks what topics hold; nil where the broker can't be asked. Topics that are gone are left out.
func (c Console) ends(ctx context.Context, leases []ledger.Lease) map[string]topicEnds {
	if c.Broker == nil {
		return nil
	}
	all := map[string]topicEnds{}
	for _, l := range leases {
		if _, asked := all[l.Topic]; asked || l.Topic == "" {
			continue
		}
		topics, err := c.Broker.Topics(ctx, l.Topic)
		if errors.Is(err, broker.ErrNoTopic) {
			continue
		}
		if err != nil {
			return nil
		}
		ranges, err := c.Broker.Offsets(ctx, l.Topic)
		if err != nil {
			return nil
		}
		all[l.Topic] = topicEnds{topics[0].ID, ranges}
	}
	return all
}

// Pause has an agent stop. Workers see it with their next heartbeat: running steps end, and what is queued is left to
// later. An agent that was never seen may be paused too, so that it doesn't begin.
func (c Console) Pause(ctx context.Context, agent, reason string) error {
	if err := c.Ledger.SetControl(ctx, ledger.Control{Group: agent, Paused: true, Reason: reason}); err != nil {
		return fmt.Errorf("pause agent %s: %w", agent, err)
	}
	return nil
}

// Resume lets an agent go on.
func (c Console) Resume(ctx context.Context, agent string) error {
	if err := c.Ledger.SetControl(ctx, ledger.Control{Group: agent}); err != nil {
		return fmt.Errorf("resume agent %s: %w", agent, err)
	}
	return nil
}

// group is an agent's group in Kafka.
func (c Console) group(agent string) string { return engine.KafkaGroup(c.Swarm, agent) }

// paused tells whether an agent is paused.
func (c Console) paused(ctx context.Context, agent string) (bool, error) {
	controls, err := c.Ledger.Controls(ctx)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(controls, func(k ledger.Control) bool { return k.Group == agent })
	return i >= 0 && controls[i].Paused, nil
}

// Known is an error where the ledger has never seen an agent; it names those that it has.
func (c Console) Known(ctx context.Context, agent string) error {
	all, err := c.Agents(ctx)
	if err != nil {
		return err
	}
	names := make([]string, len(all))
	for i, a := range all {
		if a.Agent == agent {
			return nil
		}
		names[i] = a.Agent
	}
	if len(names) == 0 {
		return fmt.Errorf("%w: %s: no agent has worked on this ledger yet", ErrNoAgent, agent)
	}
	return fmt.Errorf("%w: %s: there are %v", ErrNoAgent, agent, names)
}
