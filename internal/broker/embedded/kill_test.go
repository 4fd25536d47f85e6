package embedded_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/killkit"
)

// killsVar is how often TestKills kills; the default is for every day.
const killsVar = "SWARMLOG_KILLS"

// spawn starts a broker in a process of its own, always at the same address.
func spawn(t testing.TB, dir string) (*killkit.Process, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := killkit.Start(t.Context(), killkit.Command{
		Name:   "broker",
		Args:   []string{"-test.run=^$"},
		Env:    []string{childDir + "=" + dir, childAddr + "=" + addr},
		Output: filepath.Join(t.TempDir(), "broker.log"),
		Ready:  killkit.Line("the broker is ready"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p, addr
}

// sender publishes numbered records to every partition until it's told to end, and notes which were acknowledged, and
// where.
type sender struct {
	c          client
	topic      broker.Topic
	slots      chan struct{}
	stop, gone chan struct{}

	mu     sync.Mutex
	acked  []map[int]int64 // by partition: number → offset
	failed []error
}

func newSender(c client, topic broker.Topic, inFlight int) *sender {
	s := &sender{c: c, topic: topic, slots: make(chan struct{}, inFlight), stop: make(chan struct{}), gone: make(chan struct{})}
	for range topic.Partitions {
		s.acked = append(s.acked, map[int]int64{})
	}
	go s.run()
	return s
}

func (s *sender) run() {
	defer close(s.gone)
	var wg sync.WaitGroup
	for n := 0; ; n++ {
		for p := range s.topic.Partitions {
			select {
			case <-s.stop:
				wg.Wait()
				return
			case s.slots <- struct{}{}:
			}
			wg.Add(1)
			s.c.Publisher().Publish(numbered(s.topic.Name, p, n), func(offset int64, err error) {
				s.mu.Lock()
				if err != nil {
					s.failed = append(s.failed, err)
				} else {
					s.acked[p][n] = offset
				}
				s.mu.Unlock()
				<-s.slots
				wg.Done()
			})
		}
	}
}

// end stops sending and waits until all is acknowledged.
func (s *sender) end(t *testing.T) {
	t.Helper()
	close(s.stop)
	select {
	case <-s.gone:
	case <-time.After(2 * patience):
		t.Fatal("records weren't settled after the last restart")
	}
	if len(s.failed) > 0 {
		t.Fatalf("%d records failed, though nothing but the broker was away: %v", len(s.failed), s.failed[0])
	}
}

// TestKills kills the broker while a producer writes. Whatever was acknowledged is there afterwards, at the offset that
// was acknowledged. Copies and inversions may be: they're counted, for the ledger absorbs them.
func TestKills(t *testing.T) {
	t.Parallel()
	kills := 5
	if v := os.Getenv(killsVar); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("%s=%q: %v", killsVar, v, err)
		}
		kills = n
	}
	dir := t.TempDir()
	p, addr := spawn(t, dir)
	c := connect(t, addr)
	topic := c.create("killed", 4)
	schedule, err := killkit.NewSchedule(0, t.Logf)
	if err != nil {
		t.Fatal(err)
	}

	s := newSender(c, topic, 256)
	if err := schedule.Kill(t.Context(), p, kills, 100*time.Millisecond, time.Second); err != nil {
		t.Fatal(err)
	}
	s.end(t)
	c.check(s, kills)

	// A kill is no damage, even in the middle of a write.
	c.Close()
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	last := start(t, embedded.Options{Dir: dir})
	wantHealth(t, last)
	connect(t, last.Addr()).check(s, kills+1)
}

func (c client) check(s *sender, kills int) {
	c.Helper()
	var acked, copies, inversions int
	for p := range s.topic.Partitions {
		records := c.read(s.topic, p, 0)
		seen, highest := map[string]bool{}, -1
		for _, r := range records {
			n, err := strconv.Atoi(string(r.Value))
			if err != nil {
				c.Fatal(err)
			}
			switch {
			case seen[string(r.Value)]:
				copies++
			case n < highest:
				inversions++
			}
			seen[string(r.Value)] = true
			highest = max(highest, n)
		}
		byOffset := map[int64]string{}
		for _, r := range records {
			byOffset[r.Offset] = string(r.Value)
		}
		for n, offset := range s.acked[p] {
			acked++
			if byOffset[offset] != fmt.Sprint(n) {
				c.Errorf("partition %d: record %d was acknowledged at offset %d, where %q is now", p, n, offset, byOffset[offset])
			}
		}
	}
	if acked == 0 {
		c.Fatal("nothing was acknowledged, so nothing was tested")
	}
	c.Logf("%d kills: %d acknowledged records, none missing or moved; %d copies, %d inversions", kills, acked, copies, inversions)
}

// TestCleanStops: a broker that is stopped, not killed, makes no copies under a producer that goes on.
func TestCleanStops(t *testing.T) {
	t.Parallel()
	p, addr := spawn(t, t.TempDir())
	c := connect(t, addr)
	topic := c.create("stopped", 2)
	schedule, err := killkit.NewSchedule(0, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	s := newSender(c, topic, 256)
	err = schedule.Repeat(t.Context(), 3, 50*time.Millisecond, 300*time.Millisecond, func(int) error {
		if err := p.Terminate(patience); err != nil {
			return err
		}
		return p.Restart(t.Context())
	})
	if err != nil {
		t.Fatal(err)
	}
	s.end(t)
	for partition := range topic.Partitions {
		records := c.read(topic, partition, 0)
		if len(records) != len(s.acked[partition]) {
			t.Errorf("partition %d: %d records of %d acknowledged ones", partition, len(records), len(s.acked[partition]))
		}
		for i, r := range records {
			if string(r.Value) != fmt.Sprint(i) {
				t.Fatalf("partition %d: record %d is %s", partition, i, r.Value)
			}
		}
	}
}
