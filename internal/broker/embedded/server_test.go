package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
)

func TestCleanRestartKeepsEverythingOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embedded.Options{Dir: dir})
	c := connect(t, s.Addr())
	topic := c.create("kept", 2)
	c.publish("kept", 0, 20)
	if s.LogBytes() == 0 {
		t.Error("the log has no bytes")
	}
	c.Close()
	stop(t, s)
	stop(t, s) // as often as one likes

	s = start(t, embedded.Options{Dir: dir})
	if got := s.Health(); got != nil {
		t.Errorf("health: %v", got)
	}
	c = connect(t, s.Addr())
	if got := c.topic("kept"); got != topic {
		t.Errorf("topic %+v, was %+v", got, topic)
	}
	c.publish("kept", 20, 5)
	records := c.read(topic, 0, 0)
	if len(records) != 25 {
		t.Fatalf("%d records, want 25", len(records))
	}
	for i, r := range records {
		if r.Offset != int64(i) || string(r.Value) != fmt.Sprint(i) {
			t.Fatalf("record %d: offset %d, value %s", i, r.Offset, r.Value)
		}
	}
}

func TestFolderInUse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embedded.Options{Dir: dir})
	_, err := embedded.Start(t.Context(), embedded.Options{Dir: dir})
	if !errors.Is(err, broker.ErrInUse) || !strings.Contains(err.Error(), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("second start: %v", err)
	}
	stop(t, s)
	start(t, embedded.Options{Dir: dir})
}

func TestTakenPort(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := start(t, embedded.Options{Addr: l.Addr().String()})
	if s.Addr() == l.Addr().String() {
		t.Fatal("it says that it listens where another one does")
	}
	c := connect(t, s.Addr())
	c.create("reachable", 1)
	c.publish("reachable", 0, 1)
}

func TestRefusedAddresses(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"0.0.0.0:0", ":9092", "192.0.2.1:0", "example.org:1", "127.0.0.1", "127.0.0.1:many", "[::]:0"} {
		s, err := embedded.Start(t.Context(), embedded.Options{Addr: addr})
		if err == nil {
			t.Errorf("%q was taken", addr)
			stop(t, s)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := embedded.Start(ctx, embedded.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("start in a context that has ended: %v", err)
	}
}

func TestLowSpace(t *testing.T) {
	t.Parallel()
	var free atomic.Int64
	free.Store(1 << 40)
	opts := embedded.Options{Dir: t.TempDir(), MinFree: 1000}.WithFree(free.Load)
	s := start(t, opts)
	c := connect(t, s.Addr())
	topic := c.create("before", 1)
	c.publish("before", 0, 3)

	free.Store(999)
	s.Look()
	err := c.Create(t.Context(), broker.TopicSpec{Name: "refused", Partitions: 1})
	if err == nil || !strings.Contains(err.Error(), "make room") {
		t.Errorf("a topic on a nearly full disk: %v", err)
	}
	if _, err := c.Topics(t.Context(), "refused"); !errors.Is(err, broker.ErrNoTopic) {
		t.Errorf("the refused topic: %v", err)
	}
	wantHealth(t, s, embedded.ErrLowSpace)
	c.publish("before", 3, 1)

	// Below a quarter of the bound records wait with their producer, and none is lost, doubled or out of order.
	free.Store(249)
	s.Look()
	done := make(chan error, 10)
	for i := range cap(done) {
		c.Publisher().Publish(numbered("before", 0, 4+i), func(_ int64, err error) { done <- err })
	}
	select {
	case err := <-done:
		t.Fatalf("a record was settled on a full disk: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	free.Store(1 << 40)
	s.Look()
	for range cap(done) {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(patience):
			t.Fatal("records weren't published when there was room again")
		}
	}
	if got := s.Health(); got != nil {
		t.Errorf("health: %v", got)
	}
	for round := range 2 { // the gate comes and goes
		free.Store(0)
		s.Look()
		free.Store(1 << 40)
		s.Look()
		c.publish("before", 14+round, 1)
	}
	records := c.read(topic, 0, 0)
	if len(records) != 16 {
		t.Fatalf("%d records, want 16", len(records))
	}
	for i, r := range records {
		if string(r.Value) != fmt.Sprint(i) {
			t.Errorf("record %d is %s", i, r.Value)
		}
	}
}

func wantHealth(t *testing.T, s *embedded.Server, want ...error) {
	t.Helper()
	got := s.Health()
	if len(got) != len(want) {
		t.Fatalf("health %v, want %v", got, want)
	}
	for i := range want {
		if !errors.Is(got[i], want[i]) {
			t.Errorf("health %v, want %v", got[i], want[i])
		}
	}
}

func TestLargeLog(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{Dir: t.TempDir(), MaxLog: 2000})
	c := connect(t, s.Addr())
	c.create("growing", 1)
	s.Look()
	wantHealth(t, s)
	c.publish("growing", 0, 30)
	s.Look()
	wantHealth(t, s, embedded.ErrLargeLog)
}

// TestStrayRequests: what isn't the Kafka protocol ends its connection, not the broker.
func TestStrayRequests(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{})
	for name, request := range map[string]string{
		"HTTP":            "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
		"an unknown kind": "\x00\x00\x00\x0a\x7f\x00\x00\x00\x00\x00\x00\x01\xff\xff",
		"a huge size":     "\x7f\xff\xff\xff\x00\x03",
		"a negative size": "\xff\xff\xff\xff\x00\x03",
		"too little":      "\x00\x00\x00\x02\x00\x03",
		"garbage inside":  "\x00\x00\x00\x10\x00\x03\x00\x0cxxxxxxxxxxxx",
	} {
		conn, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, conn); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %d bytes of answer, %v", name, n, err)
		}
		_ = conn.Close()
	}
	c := connect(t, s.Addr())
	c.create("alive", 1)
}
