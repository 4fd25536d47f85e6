package config

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// Agents of a pool together never have more than the pool: what limits claim stays, the rest is shared out.
func TestPoolIsSharedOut(t *testing.T) {
	s, err := Parse("swarm.yaml", []byte(`
name: x
topics: {a: , b: }
agents:
  finder: {kind: finder, emits: a, pool: big}
  one: {kind: reader, reads: a, emits: b, pool: big, limits: {steps: 5, bytes: 1GiB}}
  two: {kind: reader, reads: a, emits: b, pool: big}
  three: {kind: embedder, reads: a, emits: b, pool: big, limits: {steps: 1}}
  four: {kind: indexer, reads: b, pool: big}
  free: {kind: indexer, reads: b}
  counted: {kind: indexer, reads: b, pool: many}
pools: {big: {steps: 11, memory: 4GiB}, many: {steps: 200}, empty: {steps: 1}}
`), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]Limits{
		"finder": {}, "one": {Steps: 5, Bytes: 1 << 30}, "two": {Steps: 2, Bytes: 1 << 30}, "three": {Steps: 1, Bytes: 1 << 30},
		"four": {Steps: 3, Bytes: 1 << 30}, "free": {}, "counted": {Steps: 200},
	} {
		if got := s.Agent(name).Limits; got != want {
			t.Errorf("limits of %s are %+v, want %+v", name, got, want)
		}
	}
}

func TestPoolIsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		claims := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 8).Draw(t, "claims")
		steps := rapid.IntRange(1, 40).Draw(t, "steps")
		text := "name: x\ntopics: {a: }\nagents:\n"
		for i, n := range claims {
			limits := ""
			if n > 0 {
				limits = fmt.Sprintf(", limits: {steps: %d}", n)
			}
			text += fmt.Sprintf("  a%d: {kind: indexer, reads: a, pool: p%s}\n", i, limits)
		}
		s, err := Parse("swarm.yaml", fmt.Appendf(nil, "%spools: {p: {steps: %d}}\n", text, steps), noEnv)
		claimed, open := 0, 0
		for _, n := range claims {
			if claimed += n; n == 0 {
				open++
			}
		}
		if fits := claimed+open <= steps; fits != (err == nil) {
			t.Fatalf("%v of %d steps: %v", claims, steps, err)
		}
		if err != nil {
			return
		}
		sum := 0
		for i, a := range s.Agents {
			if n := a.Limits.Steps; n < 1 || claims[i] > 0 && n != claims[i] {
				t.Fatalf("%s has %d steps where %d were claimed", a.Name, n, claims[i])
			}
			sum += a.Limits.Steps
		}
		if sum > steps || open > 0 && sum != steps {
			t.Fatalf("%d of %d steps are given out", sum, steps)
		}
	})
}
