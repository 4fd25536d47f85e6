package prove

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

// Timing is what kills did to the work of others. Gaps are the longest times without an effect of a partition in a
// window about as long as a takeover takes; of each kill the longest one counts.
type Timing struct {
	Kills     int     `json:"kills"`           // those that the figures are of
	Takeover  float64 `json:"takeover_ms"`     // median, over kills, of the longest time until a partition of the killed worker had an effect again
	Longest   float64 `json:"takeover_max_ms"` // the longest of those
	Untouched float64 `json:"gap_ms"`          // median of the longest gap of partitions that other workers had
	Control   float64 `json:"gap_before_ms"`   // the same in the window before each kill
}

// timing reads when effects were made. The clocks of the database and of this process have to be one machine's.
func (p *proof) timing(ctx context.Context, db reader, kills []killed) (t Timing, err error) {
	times := map[ledger.Key][]float64{}
	err = db.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
		rows, err := tx.Query(ctx, `SELECT agent, part, at FROM `+p.names.effect+` ORDER BY at`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var k ledger.Key
			var at float64
			if err := rows.Scan(&k.Group, &k.Partition, &at); err != nil {
				return err
			}
			times[k] = append(times[k], at)
		}
		return rows.Err()
	})
	if err != nil {
		return t, fmt.Errorf("read the times of effects: %w", err)
	}
	return judgeTimes(times, kills, p.Pair.LeaseTime+time.Second), nil
}

// judgeTimes makes the figures; window is how long a takeover may take.
func judgeTimes(times map[ledger.Key][]float64, kills []killed, window time.Duration) (t Timing) {
	var takeover, untouched, control []float64
	for _, k := range kills {
		at := float64(k.at.UnixNano()) / 1e9
		var taken, gap, before float64
		whole := true
		for key, all := range times {
			if at+2*window.Seconds() > all[len(all)-1] || at-window.Seconds() < all[0] {
				whole = false // production begins or ends within
				break
			}
			if slices.Contains(k.owned, key) {
				n, _ := slices.BinarySearch(all, at)
				taken = max(taken, all[n]-at)
				continue
			}
			if slices.Contains(k.owned, ledger.Key{Group: agentFirst, Partition: key.Partition}) {
				continue // what it reads came from a partition of the killed worker: keys lead to the same in both topics
			}
			gap = max(gap, longestGap(all, at, at+window.Seconds()))
			before = max(before, longestGap(all, at-window.Seconds(), at))
		}
		if whole && len(k.owned) > 0 && len(k.owned) < len(times) {
			takeover, untouched, control = append(takeover, taken), append(untouched, gap), append(control, before)
		}
	}
	if len(takeover) == 0 {
		return t
	}
	return Timing{Kills: len(takeover), Takeover: 1e3 * median(takeover), Longest: 1e3 * slices.Max(takeover),
		Untouched: 1e3 * median(untouched), Control: 1e3 * median(control)}
}

// longestGap is the longest time between two neighbours of which one at least is within from and to.
func longestGap(all []float64, from, to float64) (gap float64) {
	n, _ := slices.BinarySearch(all, from)
	for n = max(n, 1); n < len(all) && all[n-1] < to; n++ {
		gap = max(gap, all[n]-all[n-1])
	}
	return gap
}

func median(all []float64) float64 {
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
