package embedded_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
)

const (
	childDir  = "EMBEDDED_CHILD_DIR"
	childAddr = "EMBEDDED_CHILD_ADDR"
	patience  = 30 * time.Second
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(child(dir, os.Getenv(childAddr)))
	}
	goleak.VerifyTestMain(m)
}

// child is a broker in a process of its own, for tests that kill it.
func child(dir, addr string) int {
	s, err := embedded.Start(context.Background(), embedded.Options{
		Dir: dir, Addr: addr, Logger: slog.New(slog.NewTextHandler(os.Stdout, nil)),
	})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	if addr != "" && s.Addr() != addr {
		fmt.Printf("listening on %s instead of %s\n", s.Addr(), addr)
		return 1
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	fmt.Println("the broker is ready")
	<-term
	if err := s.Close(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func debug() *slog.Logger {
	if os.Getenv("SWARMLOG_TEST_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func start(t testing.TB, opts embedded.Options) *embedded.Server {
	t.Helper()
	opts.Logger = debug()
	s, err := embedded.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t testing.TB, s *embedded.Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// client is a connection with what the tests do over it.
type client struct {
	testing.TB
	*kafka.Broker
}

func connect(t testing.TB, addr string) client {
	t.Helper()
	b, err := kafka.Open(t.Context(), kafka.Options{Seeds: []string{addr}, OneInflight: true, Uncompressed: true, Logger: debug()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return client{t, b}
}

func (c client) create(name string, partitions int32) broker.Topic {
	c.Helper()
	if err := c.Create(c.Context(), broker.TopicSpec{Name: name, Partitions: partitions}); err != nil {
		c.Fatal(err)
	}
	return c.topic(name)
}

func (c client) topic(name string) broker.Topic {
	c.Helper()
	topics, err := c.Topics(c.Context(), name)
	if err != nil {
		c.Fatal(err)
	}
	return topics[0]
}

// publish sends records valued first to first+n-1 to partition 0, each in a batch of its own, so that a segment has
// many.
func (c client) publish(topic string, first, n int) {
	c.Helper()
	for i := range n {
		var (
			wg   sync.WaitGroup
			fail error
		)
		wg.Add(1)
		c.Publisher().Publish(numbered(topic, 0, first+i), func(_ int64, err error) { fail = err; wg.Done() })
		wg.Wait()
		if fail != nil {
			c.Fatal(fail)
		}
	}
}

func numbered(topic string, partition int32, n int) broker.Record {
	return broker.Record{
		Position: event.Position{Topic: topic, Partition: partition},
		Message:  event.Message{Key: []byte("k"), Value: []byte(fmt.Sprint(n))},
	}
}

// read reads a partition from start to the log's end.
func (c client) read(topic broker.Topic, partition int32, start int64) []broker.Record {
	c.Helper()
	ranges, err := c.Offsets(c.Context(), topic.Name)
	if err != nil {
		c.Fatal(err)
	}
	r, err := c.Reader("test")
	if err != nil {
		c.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(c.Context(), patience)
	defer cancel()
	r.Add(topic, partition, start)
	var records []broker.Record
	for next := start; next < ranges[partition].End; {
		fetches, err := r.Poll(ctx)
		if err != nil {
			c.Fatalf("poll at %d of %v: %v", next, ranges[partition], err)
		}
		for _, f := range fetches {
			if f.Err != nil {
				c.Fatal(f.Err)
			}
			records = append(records, f.Records...)
			next = records[len(records)-1].Offset + 1
		}
	}
	return records
}
