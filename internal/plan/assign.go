package plan

import (
	"cmp"
	"slices"
)

// Partition is something to be owned.
type Partition struct {
	ID     string // unique; it breaks ties
	Group  string // partitions of a group are spread where that costs nothing
	Pool   string // of the workers that may own it; "": any
	Owner  string // the present one; "": none
	Weight int64  // what it costs to own; at least 1 is counted
	// Without are workers that may not own it, whatever their pool.
	Without []string
}

// Worker may own partitions.
type Worker struct {
	ID       string
	Pool     string
	Capacity int64 // how much it can take, relative to others; at least 1 is counted
}

// Slack is the part of the mean load, in percent, by which two workers' loads may differ beyond what a partition's
// weight explains before one is moved. It keeps small changes of weight from moving anything. Partitions that come to
// no more than that together aren't moved either.
const Slack = 15

// Assign is the wanted owner of each partition, in the order of the partitions; "" where no worker may own it.
//
// An owner that lives and may own a partition keeps it, unless the worker that it would move to stays below the owner's
// load by more than the slack. Those without such an owner go, heaviest first, to the worker that has the least load then. So
// what is balanced stays as it is, and no move is made that isn't needed: each takes from a worker what is above the
// balance.
func Assign(partitions []Partition, workers []Worker) []string {
	a := newAssignment(partitions, workers)
	a.keep()
	a.place()
	a.level()
	wants := make([]string, len(partitions))
	for i, w := range a.owner {
		if w >= 0 {
			wants[i] = a.workers[w].ID
		}
	}
	return wants
}

// assignment is the state of one Assign. Workers are sorted by id.
type assignment struct {
	partitions []Partition
	order      []int // partitions, heaviest first
	workers    []Worker
	owner      []int // by partition: the worker, or -1
	load       []int64
	groups     []map[string]int // by worker: partitions of each group
	mean       float64          // load by capacity over all workers
}

func newAssignment(partitions []Partition, workers []Worker) *assignment {
	a := &assignment{partitions: partitions, workers: slices.Clone(workers), owner: make([]int, len(partitions)),
		load: make([]int64, len(workers)), groups: make([]map[string]int, len(workers))}
	slices.SortFunc(a.workers, func(x, y Worker) int { return cmp.Compare(x.ID, y.ID) })
	capacity, weight := int64(0), int64(0)
	for i := range a.workers {
		a.groups[i] = map[string]int{}
		capacity += a.capacity(i)
	}
	for i := range partitions {
		a.owner[i] = -1
		a.order = append(a.order, i)
		weight += a.weight(i)
	}
	slices.SortFunc(a.order, func(x, y int) int {
		return cmp.Or(cmp.Compare(a.weight(y), a.weight(x)), cmp.Compare(partitions[x].ID, partitions[y].ID))
	})
	a.mean = float64(weight) / float64(max(1, capacity))
	return a
}

func (a *assignment) weight(p int) int64   { return max(1, a.partitions[p].Weight) }
func (a *assignment) capacity(w int) int64 { return max(1, a.workers[w].Capacity) }

func (a *assignment) may(p, w int) bool {
	pool := a.partitions[p].Pool
	return (pool == "" || pool == a.workers[w].Pool) && !slices.Contains(a.partitions[p].Without, a.workers[w].ID)
}

func (a *assignment) give(p, w int) {
	if old := a.owner[p]; old >= 0 {
		a.load[old] -= a.weight(p)
		a.groups[old][a.partitions[p].Group]--
	}
	a.owner[p] = w
	a.load[w] += a.weight(p)
	a.groups[w][a.partitions[p].Group]++
}

// filled is a worker's load by capacity, with some weight more.
func (a *assignment) filled(w int, more int64) float64 {
	return float64(a.load[w]+more) / float64(a.capacity(w))
}

// keep leaves partitions with their owners, where these live and may own them.
func (a *assignment) keep() {
	byID := map[string]int{}
	for i, w := range a.workers {
		byID[w.ID] = i
	}
	for p := range a.partitions {
		if w, ok := byID[a.partitions[p].Owner]; ok && a.may(p, w) {
			a.give(p, w)
		}
	}
}

// place gives those without an owner to the least loaded workers.
func (a *assignment) place() {
	for _, p := range a.order {
		if a.owner[p] >= 0 {
			continue
		}
		best := -1
		for w := range a.workers {
			if a.may(p, w) && (best < 0 || a.before(p, w, best)) {
				best = w
			}
		}
		if best >= 0 {
			a.give(p, best)
		}
	}
}

// before tells whether a partition is rather placed with one worker than with another.
func (a *assignment) before(p, w, other int) bool {
	x, y := a.filled(w, a.weight(p)), a.filled(other, a.weight(p))
	if x != y {
		return x < y
	}
	g := a.partitions[p].Group
	return a.groups[w][g] < a.groups[other][g]
}

// level moves partitions one by one, from the most loaded worker that has one to move, while the other worker's load
// stays below its own by more than the slack. Each move lowers the heavier load of two workers, so this comes to an end;
// the bound is for rounding alone.
func (a *assignment) level() {
	for range 16 * len(a.partitions) {
		from := make([]int, len(a.workers))
		for w := range from {
			from[w] = w
		}
		slices.SortStableFunc(from, func(x, y int) int { return cmp.Compare(a.filled(y, 0), a.filled(x, 0)) })
		if !slices.ContainsFunc(from, a.relieve) {
			return
		}
	}
}

// relieve makes the best move away from a worker: the one that lowers the heavier load most, to the least loaded worker,
// of the group that it has most of. False where no move is worth it. What counts is what all moves come to: a single
// one of many small partitions lowers a load by next to nothing.
func (a *assignment) relieve(from int) bool {
	partition, worker := -1, -1
	var gain float64
	var skew int
	slack := a.mean * Slack / 100
	fits := a.fitting(from)
	for _, p := range a.order {
		if a.owner[p] != from {
			continue
		}
		g := a.partitions[p].Group
		for to := range a.workers {
			if to == from || !a.may(p, to) {
				continue
			}
			if fits[to] <= slack || a.filled(from, 0)-a.filled(to, a.weight(p)) <= slack {
				continue
			}
			lower := a.filled(from, 0) - max(a.filled(to, a.weight(p)), a.filled(from, -a.weight(p)))
			if lower < gain {
				continue
			}
			s := a.groups[from][g] - a.groups[to][g]
			if lower > gain || a.filled(to, 0) < a.filled(worker, 0) || (a.filled(to, 0) == a.filled(worker, 0) && s > skew) {
				partition, worker, gain, skew = p, to, lower, s
			}
		}
	}
	if partition >= 0 {
		a.give(partition, worker)
	}
	return partition >= 0
}

// fitting is, by worker, what a worker's partitions come to, as part of its own load, that would each leave the other
// less loaded than it is.
func (a *assignment) fitting(from int) []float64 {
	fits := make([]float64, len(a.workers))
	for p, owner := range a.owner {
		if owner != from {
			continue
		}
		for to := range a.workers {
			if to != from && a.may(p, to) && a.filled(to, a.weight(p)) < a.filled(from, 0) {
				fits[to] += float64(a.weight(p)) / float64(a.capacity(from))
			}
		}
	}
	return fits
}
