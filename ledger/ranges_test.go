package ledger

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The set agrees with one that keeps each offset by itself, whatever is added in whatever order.
func TestRangesAgreeWithASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		next := rapid.Int64Range(0, 5).Draw(t, "next")
		var r Ranges
		set := make(map[int64]bool)
		for range rapid.IntRange(0, 20).Draw(t, "adds") {
			from := rapid.Int64Range(0, 40).Draw(t, "from")
			to := from + rapid.Int64Range(0, 5).Draw(t, "length")
			r = r.Add(Span{from, to})
			for o := from; o <= to; o++ {
				set[o] = true
			}
			if rapid.IntRange(0, 3).Draw(t, "advance") == 0 {
				before := r.Clone()
				next, r = r.Advance(next)
				for o := range next {
					set[o] = true // below the watermark all is finished
				}
				if _, again := r.Advance(next); len(again) != len(r) {
					t.Fatalf("%v advanced to %d and %v, and then further", before, next, r)
				}
			}
			check(t, next, r, set)
		}
	})
}

func check(t *rapid.T, next int64, r Ranges, set map[int64]bool) {
	for o := next; o < 50; o++ {
		if r.Contains(o) != set[o] {
			t.Fatalf("%v contains %d: %v, want %v", r, o, r.Contains(o), set[o])
		}
	}
	for i := 1; i < len(r); i++ {
		if r[i].From <= r[i-1].To+1 {
			t.Fatalf("spans touch: %v", r)
		}
	}
	at, above := r.Clone().Advance(next)
	got, err := DecodeRanges(at, above.Encode(at))
	if err != nil || !slices.Equal(got, above) {
		t.Fatalf("%v from %d became %v, %v", above, at, got, err)
	}
}

func TestAddAtTheEndOfTheOffsets(t *testing.T) {
	r := Ranges{{1, math.MaxInt64}}.Add(Span{5, 7}).Add(Span{math.MaxInt64, math.MaxInt64})
	if fmt.Sprint(r) != fmt.Sprint(Ranges{{1, math.MaxInt64}}) {
		t.Errorf("ranges are %v", r)
	}
	next, rest := Ranges{{1, 3}, {5, 6}}.Advance(2)
	if next != 4 || len(rest) != 1 {
		t.Errorf("advanced to %d and %v", next, rest)
	}
}

func TestCloneSharesNothing(t *testing.T) {
	r := Ranges{{1, 2}, {5, 6}}
	c := r.Clone()
	_ = r.Add(Span{3, 4})
	if fmt.Sprint(c) != "[{1 2} {5 6}]" {
		t.Errorf("clone is %v", c)
	}
}

// What is read back is always a set above the watermark, or refused, and written again it's read the same.
func FuzzDecodeRanges(f *testing.F) {
	f.Add(int64(0), []byte(nil))
	f.Add(int64(7), Ranges{{9, 9}, {11, 4000}}.Encode(7))
	f.Add(int64(3), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 1})
	f.Add(int64(math.MaxInt64), []byte{1, 1})
	f.Add(int64(0), []byte{5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 2, 0})
	f.Add(int64(5), []byte{0, 0})
	f.Fuzz(func(t *testing.T, next int64, b []byte) {
		next &= math.MaxInt64
		r, err := DecodeRanges(next, b)
		if err != nil {
			return
		}
		at := next
		for i, s := range r {
			if s.From <= at || s.To < s.From || (i > 0 && s.From <= r[i-1].To+1) {
				t.Fatalf("from %d: %v is no set above the watermark", next, r)
			}
			at = s.To
		}
		again, err := DecodeRanges(next, r.Encode(next))
		if err != nil || !slices.Equal(again, r) {
			t.Fatalf("%v became %v, %v", r, again, err)
		}
	})
}
