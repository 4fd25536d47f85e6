package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/ledger"
)

const (
	lookEvery   = 200 * time.Millisecond // at leases that are still held
	settleTries = 5                      // at setting a group's offsets while a worker's last report may still come
	settleWait  = 500 * time.Millisecond
)

// Rewinding is a move of an agent's progress to a time.
type Rewinding struct {
	Agent  string    `json:"agent"`
	To     time.Time `json:"to" doc:"The first record of each partition that was appended at this time or later is next"`
	Topics []string  `json:"topics" doc:"Of what the agent reads; all where empty"`
	// Repeat has effects repeated.
	Repeat bool `json:"repeat_effects" doc:"Forget what was applied since, so that it is applied again. Default: records that were applied are duplicates, and only what wasn't applied is handled"`
}

// Move is how far a partition's progress moves.
type Move struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`

	key ledger.Key
}

// RewindReport is what a rewinding does.
type RewindReport struct {
	Rewinding
	Moves     []Move `json:"moves"`
	Back      int64  `json:"back" doc:"Records that will be delivered again, at most"`
	Forward   int64  `json:"forward" doc:"Records that are passed over without being handled, at most"`
	Backlog   bool   `json:"backlog_dropped" doc:"Whether waiting records from the new places on leave the backlog, to be delivered again: always"`
	Forgotten int64  `json:"forgotten" doc:"Applied events that were forgotten, so that they will be applied again"`
	Done      bool   `json:"done" doc:"false where this is only what would be done"`
}

// PlanRewind tells what a rewinding would do.
func (c Console) PlanRewind(ctx context.Context, r Rewinding) (RewindReport, error) {
	r.Topics = append([]string{}, r.Topics...)
	report := RewindReport{Rewinding: r, Moves: []Move{}, Backlog: true}
	fail := func(err error) (RewindReport, error) {
		return report, fmt.Errorf("rewind agent %s: %w", r.Agent, err)
	}
	if c.Swarm == "" {
		return fail(ErrNoSwarm)
	}
	if r.To.After(time.Now()) {
		return fail(fmt.Errorf("%w: %s", ErrInFuture, r.To.Format(time.RFC3339)))
	}
	if err := c.Known(ctx, r.Agent); err != nil {
		return fail(err)
	}
	leases, err := c.Ledger.Leases(ctx, r.Agent)
	if err != nil {
		return fail(err)
	}
	targets, err := c.targets(ctx, r, leases)
	if err != nil {
		return fail(err)
	}
	for _, l := range leases {
		t, ok := targets[l.Topic]
		if !ok || t.id != l.TopicID || int(l.Partition) >= len(t.offsets) {
			continue // of a topic that isn't chosen, or of an earlier one of the same name
		}
		m := Move{l.Topic, l.Partition, l.Next, t.offsets[l.Partition], l.Key}
		report.Moves = append(report.Moves, m)
		report.Back += max(0, m.From-m.To)
		report.Forward += max(0, m.To-m.From)
	}
	if len(report.Moves) == 0 {
		return fail(ErrNothing)
	}
	slices.SortFunc(report.Moves, func(a, b Move) int {
		if n := strings.Compare(a.Topic, b.Topic); n != 0 {
			return n
		}
		return int(a.Partition - b.Partition)
	})
	return report, nil
}

type target struct {
	id      broker.TopicID
	offsets []int64
}

// targets are where a time is in each topic that is rewound.
func (c Console) targets(ctx context.Context, r Rewinding, leases []ledger.Lease) (map[string]target, error) {
	all := map[string]target{}
	reads := map[string]bool{}
	for _, l := range leases {
		if l.Topic != "" {
			reads[l.Topic] = true
		}
	}
	names := r.Topics
	if len(names) == 0 {
		for name := range reads {
			names = append(names, name)
		}
	}
	for _, name := range names {
		if !reads[name] {
			return nil, fmt.Errorf("%w: it doesn't read topic %s", ErrNothing, name)
		}
		topics, err := c.Broker.Topics(ctx, name)
		if errors.Is(err, broker.ErrNoTopic) && len(r.Topics) == 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		offsets, err := c.Broker.OffsetsAt(ctx, name, r.To)
		if err != nil {
			return nil, err
		}
		all[name] = target{topics[0].ID, offsets}
	}
	return all, nil
}

// Rewind moves an agent's progress. The agent must be paused; its workers are waited for until ctx ends.
//
// Workers refuse a partition whose committed offset in Kafka is above the ledger's, so the group's offsets go down
// first: a run that ends in between leaves them low, which is harmless.
func (c Console) Rewind(ctx context.Context, r Rewinding) (RewindReport, error) {
	fail := func(report RewindReport, err error) (RewindReport, error) {
		return report, fmt.Errorf("rewind agent %s: %w", r.Agent, err)
	}
	if paused, err := c.paused(ctx, r.Agent); err != nil {
		return fail(RewindReport{}, err)
	} else if !paused {
		return fail(RewindReport{}, ErrRunning)
	}
	if err := c.awaitFree(ctx, r.Agent); err != nil {
		return fail(RewindReport{}, err)
	}
	report, err := c.PlanRewind(ctx, r)
	if err != nil {
		return report, err
	}
	to := map[ledger.Key]int64{}
	next := map[string]map[int32]int64{}
	for _, m := range report.Moves {
		to[m.key] = m.To
		if next[m.Topic] == nil {
			next[m.Topic] = map[int32]int64{}
		}
		next[m.Topic][m.Partition] = m.To
	}
	if err := c.lower(ctx, r.Agent, next); err != nil {
		return fail(report, err)
	}
	report.Forgotten, err = c.Ledger.Rewind(ctx, r.Agent, to, r.Repeat, r.To)
	if errors.Is(err, ledger.ErrHeld) {
		err = fmt.Errorf("%w: %w", ErrAtWork, err)
	}
	if err != nil {
		return fail(report, err)
	}
	report.Done = true
	// A report of progress that a worker had under way may have come since.
	if err := c.lower(ctx, r.Agent, next); err != nil {
		return fail(report, fmt.Errorf("%w; the ledger is rewound: run it again", err))
	}
	return report, nil
}

// lower sets a group's committed offsets in Kafka to at most next.
func (c Console) lower(ctx context.Context, agent string, next map[string]map[int32]int64) error {
	for try := 1; ; try++ {
		committed, err := c.Broker.Committed(ctx, c.group(agent))
		if err != nil {
			return err
		}
		high := map[string]map[int32]int64{}
		for topic, partitions := range next {
			for p, n := range partitions {
				if at, ok := committed[topic][p]; ok && at > n {
					if high[topic] == nil {
						high[topic] = map[int32]int64{}
					}
					high[topic][p] = n
				}
			}
		}
		if len(high) == 0 {
			return nil
		}
		if try > settleTries {
			return fmt.Errorf("the offsets of group %s in Kafka rise again after they were set: something else commits to it; stop that", c.group(agent))
		}
		if try > 1 && !wait(ctx, settleWait) {
			return ctx.Err()
		}
		if err := c.Broker.Report(ctx, c.group(agent), high); err != nil {
			return err
		}
	}
}

// awaitFree waits until nobody holds a lease of an agent, nor carries a step of it.
func (c Console) awaitFree(ctx context.Context, agent string) error {
	for {
		leases, err := c.Ledger.Leases(ctx, agent)
		if err != nil {
			return err
		}
		held := map[string]bool{}
		for _, l := range leases {
			if l.Held {
				held[l.Owner] = true
			}
		}
		if len(held) == 0 {
			return nil
		}
		if !wait(ctx, lookEvery) {
			var owners []string
			for o := range held {
				owners = append(owners, o)
			}
			slices.Sort(owners)
			return fmt.Errorf("%w by %s", ErrAtWork, strings.Join(owners, ", "))
		}
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
