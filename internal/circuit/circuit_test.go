package circuit

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func half() float64 { return 0.5 }

func TestOpensAfterAFewFailuresInARow(t *testing.T) {
	t.Parallel()
	c := &Circuit{MaxWait: 30 * time.Second, Rand: half}
	now := start
	for i := range InARow {
		if opened := c.Failed(now, "503", 0); opened != (i == InARow-1) {
			t.Fatalf("after %d failures: opened is %v", i+1, opened)
		}
	}
	if c.Probe(now) {
		t.Error("probed at once")
	}
	if now = c.Next(); !c.Probe(now) || c.Probe(now) {
		t.Error("not exactly one probe was let through")
	}
	c.Missed(now, "503", 0)
	if wait := c.Next().Sub(now); wait != 1500*time.Millisecond { // of 2 s a half, and half of the other
		t.Errorf("second wait is %s", wait)
	}
	now = c.Next()
	c.Probe(now)
	c.Passed(now)
	if !c.Closed() {
		t.Error("a probe that passed didn't close the circuit")
	}
}

func TestFailuresFarApartDoNotOpen(t *testing.T) {
	t.Parallel()
	c := &Circuit{MaxWait: time.Minute, Rand: half}
	for i := range 100 {
		if c.Failed(start.Add(time.Duration(i)*Window), "503", 0) {
			t.Fatalf("opened by failure %d", i)
		}
	}
}

func TestOpensWhereMostFail(t *testing.T) {
	t.Parallel()
	for _, each := range []struct {
		successes int
		opens     bool
	}{{1, true}, {3, false}} {
		c := &Circuit{MaxWait: time.Minute, Rand: half}
		opened := false
		for range 50 {
			opened = opened || c.Failed(start, "503", 0)
			for range each.successes {
				c.Succeeded(start)
			}
		}
		if opened != each.opens {
			t.Errorf("with %d successes for each failure: opened is %v", each.successes, opened)
		}
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	c := &Circuit{MaxWait: 2 * time.Second, Rand: half}
	for range InARow {
		c.Failed(start, "429", 0)
	}
	c.Failed(start, "429", time.Minute) // from a step that had begun before
	if c.Probe(start.Add(time.Minute)) {
		t.Error("probed before the time that was asked for, and some")
	}
	if now := c.Next(); now.After(start.Add(62*time.Second)) || !c.Probe(now) {
		t.Errorf("next probe at %s", now)
	}
	c.Missed(c.Next(), "429", 24*time.Hour)
	if wait := c.Next().Sub(start); wait > MaxAsked+2*time.Minute {
		t.Errorf("waits %s since it was asked to", wait)
	}
}

func TestRefusalsInARowOpen(t *testing.T) {
	t.Parallel()
	c := &Circuit{MaxWait: time.Minute, Rand: half}
	for range Refusals - 1 {
		c.Refused(start, "400")
	}
	c.Succeeded(start)
	for i := range Refusals {
		if opened := c.Refused(start, "400"); opened != (i == Refusals-1) {
			t.Fatalf("refusal %d after a success: opened is %v", i+1, opened)
		}
	}
	if _, why, _, _ := c.State(); why != Refusing {
		t.Errorf("open because it's %s", why)
	}
}

// Whatever happens: an open circuit lets one probe through at a time, waits at least half a second and at most its
// bounds before it, and closes by a probe alone.
func TestOneProbeAtATime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := &Circuit{MaxWait: 30 * time.Second, Rand: func() float64 { return rapid.Float64Range(0, 0.999).Draw(t, "rand") }}
		now, probing := start, false
		t.Repeat(map[string]func(*rapid.T){
			"time": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "time")))
			},
			"failed": func(t *rapid.T) {
				after := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "after"))
				before, open := c.Next(), !c.Closed()
				if c.Failed(now, "", after) && c.Next().Sub(now) < FirstWait/2 {
					t.Fatal("the first probe comes too soon")
				}
				if open && c.Next().Before(before) { // one that opens it anew begins anew
					t.Fatal("a failure brought the probe forward")
				}
			},
			"refused":   func(*rapid.T) { c.Refused(now, "") },
			"succeeded": func(*rapid.T) { c.Succeeded(now) },
			"probe": func(t *rapid.T) {
				open := !c.Closed()
				if c.Probe(now) {
					if probing || !open || now.Before(c.Next()) {
						t.Fatal("a probe that mustn't be")
					}
					probing = true
				}
			},
			"end": func(t *rapid.T) {
				if !probing {
					return
				}
				probing = false
				switch rapid.IntRange(0, 2).Draw(t, "end") {
				case 0:
					c.Passed(now)
				case 1:
					c.Missed(now, "", 0)
					if wait := c.Next().Sub(now); wait < FirstWait/2 || wait > c.MaxWait {
						t.Fatalf("waits %s", wait)
					}
				default:
					c.Dropped(now)
				}
			},
			"": func(t *rapid.T) {
				if probing && c.Closed() {
					t.Fatal("closed while its probe was under way")
				}
			},
		})
	})
}
