package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/ledger"
)

// Lost is a partition whose progress in the ledger is behind what was committed to Kafka.
type Lost struct {
	Agent     string     `json:"agent"`
	Topic     string     `json:"topic"`
	Partition int32      `json:"partition"`
	Committed int64      `json:"committed" doc:"Next offset, as the ledger was when it was reported to Kafka"`
	Ledger    *int64     `json:"ledger" doc:"Next offset by the ledger as it is now; null where it has never heard of the partition"`
	Records   int64      `json:"records" doc:"That will be handled again, at most"`
	Since     *time.Time `json:"since" doc:"When the first of them was appended; null where it is no longer in the log"`
	Gone      int64      `json:"gone" doc:"Of them, those that are no longer in the log: what they did can't be had again"`

	next int64
}

// Recovery tells how far the ledger went back.
type Recovery struct {
	Agents     []string `json:"agents" doc:"Agents that were compared"`
	Partitions []Lost   `json:"partitions" doc:"Partitions whose progress went back"`
	Records    int64    `json:"records" doc:"Records that will be handled again, at most"`
	Gone       int64    `json:"gone" doc:"Of them, those that are no longer in the log"`
	Calls      int64    `json:"model_calls" doc:"About how many calls to models will be made, and paid, again: their records went with the ledger"`
	Reset      bool     `json:"reset" doc:"Whether the groups' offsets were set to the ledger's, so that workers start again"`
}

// Recover compares what the ledger knows with what was committed to Kafka, for the agents that it has seen and those
// that are named. Progress is reported to Kafka only once it's in the ledger, so a committed offset above the ledger's
// means that the ledger went back: a fail-over lost commits, or a backup was restored. With reset, the groups' offsets
// are set to the ledger's, which is the truth from then on.
func (c Console) Recover(ctx context.Context, agents []string, reset bool) (Recovery, error) {
	r := Recovery{Agents: []string{}, Partitions: []Lost{}}
	fail := func(err error) (Recovery, error) { return r, fmt.Errorf("recover: %w", err) }
	if c.Swarm == "" {
		return fail(ErrNoSwarm)
	}
	totals, err := c.Ledger.Totals(ctx)
	if err != nil {
		return fail(err)
	}
	names := map[string]bool{}
	for _, a := range agents {
		names[a] = true
	}
	for _, l := range totals.Leases {
		if l.Topic != "" {
			names[l.Group] = true
		}
	}
	r.Agents = slices.Sorted(maps.Keys(names))
	if r.Agents == nil {
		r.Agents = []string{}
	}
	for _, agent := range r.Agents {
		lost, err := c.compare(ctx, agent, totals.Leases)
		if err != nil {
			return fail(fmt.Errorf("agent %s: %w", agent, err))
		}
		r.Partitions = append(r.Partitions, lost...)
	}
	var handled ledger.Counters
	for _, l := range totals.Leases {
		handled.Add(l.Counters)
	}
	for _, p := range r.Partitions {
		r.Records += p.Records
		r.Gone += p.Gone
	}
	if n := handled.Applied; n > 0 {
		r.Calls = (r.Records*totals.Inference.Calls + n - 1) / n
	}
	if !reset || len(r.Partitions) == 0 {
		return r, nil
	}
	next := map[string]map[string]map[int32]int64{}
	for _, p := range r.Partitions {
		if next[p.Agent] == nil {
			next[p.Agent] = map[string]map[int32]int64{}
		}
		if next[p.Agent][p.Topic] == nil {
			next[p.Agent][p.Topic] = map[int32]int64{}
		}
		next[p.Agent][p.Topic][p.Partition] = p.next
	}
	for agent, offsets := range next {
		if err := c.lower(ctx, agent, offsets); err != nil {
			return fail(fmt.Errorf("set the offsets of agent %s: %w", agent, err))
		}
	}
	r.Reset = true
	return r, nil
}

// compare finds an agent's partitions whose committed offset is above the ledger's.
func (c Console) compare(ctx context.Context, agent string, leases []ledger.Lease) (lost []Lost, err error) {
	committed, err := c.Broker.Committed(ctx, c.group(agent))
	if err != nil {
		return nil, err
	}
	for topic, partitions := range committed {
		topics, err := c.Broker.Topics(ctx, topic)
		if errors.Is(err, broker.ErrNoTopic) {
			continue
		}
		if err != nil {
			return nil, err
		}
		ranges, err := c.Broker.Offsets(ctx, topic)
		if err != nil {
			return nil, err
		}
		for p, at := range partitions {
			if int(p) >= len(ranges) {
				continue
			}
			l := Lost{Agent: agent, Topic: topic, Partition: p, Committed: at, next: ranges[p].Start}
			for _, k := range leases {
				if k.Group == agent && k.TopicID == topics[0].ID && k.Partition == p {
					next := k.Next
					l.Ledger, l.next = &next, next
				}
			}
			if at <= l.next {
				continue
			}
			l.Records = at - l.next
			l.Gone = min(l.Records, max(0, ranges[p].Start-l.next))
			if l.Since, err = c.appended(ctx, topics[0], p, max(l.next, ranges[p].Start), ranges[p].End); err != nil {
				return nil, err
			}
			lost = append(lost, l)
		}
	}
	slices.SortFunc(lost, func(a, b Lost) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return lost, nil
}

// errFound ends reading at the first record.
var errFound = errors.New("found")

// appended is when the first record at or after an offset was appended; nil where there's none.
func (c Console) appended(ctx context.Context, t broker.Topic, partition int32, from, end int64) (*time.Time, error) {
	if from >= end {
		return nil, nil //nolint:nilnil // there's none, and that's no error
	}
	ranges := make([]broker.Range, partition+1)
	ranges[partition] = broker.Range{Start: from, End: end}
	var at *time.Time
	err := broker.ReadRanges(ctx, c.Broker, t, ranges, func(r broker.Record) error {
		time := r.Time.UTC()
		at = &time
		return errFound
	})
	if err != nil && !errors.Is(err, errFound) {
		return nil, err
	}
	return at, nil
}
