package plan_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/internal/plan"
)

// question draws partitions and workers. Some owners are gone, and some partitions have none.
func question(t *rapid.T, pools []string, weights, capacities int64) ([]plan.Partition, []plan.Worker) {
	workers := make([]plan.Worker, rapid.IntRange(1, 8).Draw(t, "workers"))
	for i := range workers {
		workers[i] = plan.Worker{ID: fmt.Sprintf("w%d", i), Pool: rapid.SampledFrom(pools).Draw(t, "pool"),
			Capacity: rapid.Int64Range(1, capacities).Draw(t, "capacity")}
	}
	partitions := make([]plan.Partition, rapid.IntRange(0, 40).Draw(t, "partitions"))
	for i := range partitions {
		partitions[i] = plan.Partition{ID: fmt.Sprintf("p%02d", i), Group: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "group"),
			Weight: rapid.Int64Range(1, weights).Draw(t, "weight"), Pool: rapid.SampledFrom(pools).Draw(t, "for")}
		if len(pools) > 1 && rapid.IntRange(0, 5).Draw(t, "refuses") == 0 {
			partitions[i].Without = []string{fmt.Sprintf("w%d", rapid.IntRange(0, len(workers)-1).Draw(t, "without"))}
		}
		if n := rapid.IntRange(-2, len(workers)).Draw(t, "owner"); n >= 0 {
			partitions[i].Owner = fmt.Sprintf("w%d", n) // the last of which isn't there
		}
	}
	return partitions, workers
}

var somePools = []string{"", "big", "small"}

// may tells whether a worker may own a partition.
func may(p plan.Partition, w plan.Worker) bool {
	return (p.Pool == "" || p.Pool == w.Pool) && !slices.Contains(p.Without, w.ID)
}

func loads(partitions []plan.Partition, wants []string) map[string]int64 {
	load := map[string]int64{}
	for i, w := range wants {
		load[w] += max(1, partitions[i].Weight)
	}
	return load
}

// Every partition that a worker may own is wanted for one that may, and no other.
func TestPoolsAreKept(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions, workers := question(t, somePools, 100, 4)
		wants := plan.Assign(partitions, workers)
		for i, p := range partitions {
			n := slices.IndexFunc(workers, func(w plan.Worker) bool { return w.ID == wants[i] })
			possible := slices.ContainsFunc(workers, func(w plan.Worker) bool { return may(p, w) })
			switch {
			case n < 0 && (possible || wants[i] != ""):
				t.Fatalf("%+v is wanted for %q", p, wants[i])
			case n >= 0 && !may(p, workers[n]):
				t.Fatalf("%+v is wanted for %+v", p, workers[n])
			}
		}
	})
}

// No move of a partition would lower the load of the heavier loaded of two workers by more than the slack.
func TestBalanced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions, workers := question(t, somePools, 100, 4)
		wants := plan.Assign(partitions, workers)
		load := loads(partitions, wants)
		delete(load, "")
		weight, capacity := int64(0), int64(0)
		for i := range partitions {
			weight += partitions[i].Weight
		}
		byID := map[string]plan.Worker{}
		for _, w := range workers {
			capacity += w.Capacity
			byID[w.ID] = w
		}
		slack := float64(weight) / float64(capacity) * plan.Slack / 100
		for i, p := range partitions {
			from, ok := byID[wants[i]]
			if !ok {
				continue
			}
			for _, to := range workers {
				if to.ID == from.ID || !may(p, to) {
					continue
				}
				now := float64(load[from.ID]) / float64(from.Capacity)
				then := max(float64(load[from.ID]-p.Weight)/float64(from.Capacity), float64(load[to.ID]+p.Weight)/float64(to.Capacity))
				if now-then > slack+1e-9 {
					t.Fatalf("%+v on %+v (%v) would be better on %+v (%v): %v", p, from, load[from.ID], to, load[to.ID], wants)
				}
			}
		}
	})
}

// What was assigned stays, asked again; and the order of the question changes nothing.
func TestStableAndDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions, workers := question(t, somePools, 100, 4)
		wants := plan.Assign(partitions, workers)
		settled := slices.Clone(partitions)
		for i := range settled {
			settled[i].Owner = wants[i]
		}
		if again := plan.Assign(settled, workers); !slices.Equal(wants, again) {
			t.Fatalf("%v, and once done %v", wants, again)
		}
		mixed, order := make([]plan.Partition, len(partitions)), rand.Perm(len(partitions))
		for i, n := range order {
			mixed[i] = partitions[n]
		}
		backwards := slices.Clone(workers)
		slices.Reverse(backwards)
		for i, w := range plan.Assign(mixed, backwards) {
			if w != wants[order[i]] {
				t.Fatalf("asked in another order %s is wanted for %s, not %s", mixed[i].ID, w, wants[order[i]])
			}
		}
	})
}

// Of equal partitions on equal workers no more are taken from a worker than it has above the smallest share, and one
// that joins gets its share.
func TestMovesNoMoreThanNeeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions, workers := question(t, []string{""}, 1, 1)
		wants := plan.Assign(partitions, workers)
		had, moved := map[string]int{}, map[string]int{}
		for i, p := range partitions {
			had[p.Owner]++
			if p.Owner != wants[i] {
				moved[p.Owner]++
			}
		}
		least := len(partitions) / len(workers)
		for _, w := range workers {
			if most := max(0, had[w.ID]-least); moved[w.ID] > most {
				t.Fatalf("%d of %d partitions were taken from %s, with a share of %d: %v", moved[w.ID], had[w.ID], w.ID, least, wants)
			}
		}
	})
}

// A worker that joins gets its share, however many partitions there are: many of them, each next to nothing beside the
// whole, are worth as much as a few.
func TestWorkerThatJoinsGetsItsShare(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := make([]plan.Partition, rapid.IntRange(1, 300).Draw(t, "partitions"))
		workers := make([]plan.Worker, rapid.IntRange(2, 6).Draw(t, "workers"))
		old := rapid.IntRange(1, len(workers)-1).Draw(t, "old")
		weight, capacity := rapid.Int64Range(1, 1000).Draw(t, "weight"), rapid.Int64Range(1, 300).Draw(t, "capacity")
		for i := range workers {
			workers[i] = plan.Worker{ID: fmt.Sprintf("w%d", i), Capacity: capacity}
		}
		for i := range partitions {
			partitions[i] = plan.Partition{ID: fmt.Sprintf("p%03d", i), Group: "g", Owner: workers[i%old].ID, Weight: weight}
		}
		load := loads(partitions, plan.Assign(partitions, workers))
		most, least := int64(0), int64(len(partitions))*weight
		for _, w := range workers {
			most, least = max(most, load[w.ID]), min(least, load[w.ID])
		}
		slack := float64(len(partitions)) * float64(weight) / float64(len(workers)) * plan.Slack / 100
		if float64(most-least) > slack+float64(weight)+1e-6 {
			t.Fatalf("%d partitions of weight %d: %v", len(partitions), weight, load)
		}
	})
}

// Weight counts, not number: one heavy partition is worth many light ones.
func TestWeightCounts(t *testing.T) {
	var partitions []plan.Partition
	for i := range 8 {
		partitions = append(partitions, plan.Partition{ID: fmt.Sprint(i), Owner: "a", Weight: 10})
	}
	partitions[0].Weight = 70
	load := loads(partitions, plan.Assign(partitions, []plan.Worker{{ID: "a"}, {ID: "b"}}))
	if load["a"] != 70 || load["b"] != 70 {
		t.Errorf("loads: %v", load)
	}
}

// A worker that joins gets partitions of each group, where their weights leave a choice.
func TestGroupsAreSpread(t *testing.T) {
	var partitions []plan.Partition
	for i := range 8 {
		partitions = append(partitions, plan.Partition{ID: fmt.Sprint(i), Group: fmt.Sprint(i / 4), Owner: "a"})
	}
	each := map[string]int{}
	for i, w := range plan.Assign(partitions, []plan.Worker{{ID: "a"}, {ID: "b"}}) {
		each[partitions[i].Group+w]++
	}
	for key, n := range each {
		if n != 2 {
			t.Errorf("%d partitions of group and worker %s, expected 2", n, key)
		}
	}
}

func BenchmarkAssign(b *testing.B) {
	var partitions []plan.Partition
	var workers []plan.Worker
	for i := range 1000 {
		partitions = append(partitions, plan.Partition{ID: fmt.Sprint(i), Group: fmt.Sprint(i % 10), Owner: fmt.Sprint(i % 19), Weight: int64(1 + i%7)})
	}
	for i := range 20 {
		workers = append(workers, plan.Worker{ID: fmt.Sprint(i)})
	}
	for b.Loop() {
		plan.Assign(partitions, workers)
	}
}
