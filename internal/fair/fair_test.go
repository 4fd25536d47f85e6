package fair

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

type thing struct {
	class  Class
	tenant string
	n      int
}

// Whatever is pushed comes out once, first come first served within a tenant, and Peek says what Pop will answer.
func TestEverythingGetsItsTurnOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[thing]
		pushed, popped := 0, map[string]int{}
		in := map[string][]int{}
		pop := func(t *rapid.T) {
			peeked, ok := q.Peek()
			got, any := q.Pop()
			if ok != any || got != peeked {
				t.Fatalf("peeked %v, popped %v", peeked, got)
			}
			if !any {
				if left := pushed - popped[""]; left != 0 {
					t.Fatalf("%d are left", left)
				}
				return
			}
			key := fmt.Sprint(got.class, got.tenant)
			if len(in[key]) == 0 || in[key][0] != got.n {
				t.Fatalf("%v came, expected %v first", got, in[key])
			}
			in[key] = in[key][1:]
			popped[""]++
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				x := thing{Class(rapid.IntRange(0, 1).Draw(t, "class")), rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "tenant"), pushed}
				pushed++
				key := fmt.Sprint(x.class, x.tenant)
				in[key] = append(in[key], x.n)
				q.Push(x.class, x.tenant, x)
			},
			"pop": pop,
			"remove": func(t *rapid.T) {
				mod := rapid.IntRange(2, 5).Draw(t, "mod")
				gone := func(n int) bool { return n%mod == 0 }
				q.Remove(func(x thing) bool { return gone(x.n) })
				for key, ns := range in {
					var keep []int
					for _, n := range ns {
						if gone(n) {
							pushed--
						} else {
							keep = append(keep, n)
						}
					}
					in[key] = keep
				}
			},
			"": func(t *rapid.T) {
				if q.Len() != pushed-popped[""] {
					t.Fatalf("%d wait, expected %d", q.Len(), pushed-popped[""])
				}
			},
		})
		for q.Len() > 0 {
			pop(t)
		}
	})
}

// With k tenants of a class that always have something, each gets its share of all turns, however much others have and
// whenever they came: at least every 2k-th of its class, and interactive three of four.
func TestNobodyStarves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var q Queue[thing]
		k := rapid.IntRange(1, 12).Draw(t, "tenants")
		both := rapid.Bool().Draw(t, "both classes")
		heap := rapid.IntRange(1, 50).Draw(t, "of the greedy one")
		fill := func(c Class) {
			for i := range k {
				n := 2
				if i == 0 {
					n = 2 + heap
				}
				for range n {
					q.Push(c, fmt.Sprint(i), thing{class: c, tenant: fmt.Sprint(i)})
				}
			}
		}
		fill(Batch)
		if both {
			fill(Interactive)
		}
		turns := map[thing]int{}
		total := [classes]int{}
		const each = 40
		for range each * k * 4 {
			x, _ := q.Pop()
			turns[x]++
			total[x.class]++
			q.Push(x.class, x.tenant, x) // it has more to do, at once
		}
		for c, all := range total {
			if all == 0 && (Class(c) == Batch || both) {
				t.Fatalf("class %d got nothing", c)
			}
			for i := range k {
				if got := turns[thing{class: Class(c), tenant: fmt.Sprint(i)}]; 2*k*got < all {
					t.Fatalf("tenant %d of %d got %d of %d turns of class %d", i, k, got, all, c)
				}
			}
		}
		if both && (total[Interactive] < 2*total[Batch] || total[Interactive] > 4*total[Batch]) {
			t.Fatalf("interactive got %d turns, batch %d", total[Interactive], total[Batch])
		}
	})
}

func BenchmarkPushPop(b *testing.B) {
	for _, k := range []int{1, 1000} {
		b.Run(fmt.Sprint(k), func(b *testing.B) {
			var q Queue[int]
			names := make([]string, k)
			for i := 1; i < k; i++ {
				names[i] = fmt.Sprint(i)
			}
			for i := range 2 * k {
				q.Push(Batch, names[i%k], i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				q.Push(Batch, names[i%k], i)
				q.Pop()
			}
		})
	}
}
