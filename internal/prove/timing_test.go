package prove

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// evenly is an effect every tenth of a second for a hundred seconds, without those from one time to another.
func evenly(without ...float64) []float64 {
	var all []float64
	for i := range 1000 {
		at := float64(i) / 10
		if len(without) == 2 && at > without[0] && at < without[1] {
			continue
		}
		all = append(all, at)
	}
	return all
}

func TestTimingOfAKill(t *testing.T) {
	t.Parallel()
	mine, other := ledger.Key{Group: "first", Partition: 1}, ledger.Key{Group: "first", Partition: 2}
	kill := killed{at: time.Unix(50, 0), owned: []ledger.Key{mine}}
	starved := ledger.Key{Group: "second", Partition: 1} // reads what the killed worker's partition emits
	got := judgeTimes(map[ledger.Key][]float64{mine: evenly(49.95, 54.9), other: evenly(51, 51.5), starved: evenly(50.5, 55)}, []killed{kill}, 6*time.Second)
	for name, f := range map[string][2]float64{"takeover": {got.Takeover, 4900}, "longest": {got.Longest, 4900},
		"gap of others": {got.Untouched, 500}, "gap before": {got.Control, 100}} {
		if math.Abs(f[0]-f[1]) > 101 { // effects come every 100 ms
			t.Errorf("%s is %.0f ms, expected about %.0f", name, f[0], f[1])
		}
	}
	if got.Kills != 1 {
		t.Errorf("judged %d kills", got.Kills)
	}
	if got.Takeover < 4800 || got.Untouched < 499 {
		t.Errorf("a gap was overlooked: %+v", got)
	}
}

// A kill whose window isn't within the time of production says nothing, and neither does one of a worker that had
// nothing.
func TestTimingLeavesOutWhatCannotBeJudged(t *testing.T) {
	t.Parallel()
	key := ledger.Key{Group: "first"}
	times := map[ledger.Key][]float64{key: evenly(), {Group: "second"}: evenly()}
	for _, k := range []killed{{at: time.Unix(99, 0), owned: []ledger.Key{key}}, {at: time.Unix(1, 0), owned: []ledger.Key{key}}, {at: time.Unix(50, 0)}} {
		if got := judgeTimes(times, []killed{k}, 6*time.Second); got != (Timing{}) {
			t.Errorf("%v: judged %+v", k.at, got)
		}
	}
}

func TestMedian(t *testing.T) {
	t.Parallel()
	for want, all := range map[float64][]float64{2: {3, 1, 2}, 2.5: {4, 1, 2, 3}, 7: {7}} {
		if got := median(slices.Clone(all)); got != want {
			t.Errorf("median of %v is %v", all, got)
		}
	}
}
