package sketch

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// Against exact counts: no key weighs more than its count says, none less than its count without what may be others',
// the counts add up to the whole, and whoever weighs more than the whole divided by the capacity is among them.
func TestPropertyCountsAreWithinTheirBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 12).Draw(t, "capacity")
		k := NewTopK(capacity)
		exact := map[string]float64{}
		total := 0.0
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				key := fmt.Sprint(rapid.IntRange(0, 30).Draw(t, "key"))
				w := float64(rapid.IntRange(0, 5).Draw(t, "weight"))
				exact[key] += w
				total += w
				if c := k.Add(key, w); c.Key != key || c != k.Of(key) {
					t.Fatalf("Add says %+v, Of says %+v", c, k.Of(key))
				}
			},
			"decay": func(t *rapid.T) {
				factor := rapid.SampledFrom([]float64{0, 0.5, 0.75, 1}).Draw(t, "factor")
				k.Decay(factor)
				total *= factor
				for key := range exact {
					exact[key] *= factor
				}
			},
			"": func(t *rapid.T) {
				const slack = 1e-9
				near := func(a, b float64) bool { return math.Abs(a-b) <= slack*(1+math.Abs(b)) }
				kept := map[string]bool{}
				sum := 0.0
				top := k.Top(100)
				for i, c := range top {
					kept[c.Key] = true
					sum += c.Weight
					if i > 0 && c.Weight > top[i-1].Weight {
						t.Fatalf("%v is out of order", top)
					}
				}
				if len(top) > capacity || !near(sum, total) || !near(k.Total(), total) {
					t.Fatalf("%d counts of %d add up to %v, total %v of %v", len(top), capacity, sum, k.Total(), total)
				}
				for n := range 31 {
					key := fmt.Sprint(n)
					c, true_ := k.Of(key), exact[key]
					if true_ > c.Weight+slack*(1+true_) || true_ < c.Least()-slack*(1+true_) {
						t.Fatalf("key %s weighs %v, its count is %+v", key, true_, c)
					}
					if true_ > total/float64(capacity)*(1+slack)+slack && !kept[key] {
						t.Fatalf("key %s weighs %v of %v and isn't kept", key, true_, total)
					}
				}
			},
		})
	})
}

func BenchmarkAdd(b *testing.B) {
	k := NewTopK(64)
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("aggregate-", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k.Add(keys[i*i%len(keys)], 1)
	}
}
