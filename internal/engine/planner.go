package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/swarmlog/swarmlog/internal/plan"
	"github.com/swarmlog/swarmlog/ledger"
)

// planner is the part of a worker that plans for all, while it holds the planner's lease. A worker that is alone
// neither plans nor reads a plan. Only the goroutine of keepLeases touches it.
type planner struct {
	fence   ledger.Fence // Epoch 0: not held
	at      time.Time    // of the last plan
	members string       // the workers, as last seen
	since   time.Time    // when they changed
	wants   map[ledger.Key]string
	unmet   map[ledger.Key]time.Time // since when what's wanted isn't so
	weights map[ledger.Key]int64
	counted map[ledger.Key]int64 // records delivered, when the weights were taken
	weighed time.Time
	refused map[refusal]time.Time
}

// refusal is a worker that doesn't take an agent's partitions that are wanted for it, say since the agent failed there.
type refusal struct{ group, worker string }

const (
	weighEvery = 30 * time.Second // weights change no more often, and so what is moved for their sake
	comeWithin = 20 * time.Second // how long a worker has at least to come for what is wanted for it
	refuseFor  = time.Minute
	// typical is the weight of a partition that has no more to do than others of its agent.
	typical = 1000
)

var plannerKey = ledger.Key{Group: plannerGroup}

// planning takes the planner's lease where nobody has it, and writes the plan where it has changed.
func (e *Engine) planning(ctx context.Context, v *view) {
	if len(v.workers) < 2 {
		e.planner = planner{} // disown gives the lease back
		return
	}
	if e.planner.fence.Epoch == 0 {
		if v.planner != "" && v.planner != e.opts.Worker {
			return
		}
		lease, err := e.opts.Ledger.Acquire(ctx, plannerKey, "", e.opts.Worker, 0, e.opts.LeaseTime)
		if err != nil {
			if !errors.Is(err, ledger.ErrHeld) && ctx.Err() == nil {
				e.log.Warn("the planner's lease can't be taken", "error", err)
			}
			return
		}
		v.planner = e.opts.Worker
		e.planner = planner{fence: lease.Fence, wants: map[ledger.Key]string{}, unmet: map[ledger.Key]time.Time{}, refused: map[refusal]time.Time{}}
		for key, w := range v.plan {
			e.planner.wants[key] = w.worker
		}
	}
	if err := e.planner.plan(ctx, e, v); err != nil && ctx.Err() == nil {
		e.log.Warn("the plan can't be written", "error", err)
		if errors.Is(err, ledger.ErrFenced) {
			e.planner = planner{}
		}
	}
}

// plan computes what is wanted and writes it if it's news. While workers come and go it waits for a heartbeat's time
// without a change, so that a swarm that starts isn't planned once for each of its workers.
func (p *planner) plan(ctx context.Context, e *Engine, v *view) error {
	var ids []string
	for _, w := range v.workers {
		ids = append(ids, w.ID)
	}
	slices.Sort(ids)
	if v.at.Sub(p.at) > e.opts.LeaseTime { // it was held up, and so may others have been
		clear(p.unmet)
	}
	p.at = v.at
	if members := strings.Join(ids, "\x00"); members != p.members {
		p.members, p.since = members, v.at
		clear(p.unmet)
		return nil
	}
	if v.at.Sub(p.since) < e.opts.LeaseTime/4 {
		return nil
	}
	p.weigh(v)
	partitions, keys := p.partitions(e, v)
	workers := make([]plan.Worker, len(v.workers))
	for i, w := range v.workers {
		workers[i] = plan.Worker{ID: w.ID, Pool: w.Pool, Capacity: int64(w.Steps)}
	}
	wants := make(map[ledger.Key]string, len(keys))
	changed := len(keys) != len(v.plan)
	var list []ledger.Want
	for i, w := range plan.Assign(partitions, workers) {
		if w == "" {
			continue
		}
		wants[keys[i]] = w
		changed = changed || v.plan[keys[i]].worker != w
		list = append(list, ledger.Want{Key: keys[i], Worker: w})
	}
	p.wants = wants
	if !changed {
		return nil
	}
	if err := e.opts.Ledger.SetPlan(ctx, p.fence, list); err != nil {
		return err
	}
	e.log.Info("partitions planned", "partitions", len(list), "workers", len(workers))
	return nil
}

// partitions are those of all agents, each with the worker that it's planned for already; where that one hasn't come
// for it, with its owner, and without that worker for a while.
func (p *planner) partitions(e *Engine, v *view) (all []plan.Partition, keys []ledger.Key) {
	leases := make(map[ledger.Key]ledger.Lease, len(v.leases))
	for _, l := range v.leases {
		leases[l.Key] = l
	}
	patience := max(2*e.opts.LeaseTime, comeWithin)
	maps.DeleteFunc(p.refused, func(_ refusal, at time.Time) bool { return v.at.Sub(at) > refuseFor })
	for _, g := range e.groups {
		g.mu.Lock()
		topics, paused := maps.Clone(g.topics), g.paused.is
		g.mu.Unlock()
		if paused || g.inKafka() { // nobody may have them, or somebody else assigns them
			continue
		}
		for _, t := range topics {
			for n := range t.Partitions {
				key := ledger.Key{Group: g.spec.Name, TopicID: t.ID, Partition: n}
				owner := p.wants[key]
				if l := leases[key]; l.Held && (owner == "" || p.refuses(key, l.Owner, v.at, patience)) {
					owner = l.Owner
				} else if !l.Held && owner != "" && p.refuses(key, "", v.at, patience) {
					owner = ""
				}
				keys = append(keys, key)
				all = append(all, plan.Partition{ID: fmt.Sprintf("%s/%s/%06d", key.Group, t.Name, n), Group: key.Group, Pool: g.spec.Pool,
					Owner: owner, Weight: max(1, p.weights[key])})
			}
		}
	}
	for i := range all {
		for r := range p.refused {
			if r.group == all[i].Group {
				all[i].Without = append(all[i].Without, r.worker)
			}
		}
	}
	return all, keys
}

// refuses tells whether the worker that a partition is wanted for hasn't come for it in some time, and notes it.
func (p *planner) refuses(key ledger.Key, owner string, now time.Time, patience time.Duration) bool {
	w := p.wants[key]
	if w == owner {
		delete(p.unmet, key)
		return false
	}
	since, ok := p.unmet[key]
	if !ok {
		p.unmet[key] = now
		return false
	}
	if now.Sub(since) <= patience {
		return false
	}
	p.refused[refusal{key.Group, w}] = now
	delete(p.unmet, key)
	return true
}

// weigh takes a partition's weight from the records that it had since it was last weighed, beside those of its agent's
// other partitions: records of different agents cost what can't be compared. Half a record a second is added to each, so
// that a trickle isn't taken for a load.
func (p *planner) weigh(v *view) {
	if v.at.Sub(p.weighed) < weighEvery {
		return
	}
	counted, sums, parts := map[ledger.Key]int64{}, map[string]float64{}, map[string]float64{}
	base := weighEvery.Seconds() / 2
	for _, l := range v.leases {
		counted[l.Key] = l.Counters.Delivered()
		if before, ok := p.counted[l.Key]; ok {
			sums[l.Group] += base + float64(counted[l.Key]-before)
			parts[l.Group]++
		}
	}
	weights := map[ledger.Key]int64{}
	for key, n := range counted {
		weights[key] = typical
		if before, ok := p.counted[key]; ok && sums[key.Group] > 0 {
			weights[key] = max(1, int64(typical*(base+float64(n-before))*parts[key.Group]/sums[key.Group]))
		}
	}
	p.weights, p.counted, p.weighed = weights, counted, v.at
}
