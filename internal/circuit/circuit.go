// Package circuit owns the decision when something that steps depend on counts
// as down, when it's tried again, and when it counts as back. It's pure: time
// and randomness are given, nothing here waits, and nothing survives a crash,
// since a worker that starts anew finds out soon enough.
//
// A circuit is closed while all is well. It opens for one of two reasons:
//
//   - Down: the dependency says, or shows, that it's down (a refused connection,
//     503, 429). A few such failures in a row are enough, or where they are the
//     larger part of many.
//   - Refusing: it answers, but refuses everything: so many records in a row
//     were to be dead-lettered for it that it's more likely to be wrong than
//     they are. A person should look.
//
// While it's open one probe at a time is let through, after waits that grow and
// are jittered, and never before the time that the dependency itself asked for.
// The first one that succeeds closes it.
package circuit

import "time"

// Bounds at which a circuit opens.
const (
	Window    = 10 * time.Second // failures older than this are forgotten
	InARow    = 3                // failures without a success between them
	Many      = 10               // failures that open it although others succeed, if they are at least half of all
	Refusals  = 10               // records refused for good without a success between them
	FirstWait = time.Second      // before the first probe
	MaxAsked  = 10 * time.Minute // longest wait that a dependency may ask for
)

// State is what a circuit lets through.
type State string

const (
	Closed  State = "closed"  // everything
	Open    State = "open"    // nothing
	Probing State = "probing" // nothing but the probe that is under way
)

// Reason is why a circuit opened.
type Reason string

const (
	Down     Reason = "down"
	Refusing Reason = "refusing" // answers nothing but errors that no other attempt can mend
)

// Circuit is one dependency's. The zero value is closed; its fields are set before it's used.
type Circuit struct {
	MaxWait time.Duration  // between probes
	Rand    func() float64 // in [0, 1)

	state State
	why   Reason
	cause string
	since time.Time // of the state

	began     time.Time // of the window
	failures  int       // in the window
	successes int
	row       int // failures since the last success
	rowBegan  time.Time
	refused   int // refusals since the last success

	probes int // failed since it opened
	next   time.Time
	closed time.Time // when it last did
}

// State is the circuit's, with why it's open and since when.
func (c *Circuit) State() (State, Reason, string, time.Time) {
	if c.state == "" {
		return Closed, "", "", c.since
	}
	return c.state, c.why, c.cause, c.since
}

// Closed tells whether everything is let through.
func (c *Circuit) Closed() bool { return c.state == "" || c.state == Closed }

// Next is when a probe may start, while the circuit is open.
func (c *Circuit) Next() time.Time { return c.next }

// Failed notes that the dependency was down for an attempt that isn't the probe; after is how long it asks to be left
// alone. It tells whether the circuit opened by that.
func (c *Circuit) Failed(now time.Time, cause string, after time.Duration) (opened bool) {
	if !c.Closed() {
		c.postpone(now, after)
		return false
	}
	c.slide(now)
	if c.row == 0 || now.Sub(c.rowBegan) > Window {
		c.row, c.rowBegan = 0, now
	}
	c.failures++
	c.row++
	if c.row < InARow && (c.failures < Many || c.failures < c.successes) {
		return false
	}
	c.open(now, Down, cause)
	c.postpone(now, after)
	return true
}

// Refused notes that the dependency refused a record for good. It tells whether the circuit opened by that; while it's
// open the record should be kept, not given up.
func (c *Circuit) Refused(now time.Time, cause string) (opened bool) {
	if !c.Closed() {
		return false
	}
	c.row = 0 // it answers
	c.refused++
	if c.refused < Refusals {
		return false
	}
	c.open(now, Refusing, cause)
	return true
}

// Succeeded notes that the dependency answered an attempt that isn't the probe. An open circuit stays open: what was
// begun before it opened says nothing of now.
func (c *Circuit) Succeeded(now time.Time) {
	if !c.Closed() {
		return
	}
	c.slide(now)
	c.successes++
	c.row, c.refused = 0, 0
}

// Probe tells whether a probe may start now; if so it's under way until Passed, Missed or Dropped.
func (c *Circuit) Probe(now time.Time) bool {
	if c.state != Open || now.Before(c.next) {
		return false
	}
	c.state = Probing
	return true
}

// Passed says that the probe succeeded: the circuit closes.
func (c *Circuit) Passed(now time.Time) {
	c.state, c.why, c.cause, c.since, c.closed = Closed, "", "", now, now
	c.row, c.refused, c.failures, c.successes, c.began = 0, 0, 0, 0, now
}

// Missed says that the probe failed; the next one waits longer.
func (c *Circuit) Missed(now time.Time, cause string, after time.Duration) {
	c.state, c.cause = Open, cause
	c.probes++
	c.next = now.Add(c.wait())
	c.postpone(now, after)
}

// Dropped says that the probe came to nothing, as where its partition was lost: another one may start at once.
func (c *Circuit) Dropped(now time.Time) {
	c.state, c.next = Open, now
}

// open opens the circuit. One that was closed only a moment ago goes on with the waits that it had.
func (c *Circuit) open(now time.Time, why Reason, cause string) {
	if c.closed.IsZero() || now.Sub(c.closed) > Window {
		c.probes = 0
	}
	c.state, c.why, c.cause, c.since = Open, why, cause, now
	c.next = now.Add(c.wait())
}

// postpone puts the next probe off to the time that the dependency asked for, with a little more, so that not all who
// were told the same come back together.
func (c *Circuit) postpone(now time.Time, after time.Duration) {
	after = min(after, MaxAsked)
	if after <= 0 {
		return
	}
	after += time.Duration(c.Rand() * float64(min(after/10, time.Second)))
	if at := now.Add(after); at.After(c.next) {
		c.next = at
	}
}

// wait is the wait before the next probe: doubled with each that failed, up to MaxWait, of which a random half.
func (c *Circuit) wait() time.Duration {
	bound := c.MaxWait
	if c.probes < 20 {
		bound = min(FirstWait<<c.probes, bound)
	}
	return bound/2 + time.Duration(c.Rand()*float64(bound/2))
}

// slide begins a new window where the last one is over.
func (c *Circuit) slide(now time.Time) {
	if now.Sub(c.began) > Window {
		c.began, c.failures, c.successes = now, 0, 0
	}
}
