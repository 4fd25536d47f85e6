package brokertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
)

// publishToRecreated: a producer that knew the old topic gets through to the new one.
func publishToRecreated(t *testing.T, c Cluster) {
	f := open(t, c, 1, nil)
	f.publish(0, 0, 3)
	f.again(c)
	f.publishUntil(0, 3)
	r, l := f.reader(), newLog()
	r.Add(f.topic, 0, 0)
	f.poll(r, l, l.endsWith(0, 2))
	f.expectCopies(l, 0, 3)
}

// oversize: a record that is too large fails, those handed over behind it fail as "behind", those before it and those
// of other partitions don't, and after that the partition goes on in order (P12).
func oversize(t *testing.T, c Cluster) {
	const limit = 2000
	f := open(t, c, 2, map[string]string{"max.message.bytes": fmt.Sprint(limit)})
	big := f.named(record(0, strings.Repeat("x", 2500)))
	res := f.send(record(0, "0"), big, record(1, "0"))
	if res[0].err != nil || res[2].err != nil {
		t.Fatalf("neighbours of an oversize record: %v, %v", res[0].err, res[2].err)
	}
	wants(t, res[1].err, broker.ErrTooLarge)

	// The done function of the oversize record is held up, so that the others are handed over before it has returned.
	release, told := make(chan struct{}), make(chan error, 4)
	f.Publisher().Publish(big, func(_ int64, err error) { <-release; told <- err })
	for i := range 3 {
		f.Publisher().Publish(f.named(record(0, fmt.Sprint(1+i))), func(_ int64, err error) { told <- err })
	}
	close(release)
	for i, want := range []error{broker.ErrTooLarge, broker.ErrBehind, broker.ErrBehind, broker.ErrBehind} {
		select {
		case err := <-told:
			if !errors.Is(err, want) {
				t.Errorf("record %d: %v, want %v", i, err, want)
			}
		case <-time.After(Patience):
			t.Fatal("a failed record wasn't told")
		}
	}
	f.publish(0, 1, 3)

	// The largest record that fits fits; a byte more doesn't.
	low, high := 0, limit // low fits, high doesn't
	n := 0
	for high-low > 1 {
		mid := (low + high) / 2
		switch err := f.send(record(1, strings.Repeat("y", mid)))[0].err; {
		case err == nil:
			low, n = mid, n+1
		case errors.Is(err, broker.ErrTooLarge):
			high = mid
		default:
			t.Fatalf("%d bytes: %v", mid, err)
		}
	}
	if low < limit-100 {
		t.Errorf("the largest value that fits into %d bytes has %d", limit, low)
	}
	r, l := f.reader(), newLog()
	r.Add(f.topic, 0, 0)
	r.Add(f.topic, 1, 0)
	f.poll(r, l, func() bool { return len(l.records[0]) >= 4 && len(l.records[1]) >= n+1 })
	f.expect(l, 0, 0, 4)
	if got := len(l.records[1]); got != n+1 {
		t.Errorf("%d records on the other partition, want %d", got, n+1)
	}
}

func (f *fixture) named(r broker.Record) broker.Record {
	r.Topic = f.topic.Name
	return r
}

func unknownTopic(t *testing.T, c Cluster) {
	f := open(t, c, 1, nil)
	r := record(0, "lost")
	r.Topic = unique("none")
	wants(t, f.send(r)[0].err, broker.ErrNoTopic)
	if err := f.send(record(7, "no such partition"))[0].err; err == nil {
		t.Error("a record of a partition that doesn't exist was published")
	}
	f.publish(0, 0, 1)
}

// report: progress is where Kafka's tools look for it, and may go back.
func report(t *testing.T, c Cluster) {
	f := open(t, c, 3, nil)
	group := unique("group")
	for _, next := range []map[int32]int64{{0: 5, 2: 7}, {0: 6, 1: 1}, {0: 3}} {
		if err := f.Report(f.ctx, group, map[string]map[int32]int64{f.topic.Name: next}); err != nil {
			t.Fatal(err)
		}
		got, err := c.Committed(f.ctx, group)
		if err != nil {
			t.Fatal(err)
		}
		for p, want := range next {
			if got[f.topic.Name][p] != want {
				t.Errorf("after %v: committed %v", next, got)
			}
		}
	}
	if err := f.Report(f.ctx, group, nil); err != nil {
		t.Errorf("nothing to report: %v", err)
	}
	err := f.Report(f.ctx, group, map[string]map[int32]int64{unique("none"): {0: 1}})
	wants(t, err, broker.ErrNoTopic)
}

// ends: a context ends a Poll, Close ends everything, as often as it's called.
func ends(t *testing.T, c Cluster) {
	f := open(t, c, 1, nil)
	r := f.reader()
	r.Add(f.topic, 0, 0)
	ctx, cancel := context.WithTimeout(f.ctx, 10*time.Millisecond)
	defer cancel()
	_, err := r.Poll(ctx)
	wants(t, err, context.DeadlineExceeded)

	polled := make(chan error, 1)
	go func() {
		_, err := r.Poll(f.ctx)
		polled <- err
	}()
	r.Close()
	r.Close()
	select {
	case err := <-polled:
		wants(t, err, broker.ErrClosed)
	case <-time.After(Patience):
		t.Fatal("Poll didn't return after Close")
	}
	_, err = r.Poll(f.ctx)
	wants(t, err, broker.ErrClosed)
	r.Add(f.topic, 0, 0) // harmless

	other, err := f.Reader("other")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	f.Close()
	_, err = other.Poll(f.ctx)
	wants(t, err, broker.ErrClosed)
	_, err = f.Reader("late")
	wants(t, err, broker.ErrClosed)
	wants(t, f.send(record(0, "late"))[0].err, broker.ErrClosed)
}
