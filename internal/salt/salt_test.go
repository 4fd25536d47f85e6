package salt

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/internal/route"
)

func TestPropertyBoundsHaveHysteresis(t *testing.T) {
	b := Bounds{On: 0.30, Off: 0.15}
	rapid.Check(t, func(t *rapid.T) {
		least := rapid.Float64Range(0, 1).Draw(t, "least")
		most := rapid.Float64Range(least, 1).Draw(t, "most")
		for _, was := range []bool{false, true} {
			is := b.Next(was, least, most)
			switch {
			case least > b.On && !is:
				t.Fatalf("from %v to %v, salted %v: not salted", least, most, was)
			case most < b.Off && is:
				t.Fatalf("from %v to %v, salted %v: salted", least, most, was)
			case least <= b.On && most >= b.Off && is != was:
				t.Fatalf("from %v to %v, it goes from %v to %v between the bounds", least, most, was, is)
			}
		}
	})
}

// K6: while one key has nine tenths of what is emitted, its records go to all partitions alike; other keys stay where
// they are; once it's like the others again, so is its key.
func TestK6HotKeyIsSpreadWhileItDominates(t *testing.T) {
	var changes []Change
	topics := New(func(c Change) { changes = append(changes, c) }, Options{}, "clicks")
	random := rand.New(rand.NewPCG(1, 2))
	const slots = 12
	emit := func(n int, share float64) (hot map[int32]int, salted int) {
		hot = map[int32]int{}
		for range n {
			id := fmt.Sprintf("tenant-%d", random.IntN(500))
			if random.Float64() < share {
				id = "tenant#a"
			}
			key := topics.Key("clicks", []byte(id), slots, false)
			if got := string(topics.ID("clicks", key)); got != id {
				t.Fatalf("key %s is read as %s, not as %s", key, got, id)
			}
			switch {
			case id == "tenant#a":
				hot[route.Partition(key, slots)]++
				if string(key) != "tenant%23a" {
					salted++
				}
			case strings.Contains(string(key), "#"):
				t.Fatalf("%s is salted as %s", id, key)
			}
		}
		return hot, salted
	}
	if _, salted := emit(5000, 0.2); salted > 0 {
		t.Errorf("%d records are salted at a share of 0.2", salted)
	}
	emit(3000, 0.9)
	hot, _ := emit(6000, 0.9)
	for p := range int32(slots) {
		if hot[p] < 400 {
			t.Errorf("%d records of the hot key go to partition %d: %v", hot[p], p, hot)
		}
	}
	if _, salted := emit(5000, 0.2); salted < 900 {
		t.Errorf("%d records are salted between the bounds", salted)
	}
	emit(20000, 0.01)
	if _, salted := emit(2000, 0.01); salted > 0 || len(topics.Hot("clicks")) > 0 {
		t.Errorf("%d records are salted at a share of 0.01", salted)
	}
	if len(changes) != 2 || !changes[0].On || changes[1].On || changes[0].Key != "tenant#a" || changes[0].Topic != "clicks" {
		t.Errorf("told: %+v", changes)
	}
}

func TestWhatIsNeverSalted(t *testing.T) {
	topics := New(nil, Options{Window: 10}, "clicks")
	for range 100 {
		topics.Key("clicks", []byte("a"), 8, false)
	}
	if key := topics.Key("clicks", []byte("a"), 8, false); !strings.HasPrefix(string(key), "a#") {
		t.Fatalf("the hot key is %s", key)
	}
	if key := topics.Key("clicks", []byte("a"), 8, true); string(key) != "a" {
		t.Errorf("in a sequence its key is %s", key)
	}
	if key := topics.Key("clicks", []byte("a"), 1, false); string(key) != "a" {
		t.Errorf("on one partition its key is %s", key)
	}
	if key := topics.Key("orders", []byte("a#1"), 8, false); string(key) != "a#1" {
		t.Errorf("on another topic a key is %s", key)
	}
	if key := topics.ID("orders", []byte("a#1")); string(key) != "a#1" {
		t.Errorf("on another topic an id is %s", key)
	}
	if key := topics.Key("clicks", nil, 8, false); key != nil {
		t.Errorf("no aggregate has key %q", key)
	}
	var none *Topics
	if key := none.Key("clicks", []byte("a#1"), 8, false); string(key) != "a#1" || none.Has("clicks") || none.Hot("clicks") != nil {
		t.Errorf("without such topics a key is %s", key)
	}
}
