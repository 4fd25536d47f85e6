package route

import (
	"math"
	"testing"

	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"
)

func TestI1I2Vectors(t *testing.T) {
	for _, v := range vectors {
		if got := Partition([]byte(v.key), v.count); got != v.partition {
			t.Errorf("%q goes to %d of %d, want %d", v.key, got, v.count, v.partition)
		}
	}
	if err := SelfTest(); err != nil {
		t.Error(err)
	}
}

// I2: the vectors tell the right mask from the two usual mistakes.
func TestI2VectorsTellMistakes(t *testing.T) {
	for _, v := range []struct {
		key                   string
		count, unsigned, abs_ int32
	}{
		{"TT0124", 15, 3, 13},
		{"f562ac3b-2224-4e25-a0ab-56094e10c239", 10, 3, 3},
		{"1468509572224", 6, 5, 5},
		{"order-2", 6, 5, 5},
		{"tenant-a", 12, 11, 5},
	} {
		h := murmur2([]byte(v.key))
		if got := int32(h % uint32(v.count)); got != v.unsigned {
			t.Errorf("%q without the mask: %d, the table says %d", v.key, got, v.unsigned)
		}
		if got := int32(math.Abs(float64(int32(h)))) % v.count; got != v.abs_ {
			t.Errorf("%q by abs: %d, the table says %d", v.key, got, v.abs_)
		}
		if got := Partition([]byte(v.key), v.count); got == v.unsigned || got == v.abs_ {
			t.Errorf("%q goes to %d, which is a mistake's answer", v.key, got)
		}
	}
}

// Values of murmur2 itself, as Java's UtilsTest has them.
func TestMurmur2(t *testing.T) {
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}

// I4: an empty key is pinned, a missing one is spread and never mistaken for it.
func TestI4EmptyAndNullKeys(t *testing.T) {
	seen := map[int32]int{}
	for n := range int64(300) {
		if got := Record([]byte{}, n, 6); got != 3 {
			t.Fatalf("the empty key goes to %d, want 3", got)
		}
		seen[Record(nil, n, 6)]++
	}
	for p := range int32(6) {
		if seen[p] != 50 {
			t.Errorf("%d of 300 keyless records go to partition %d, want 50", seen[p], p)
		}
	}
	if a, b := Record(nil, 17, 6), Record(nil, 17, 6); a != b {
		t.Error("the same keyless record went to two partitions")
	}
	if got := Record(nil, math.MinInt64, 6); got < 0 || got > 5 {
		t.Errorf("partition %d of 6", got)
	}
}

// I4: two spellings of one name are two keys, so names are brought to form C before they become keys.
func TestI4SpellingsDiffer(t *testing.T) {
	nfc, nfd := "caf\u00e9", "cafe\u0301"
	if Partition([]byte(nfc), 6) == Partition([]byte(nfd), 6) {
		t.Error("the vectors no longer differ")
	}
	if got := Partition([]byte(norm.NFC.String(nfd)), 6); got != 0 {
		t.Errorf("form C goes to %d, want 0", got)
	}
}

func TestPropertyKeysStayWithinTheTopic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.Int32Range(1, 5000).Draw(t, "count")
		key := rapid.SliceOf(rapid.Byte()).Draw(t, "key")
		if got := Partition(key, count); got < 0 || got >= count || got != Record(key, rapid.Int64().Draw(t, "n"), count) {
			t.Fatalf("key %x goes to %d of %d", key, got, count)
		}
	})
}

func BenchmarkPartition(b *testing.B) {
	key := []byte("354afe16-939a-4ea8-8e17-8bb0840b6886")
	b.ReportAllocs()
	for b.Loop() {
		Partition(key, 64)
	}
}
