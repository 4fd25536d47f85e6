package kafka_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
)

// bench opens the cluster that SWARMLOG_KAFKA names, or an embedded broker on disk, and a topic on it.
func bench(b *testing.B, partitions int32) (broker.Broker, broker.Topic) {
	b.Helper()
	opts := kafka.Options{}
	if addrs := os.Getenv("SWARMLOG_KAFKA"); addrs != "" {
		opts.Seeds = strings.Split(addrs, ",")
	} else {
		opts.Seeds = []string{start(b, embedded.Options{Dir: b.TempDir()}).Addr()}
		opts.OneInflight, opts.Uncompressed = true, true
	}
	k, err := kafka.Open(b.Context(), opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(k.Close)
	name := fmt.Sprintf("bench-%d", time.Now().UnixNano())
	if err := k.Create(b.Context(), broker.TopicSpec{Name: name, Partitions: partitions}); err != nil {
		b.Fatal(err)
	}
	topics, err := k.Topics(b.Context(), name)
	if err != nil {
		b.Fatal(err)
	}
	return k, topics[0]
}

var kilobyte = []byte(strings.Repeat("0123456789abcdef", 64))

func benchRecord(topic string, partition int32) broker.Record {
	return broker.Record{
		Position: event.Position{Topic: topic, Partition: partition},
		Message:  event.Message{Key: []byte("key"), Value: kilobyte},
	}
}

// publishAll hands n records over, at most window of them unacknowledged at a time.
func publishAll(b *testing.B, k broker.Broker, topic broker.Topic, n, window int) {
	b.Helper()
	slots := make(chan struct{}, window)
	var (
		wg     sync.WaitGroup
		failed sync.Once
		first  error
	)
	wg.Add(n)
	for i := range n {
		slots <- struct{}{}
		k.Publisher().Publish(benchRecord(topic.Name, int32(i)%topic.Partitions), func(_ int64, err error) {
			if err != nil {
				failed.Do(func() { first = err })
			}
			<-slots
			wg.Done()
		})
	}
	wg.Wait()
	if first != nil {
		b.Fatal(first)
	}
}

// BenchmarkPublish publishes records of 1 KiB, with so many under way at a time.
func BenchmarkPublish(b *testing.B) {
	for _, window := range []int{1, 32, 1024, 16384} {
		b.Run(fmt.Sprintf("window=%d", window), func(b *testing.B) {
			k, topic := bench(b, 4)
			publishAll(b, k, topic, 4, 1)
			b.SetBytes(int64(len(kilobyte)))
			b.ReportAllocs()
			b.ResetTimer()
			publishAll(b, k, topic, b.N, window)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// BenchmarkRead reads records of 1 KiB from the beginning of a log.
func BenchmarkRead(b *testing.B) {
	k, topic := bench(b, 4)
	const n = 100_000
	publishAll(b, k, topic, n, 16384)
	b.SetBytes(int64(len(kilobyte)))
	b.ReportAllocs()
	b.ResetTimer()
	for left := b.N; left > 0; {
		b.StopTimer()
		r, err := k.Reader("bench")
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		for p := range topic.Partitions {
			r.Add(topic, p, 0)
		}
		for got := 0; got < n && left > 0; {
			fetches, err := r.Poll(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			for _, f := range fetches {
				got, left = got+len(f.Records), left-len(f.Records)
			}
		}
		b.StopTimer()
		r.Close()
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

// BenchmarkLatency sends records of 1 KiB at a steady 1,000 a second, to so many partitions, and measures from Publish
// to Poll. The embedded broker syncs twice for each partition of a request.
func BenchmarkLatency(b *testing.B) {
	for _, partitions := range []int32{1, 4} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) { latency(b, partitions) })
	}
}

func latency(b *testing.B, partitions int32) {
	k, topic := bench(b, partitions)
	r, err := k.Reader("bench")
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	for p := range topic.Partitions {
		r.Add(topic, p, 0)
	}
	publishAll(b, k, topic, int(topic.Partitions), 1)
	poll := func() (n int) {
		fetches, err := r.Poll(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for _, f := range fetches {
			n += len(f.Records)
		}
		return n
	}
	for warm := 0; warm < int(topic.Partitions); {
		warm += poll()
	}
	b.ResetTimer()
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := range b.N {
			<-tick.C
			rec := benchRecord(topic.Name, int32(i)%topic.Partitions)
			rec.Headers = []event.Header{{Key: "sent", Value: []byte(time.Now().Format(time.RFC3339Nano))}}
			k.Publisher().Publish(rec, func(int64, error) {})
		}
	}()
	took := make([]time.Duration, 0, b.N)
	for len(took) < b.N {
		fetches, err := r.Poll(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		now := time.Now()
		for _, f := range fetches {
			for _, rec := range f.Records {
				sent, err := time.Parse(time.RFC3339Nano, string(rec.Headers[0].Value))
				if err != nil {
					b.Fatal(err)
				}
				took = append(took, now.Sub(sent))
			}
		}
	}
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkIdle measures what five readers with nothing to read and the broker cost, in percent of one core.
func BenchmarkIdle(b *testing.B) {
	for _, wait := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
		b.Run("max-wait="+wait.String(), func(b *testing.B) {
			s := start(b, embedded.Options{Dir: b.TempDir()})
			k, err := kafka.Open(b.Context(), kafka.Options{Seeds: []string{s.Addr()}, OneInflight: true, MaxWait: wait})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(k.Close)
			if err := k.Create(b.Context(), broker.TopicSpec{Name: "idle", Partitions: 8}); err != nil {
				b.Fatal(err)
			}
			topics, err := k.Topics(b.Context(), "idle")
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			for i := range 5 {
				r, err := k.Reader(fmt.Sprint("idle", i))
				if err != nil {
					b.Fatal(err)
				}
				for p := range topics[0].Partitions {
					r.Add(topics[0], p, 0)
				}
				wg.Go(func() {
					for ctx.Err() == nil {
						_, _ = r.Poll(ctx)
					}
				})
			}
			time.Sleep(time.Second) // connections and metadata settle
			before, began := cpu(b), time.Now()
			time.Sleep(10 * time.Second)
			b.ReportMetric(100*(cpu(b)-before).Seconds()/time.Since(began).Seconds(), "%core")
			b.ReportMetric(0, "ns/op")
			cancel()
			wg.Wait()
		})
	}
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
