package route

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

func TestSaltedKeys(t *testing.T) {
	for _, c := range []struct {
		id, escaped, salted string
	}{
		{"order-1", "order-1", "order-1#3"},
		{"issue#12", "issue%2312", "issue%2312#3"},
		{"50%", "50%25", "50%25#3"},
		{"a%23b", "a%2523b", "a%2523b#3"},
		{"", "", "#3"},
	} {
		if got := string(Escaped([]byte(c.id))); got != c.escaped {
			t.Errorf("%q is escaped as %q, want %q", c.id, got, c.escaped)
		}
		if got := string(Salted([]byte(c.id), 3)); got != c.salted {
			t.Errorf("%q is salted as %q, want %q", c.id, got, c.salted)
		}
	}
	for _, foreign := range []string{"a#b", "a#01", "a#-1", "a#", "a#99999999999999999999"} {
		if id, n := Unsalted([]byte(foreign)); string(id) != foreign || n != -1 {
			t.Errorf("%q is taken for %q with salt %d", foreign, id, n)
		}
	}
}

func TestPropertySaltedKeysReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.OneOf(rapid.SliceOf(rapid.Byte()), rapid.SliceOf(rapid.SampledFrom([]byte("a#%2350")))).Draw(t, "id")
		before := bytes.Clone(id)
		n := rapid.IntRange(0, 100000).Draw(t, "n")
		if got, salt := Unsalted(Escaped(id)); !bytes.Equal(got, id) || salt != -1 {
			t.Fatalf("%q is read back as %q with salt %d", id, got, salt)
		}
		if got, salt := Unsalted(Salted(id, n)); !bytes.Equal(got, id) || salt != n {
			t.Fatalf("%q with salt %d is read back as %q with %d", id, n, got, salt)
		}
		if !bytes.Equal(id, before) {
			t.Fatal("the id was changed")
		}
	})
}

func TestPropertySaltsSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.SliceOf(rapid.Byte()).Draw(t, "id")
		slots := rapid.Int32Range(1, 64).Draw(t, "slots")
		n := rapid.IntRange(1, 64).Draw(t, "n")
		salts := Salts(id, slots, n)
		if len(salts) == 0 || len(salts) > min(n, int(slots)) || len(salts) < min(n, int(slots))*3/4 {
			t.Fatalf("%d salts of %d for %d slots", len(salts), n, slots)
		}
		seen := map[int32]bool{}
		for _, s := range salts {
			p := Partition(Salted(id, s), slots)
			if seen[p] {
				t.Fatalf("two salts lead to partition %d", p)
			}
			seen[p] = true
		}
	})
}

func FuzzUnsalted(f *testing.F) {
	f.Add([]byte("a#1"))
	f.Add([]byte("a%2523#%23#7"))
	f.Fuzz(func(t *testing.T, key []byte) {
		id, n := Unsalted(key)
		if n < -1 || len(id) > len(key) {
			t.Errorf("%q: %q, %d", key, id, n)
		}
	})
}
