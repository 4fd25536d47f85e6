package config

import (
	"fmt"
	"slices"
)

// checkShadows looks whether shadows have something to run beside, and gives them what their primaries read and emit.
func (r *reader) checkShadows(s *Swarm) {
	for i := range s.Agents {
		a := &s.Agents[i]
		if a.ShadowOf == "" {
			continue
		}
		of := s.Agent(a.ShadowOf)
		reads, emits := a.at["reads"], a.at["emits"]
		for _, key := range []string{"reads", "emits"} { // they may be left out
			if a.at[key] == nil {
				a.at[key] = a.at[""]
			}
		}
		if !r.checkPrimary(s, a, of) {
			continue
		}
		if a.OnDead != "" {
			r.add(a.at["on_dead"], fmt.Sprintf("agent %s is a shadow, which leaves no dead letters, but has on_dead", a.Name), "remove on_dead")
		}
		if reads == nil {
			a.Reads = slices.Clone(of.Reads)
		} else if !slices.Equal(slices.Sorted(slices.Values(a.Reads)), slices.Sorted(slices.Values(of.Reads))) {
			r.add(reads, fmt.Sprintf("shadow %s doesn't read the same as %s", a.Name, of.Name), "remove reads: it reads what that agent reads")
		}
		if emits == nil {
			a.Emits = slices.Clone(of.Emits)
		}
	}
}

// checkPrimary tells whether an agent can be a shadow of another.
func (r *reader) checkPrimary(s *Swarm, a, of *Agent) bool {
	at := a.at["shadow_of"]
	if of == nil {
		r.add(at, fmt.Sprintf("agent %s is a shadow of %q, which isn't among agents", a.Name, shorten(a.ShadowOf)),
			oneOf(a.ShadowOf, names(s.Agents, func(a Agent) string { return a.Name })))
		return false
	}
	if of == a || of.ShadowOf != "" {
		r.add(at, fmt.Sprintf("agent %s is a shadow of %s, which is a shadow itself", a.Name, of.Name), "name an agent that takes effect")
		return false
	}
	for _, one := range []*Agent{a, of} {
		if spec, ok := kinds[one.Kind]; ok && (!spec.reads || !spec.emits) {
			why := "reads no topic"
			if spec.reads {
				why = "emits nothing that could be compared"
			}
			r.add(at, fmt.Sprintf("agent %s is a shadow of %s, but %s is of kind %s, which %s", a.Name, of.Name, one.Name, one.Kind, why), "remove shadow_of")
			return false
		}
	}
	if taken := s.Agent(a.Name + ".compare"); taken != nil {
		r.add(taken.at[""], fmt.Sprintf("agent %s is named as what compares shadow %s", taken.Name, a.Name), "choose another name")
	}
	return true
}
