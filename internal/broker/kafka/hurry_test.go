package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
)

// Partitions that are added while the fetch of others is held are asked for at once: here fetches are held for longer
// than the test may take.
func TestAddedPartitionsDoNotWaitForOthers(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	b, err := kafka.Open(ctx, kafka.Options{Seeds: []string{start(t, embedded.Options{}).Addr()}, Logger: debug(), OneInflight: true, MaxWait: 50 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Create(ctx, broker.TopicSpec{Name: "t", Partitions: 6}); err != nil {
		t.Fatal(err)
	}
	topics, err := b.Topics(ctx, "t")
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.Reader("r")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := make(chan int32, 100)
	go func() {
		defer close(got)
		for {
			fetches, err := r.Poll(ctx)
			if err != nil {
				return
			}
			for _, f := range fetches {
				if f.Err != nil {
					t.Error(f.Err)
				}
				for range f.Records {
					got <- f.Partition
				}
			}
		}
	}()
	for p := range topics[0].Partitions {
		published := make(chan error, 1)
		b.Publisher().Publish(broker.Record{Message: event.Message{Value: []byte("x")}, TopicID: topics[0].ID,
			Position: event.Position{Topic: "t", Partition: p}}, func(_ int64, err error) { published <- err })
		if err := <-published; err != nil {
			t.Fatal(err)
		}
	}
	for _, added := range [][]int32{{0}, {1}, {2, 3, 4}, {5}} {
		want := map[int32]bool{}
		for _, p := range added {
			r.Add(topics[0], p, 0)
			want[p] = true
		}
		for len(want) > 0 {
			select {
			case p := <-got:
				if !want[p] {
					t.Fatalf("a record of partition %d came, which isn't awaited", p)
				}
				delete(want, p)
			case <-ctx.Done():
				t.Fatalf("partitions %v aren't read: the fetch of others holds them up", added)
			}
		}
	}
}
