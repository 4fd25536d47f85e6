package embedded_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/internal/broker/embedded"
)

// prepared is a folder with a topic of 40 records, after a clean stop, and the path of its only segment.
func prepared(t *testing.T) (dir, segment string) {
	t.Helper()
	dir = t.TempDir()
	s := start(t, embedded.Options{Dir: dir})
	c := connect(t, s.Addr())
	c.create("a.b-c", 1)
	c.publish("a.b-c", 0, 40)
	c.Close()
	stop(t, s)
	return dir, filepath.Join(dir, "log", "partitions", "a.b-c-0", "0.dat")
}

func change(t *testing.T, path string, how func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, how(b), 0o644); err != nil {
		t.Fatal(err)
	}
}

// batches lists where the batches of a segment begin.
func batches(b []byte) (at []int) {
	for i := 0; i < len(b); i += 12 + int(binary.BigEndian.Uint32(b[i+8:])) {
		at = append(at, i)
	}
	return at
}

func TestDamageIsSurfacedUntilItsCleared(t *testing.T) {
	t.Parallel()
	flip := func(at func([]byte) int) func([]byte) []byte {
		return func(b []byte) []byte { b[at(b)] ^= 4; return b }
	}
	for name, how := range map[string]func([]byte) []byte{
		"in the middle":          flip(func(b []byte) int { return batches(b)[20] + 65 }),
		"in the last batch":      flip(func(b []byte) int { return len(b) - 3 }),
		"in the first length":    flip(func([]byte) int { return 9 }),
		"cut at a batch's end":   func(b []byte) []byte { return b[:batches(b)[20]] },
		"all of it, not a trace": func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, segment := prepared(t)
			before, err := os.ReadFile(segment)
			if err != nil {
				t.Fatal(err)
			}
			change(t, segment, how)
			for range 2 { // it's known to every later start
				s := start(t, embedded.Options{Dir: dir})
				wantHealth(t, s, embedded.ErrDamaged)
				if words := s.Health()[0].Error(); !strings.Contains(words, "a.b-c/0") || !strings.Contains(words, filepath.Join(dir, "damaged")) {
					t.Errorf("words: %s", words)
				}
				stop(t, s)
			}
			kept, err := filepath.Glob(filepath.Join(dir, "damaged", "*"))
			if err != nil {
				t.Fatal(err)
			}
			var bytes int64
			for _, file := range kept {
				if info, err := os.Stat(file); err == nil && strings.HasSuffix(file, ".dat") {
					bytes += info.Size()
				}
			}
			after, err := os.Stat(segment)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if !strings.HasPrefix(name, "cut") && !strings.HasPrefix(name, "all") && bytes+after.Size() != int64(len(before)) {
				t.Errorf("%d bytes are kept and %d left of %d", bytes, after.Size(), len(before))
			}

			for _, file := range kept {
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
			}
			wantHealth(t, start(t, embedded.Options{Dir: dir}))
		})
	}
}

// TestTornBatchIsNoDamage: what a kill in the middle of a write leaves was never acknowledged.
func TestTornBatchIsNoDamage(t *testing.T) {
	t.Parallel()
	dir, segment := prepared(t)
	b, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	all := batches(b)
	next := bytes.Clone(b[all[len(all)-1]:])
	next[7] = 40 // its offset
	for _, n := range []int{1, 11, 13, 40, 62, len(next) - 1} {
		change(t, segment, func([]byte) []byte { return append(bytes.Clone(b), next[:n]...) })
		s := start(t, embedded.Options{Dir: dir})
		wantHealth(t, s)
		c := connect(t, s.Addr())
		if got := c.read(c.topic("a.b-c"), 0, 0); len(got) != 40 {
			t.Errorf("%d bytes of a batch: %d records", n, len(got))
		}
		c.Close()
		stop(t, s)
	}
}
