package status

import "time"

// Meter turns a rising total into a rate over a sliding window, from looks that
// may come at any rhythm. The zero value isn't ready: use NewMeter. It has one
// user at a time.
type Meter struct {
	window  time.Duration
	samples []sample // ascending; samples[0] is the last one at or before the window's start, if any is
}

type sample struct {
	at    time.Time
	total int64
}

// NewMeter makes a meter that looks back over window.
func NewMeter(window time.Duration) *Meter { return &Meter{window: window} }

// Observe notes the total at a time and returns the rate per second over the
// window; 0 from the first look. A total that fell (a new run) starts afresh.
func (m *Meter) Observe(at time.Time, total int64) float64 {
	if n := len(m.samples); n > 0 {
		last := m.samples[n-1]
		switch {
		case total < last.total || at.Before(last.at):
			m.samples = m.samples[:0]
		case at.Sub(last.at) < m.window/100:
			// Too close to tell anything new: many readers mustn't grow the list.
			return m.rate()
		}
	}
	m.samples = append(m.samples, sample{at, total})
	drop := 0
	for drop+1 < len(m.samples) && at.Sub(m.samples[drop+1].at) >= m.window {
		drop++
	}
	m.samples = append(m.samples[:0], m.samples[drop:]...)
	return m.rate()
}

func (m *Meter) rate() float64 {
	if len(m.samples) < 2 {
		return 0
	}
	first, last := m.samples[0], m.samples[len(m.samples)-1]
	return float64(last.total-first.total) / last.at.Sub(first.at).Seconds()
}

// TimeLeft estimates the seconds until remaining records are settled at a rate
// per second: 0 where none remain, nil where nobody can know.
func TimeLeft(remaining *int64, rate float64) *float64 {
	if remaining == nil || (*remaining > 0 && rate <= 0) {
		return nil
	}
	var left float64
	if *remaining > 0 {
		left = float64(*remaining) / rate
	}
	return &left
}
