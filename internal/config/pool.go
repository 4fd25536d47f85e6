package config

import "fmt"

// leastMemory is the least that an agent can do something with.
const leastMemory = 1 << 20

// shareOut bounds the agents of a pool by what the pool has: what limits claim is theirs, and those that claim nothing
// get equal shares of the rest as their limits. So together they never run or hold more than the pool has, without
// counting at run time. A finder runs no steps and takes no share.
func (r *reader) shareOut(s *Swarm, p *Pool) {
	var agents []*Agent
	for i := range s.Agents {
		if a := &s.Agents[i]; a.Pool == p.Name && kinds[a.Kind].reads {
			agents = append(agents, a)
		}
	}
	if len(agents) == 0 {
		return
	}
	text := func(n int64) string { return fmt.Sprintf("%d steps", n) }
	steps := make([]*int64, len(agents))
	bytes := make([]*int64, len(agents))
	for i, a := range agents {
		n := int64(a.Limits.Steps)
		steps[i], bytes[i] = &n, &a.Limits.Bytes
	}
	r.divide(p, agents, steps, int64(p.Steps), 1, text)
	r.divide(p, agents, bytes, p.Memory, leastMemory, FormatSize)
	for i, a := range agents {
		a.Limits.Steps = int(*steps[i])
	}
}

// divide gives the limits that are zero equal shares of what the others leave, of least at least. A pool of 0 bounds
// nothing.
func (r *reader) divide(p *Pool, agents []*Agent, limits []*int64, has, least int64, text func(int64) string) {
	if has == 0 {
		return
	}
	left, open := has, int64(0)
	for i, n := range limits {
		if *n > has {
			r.add(agents[i].place("limits"), fmt.Sprintf("agent %s may have %s at once, but its pool %s has %s", agents[i].Name, text(*n), p.Name, text(has)),
				"write a lower limit, or a pool with more")
			return
		}
		if left -= *n; *n == 0 {
			open++
		}
	}
	if left < open*least {
		r.add(p.at, fmt.Sprintf("pool %s has %s, but its %d agents need at least %s", p.Name, text(has), len(agents), text(has-left+open*least)),
			"write lower limits for its agents, or more for the pool")
		return
	}
	for _, n := range limits {
		if *n == 0 {
			*n = left / open
			left, open = left-*n, open-1
		}
	}
}
