package brokertest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
)

// prompt is how long a record, or a partition that was added or resumed, may take to be polled. It's generous: suites
// run side by side on small machines. What it takes usually is for benchmarks to tell.
const prompt = 5 * time.Second

func seesNew(t *testing.T, c Cluster) {
	f := open(t, c, 2, nil)
	r, l := f.reader(), newLog()
	r.Add(f.topic, 0, 0)
	r.Add(f.topic, 1, 0)
	f.publish(0, 0, 1) // the first one waits for metadata and connections
	f.poll(r, l, l.has(0, 1))
	for i := range 10 {
		began := time.Now()
		f.publish(1, i, 1)
		f.poll(r, l, l.has(1, i+1))
		if took := time.Since(began); took > prompt {
			t.Errorf("record %d was polled after %s", i, took)
		}
	}
	f.expect(l, 1, 0, 10)
}

// remove: what was buffered of a partition when it was removed is never polled.
func remove(t *testing.T, c Cluster) {
	f := open(t, c, 2, nil)
	f.publish(0, 0, 5000)
	r, l := f.reader(), newLog()
	r.Add(f.topic, 0, 0)
	r.Add(f.topic, 1, 0)
	f.poll(r, l, l.has(0, 1))
	r.Remove(f.topic.Name, 0)
	r.Remove(f.topic.Name, 0) // as often as one likes
	r.Remove("never-added", 7)
	before := len(l.records[0])
	f.publish(0, 5000, 10)
	f.publish(1, 0, 10)
	f.poll(r, l, l.has(1, 10))
	f.publish(0, 5010, 10)
	f.publish(1, 10, 10)
	f.poll(r, l, l.has(1, 20))
	if n := len(l.records[0]) - before; n > 0 {
		t.Errorf("%d records were polled after their partition was removed", n)
	}
	f.expect(l, 1, 0, 20)

	l = newLog()
	r.Add(f.topic, 0, 5000)
	f.poll(r, l, l.has(0, 20))
	f.expect(l, 0, 5000, 5020)
}

// addElsewhere: a partition that is removed and added again while a poll is under way brings what its last Add asked
// for, in full: nothing stale, no gap. What that poll itself returns may be the old assignment's.
func addElsewhere(t *testing.T, c Cluster) {
	f := open(t, c, 1, nil)
	end := 2000
	f.publish(0, 0, end)
	r := f.reader()
	r.Add(f.topic, 0, 0)
	at := f.drain(r, nil, 0, end)

	for move := range 30 {
		start := (move * 389) % end
		polled := make(chan []broker.Fetch, 1)
		go func() {
			fetches, err := r.Poll(f.ctx)
			if err != nil {
				t.Errorf("poll: %v", err)
			}
			polled <- fetches
		}()
		sent := make(chan struct{})
		f.Publisher().Publish(f.named(record(0, fmt.Sprint(end))), func(int64, error) { close(sent) })
		if move%2 == 0 {
			<-sent // so that there's something to be stale
		}
		r.Remove(f.topic.Name, 0)
		r.Add(f.topic, 0, int64(start))
		<-sent
		end++

		var first []broker.Record
		for _, fetch := range <-polled {
			if fetch.Err != nil {
				t.Fatal(fetch.Err)
			}
			first = append(first, fetch.Records...)
		}
		if len(first) > 0 && first[0].Offset != int64(start) {
			for i, rec := range first {
				if rec.Offset != int64(at+i) {
					t.Fatalf("move %d from %d to %d: offset %d belongs to neither", move, at, start, rec.Offset)
				}
			}
			first = nil
		}
		at = f.drain(r, first, start, end)
	}
}

// drain polls until the log's end and checks that offsets from start on come in order, of which got came already.
func (f *fixture) drain(r broker.Reader, got []broker.Record, start, end int) int {
	f.Helper()
	l := newLog()
	l.records[0] = got
	f.poll(r, l, l.has(0, end-start))
	f.expect(l, 0, start, end)
	return end
}

func pause(t *testing.T, c Cluster) {
	f := open(t, c, 2, nil)
	r, l := f.reader(), newLog()
	r.Add(f.topic, 0, 0)
	r.Add(f.topic, 1, 0)
	f.publish(0, 0, 10)
	f.poll(r, l, l.has(0, 10))
	r.Pause(f.topic.Name, 0)
	r.Pause("never-added", 1)
	f.publish(0, 10, 3000)
	// The fetch that was under way when the partition was paused, and the one after it, may have been for both.
	for i := range 3 {
		f.publish(1, i, 1)
		f.poll(r, l, l.has(1, i+1))
	}
	if n := len(l.records[0]); n != 10 {
		t.Errorf("%d records of a paused partition were polled", n-10)
	}
	began := time.Now()
	r.Resume(f.topic.Name, 0)
	f.poll(r, l, l.has(0, 11))
	if took := time.Since(began); took > prompt {
		t.Errorf("a resumed partition was polled after %s", took)
	}
	f.poll(r, l, l.has(0, 3010))
	f.expect(l, 0, 0, 3010)

	// A pause doesn't outlive its partition.
	r.Pause(f.topic.Name, 0)
	r.Remove(f.topic.Name, 0)
	l = newLog()
	r.Add(f.topic, 0, 3000)
	f.poll(r, l, l.has(0, 10))
	f.expect(l, 0, 3000, 3010)
}

// outOfRange: an offset behind the log's end is an error, nothing is skipped, and the other partitions go on.
func outOfRange(t *testing.T, c Cluster) {
	f := open(t, c, 2, nil)
	f.publish(0, 0, 10)
	r, l := f.reader(), newLog()
	r.Add(f.topic, 0, 11)
	r.Add(f.topic, 1, 0)
	f.poll(r, l, func() bool { return l.errs[0] != nil })
	wants(t, l.errs[0], broker.ErrOutOfRange)

	f.publish(0, 10, 10) // offset 11 exists now, but the partition waits for its Add
	f.publish(1, 0, 10)
	f.poll(r, l, l.has(1, 10))
	f.expect(l, 1, 0, 10)
	if n := len(l.records[0]); n > 0 {
		t.Errorf("%d records of the partition were polled behind its error", n)
	}
	l = newLog()
	r.Add(f.topic, 0, 5)
	f.poll(r, l, l.has(0, 15))
	f.expect(l, 0, 5, 20)

	// The very end is in range.
	r.Add(f.topic, 0, 20)
	l = newLog()
	f.publish(0, 20, 1)
	f.poll(r, l, l.has(0, 1))
	f.expect(l, 0, 20, 21)
}

// trimmed: records that were removed before they were read are an error that says from where the log goes on (K3).
func trimmed(t *testing.T, c Cluster) {
	if c.Trim == nil {
		t.Log("nothing can be removed from this cluster's logs, so there's nothing to test")
		return
	}
	f := open(t, c, 1, nil)
	f.publish(0, 0, 100)
	if err := c.Trim(f.ctx, f.topic.Name, 0, 50); err != nil {
		t.Fatal(err)
	}
	r, l := f.reader(), newLog()
	r.Add(f.topic, 0, 10)
	f.poll(r, l, func() bool { return l.errs[0] != nil || len(l.records[0]) > 0 })
	wants(t, l.errs[0], broker.ErrOutOfRange)
	got, err := f.Offsets(f.ctx, f.topic.Name)
	if err != nil {
		t.Fatal(err)
	}
	if got[0] != (broker.Range{Start: 50, End: 100}) {
		t.Fatalf("offsets %v", got)
	}
	l = newLog()
	r.Add(f.topic, 0, got[0].Start)
	f.poll(r, l, l.has(0, 50))
	f.expect(l, 0, 50, 100)
}

// recreated: a topic that is deleted and created anew is another one, whether the old offset exists in it or not (K4).
func recreated(t *testing.T, c Cluster) {
	for _, n := range []int{5, 25} {
		t.Run(fmt.Sprint(n, " records"), func(t *testing.T) {
			t.Parallel()
			f := open(t, c, 1, nil)
			f.publish(0, 0, 10)
			r, l := f.reader(), newLog()
			r.Add(f.topic, 0, 0)
			f.poll(r, l, l.has(0, 10))

			old := f.topic
			f.again(c)
			f.publishUntil(0, n)
			f.poll(r, l, func() bool { return l.errs[0] != nil })
			wants(t, l.errs[0], broker.ErrTopicGone)
			if got := len(l.records[0]); got != 10 {
				t.Errorf("%d records of the new topic were read as the old one's", got-10)
			}

			// Who still believes in the old topic is told so, by this reader and by a new one.
			for _, r := range []broker.Reader{r, f.reader()} {
				l = newLog()
				r.Add(old, 0, 3)
				f.poll(r, l, func() bool { return l.errs[0] != nil || len(l.records[0]) > 0 })
				wants(t, l.errs[0], broker.ErrTopicGone)
			}
			l = newLog()
			r.Add(f.topic, 0, 0)
			f.poll(r, l, l.endsWith(0, n-1))
			f.expectCopies(l, 0, n)
		})
	}
}

// again deletes the fixture's topic and creates it anew.
func (f *fixture) again(c Cluster) {
	f.Helper()
	if err := c.Delete(f.ctx, f.topic.Name); err != nil {
		f.Fatal(err)
	}
	// A deletion may take a moment; a Create meanwhile finds the old topic.
	old := f.topic
	deadline := time.Now().Add(Patience)
	for f.topic.ID == old.ID {
		if time.Now().After(deadline) {
			f.Fatal("the topic wasn't deleted")
		}
		_ = f.Create(f.ctx, broker.TopicSpec{Name: old.Name, Partitions: old.Partitions})
		topics, err := f.Topics(f.ctx, old.Name)
		if err == nil {
			f.topic = topics[0]
		} else if !errors.Is(err, broker.ErrNoTopic) {
			f.Fatal(err)
		}
	}
}

// publishUntil publishes n records to a topic that was created anew, of which the first ones may fail. What failed may
// be in the topic nevertheless: then it's there twice.
func (f *fixture) publishUntil(partition int32, n int) {
	f.Helper()
	deadline, last := time.Now().Add(Patience), int64(-1)
	for i := 0; i < n; {
		if time.Now().After(deadline) {
			f.Fatalf("only %d of %d records could be published to the new topic", i, n)
		}
		switch res := f.send(record(partition, fmt.Sprint(i)))[0]; {
		case res.err == nil:
			if res.offset <= last || res.offset < int64(i) {
				f.Fatalf("record %d of the new topic is at offset %d, behind one at %d", i, res.offset, last)
			}
			last = res.offset
			i++
		case !errors.Is(res.err, broker.ErrTopicGone) && !errors.Is(res.err, broker.ErrNoTopic):
			f.Fatal(res.err)
		}
	}
}

// whole: a topic is read from its beginning to the ends that it had, in order, and an error of who reads it ends that.
func whole(t *testing.T, c Cluster) {
	f := open(t, c, 3, nil)
	f.publish(0, 0, 300)
	f.publish(2, 0, 40)
	next := map[int32]int64{}
	read := func(yield func(broker.Record) error) error {
		clear(next)
		return broker.ReadAll(f.ctx, f, f.topic.Name, func(r broker.Record) error {
			if r.Offset != next[r.Partition] {
				t.Errorf("partition %d goes on at offset %d, want %d", r.Partition, r.Offset, next[r.Partition])
			}
			next[r.Partition] = r.Offset + 1
			return yield(r)
		})
	}
	late := false
	err := read(func(broker.Record) error {
		if !late { // it comes behind the ends, and ReadAll doesn't follow
			late = true
			f.publish(1, 0, 5)
			f.publish(2, 40, 5)
		}
		return nil
	})
	if err != nil || next[0] != 300 || next[1] != 0 || next[2] != 40 {
		t.Errorf("read up to %v with error %v, want 300, nothing and 40", next, err)
	}
	enough := errors.New("enough")
	if err := read(func(broker.Record) error { return enough }); !errors.Is(err, enough) || len(next) != 1 {
		t.Errorf("after an error of the caller: %v, and read on to %v", err, next)
	}
	if err := broker.ReadAll(f.ctx, f, unique("missing"), nil); !errors.Is(err, broker.ErrNoTopic) {
		t.Errorf("a topic that isn't there: %v", err)
	}
}
