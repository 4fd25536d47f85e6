package embedded_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
)

// BenchmarkMemory writes a log of 512 MiB and tells how much memory the broker's process holds (Linux: VmRSS; the
// peak is VmHWM), in MiB, and how long its starts take: after writing, after reading it all, after a kill and after a
// clean stop.
func BenchmarkMemory(b *testing.B) {
	const partitions, records = 4, 512 << 10
	for range b.N {
		dir := b.TempDir()
		p, addr := spawn(b, dir)
		c := connect(b, addr)
		topic := c.create("large", partitions)
		value := bytes.Repeat([]byte("0123456789abcdef"), 64)
		var wg sync.WaitGroup
		slots := make(chan struct{}, 16384)
		for i := range records {
			slots <- struct{}{}
			wg.Add(1)
			r := numbered(topic.Name, int32(i%partitions), i)
			r.Value = value
			c.Publisher().Publish(r, func(_ int64, err error) {
				if err != nil {
					b.Error(err)
				}
				<-slots
				wg.Done()
			})
		}
		wg.Wait()
		b.ReportMetric(memory(b, p.Pid(), "VmRSS:"), "written-MiB")
		for partition := range int32(partitions) {
			c.read(topic, partition, 0)
		}
		b.ReportMetric(memory(b, p.Pid(), "VmRSS:"), "read-MiB")

		began := time.Now()
		if err := p.Restart(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "kill-start-s")
		b.ReportMetric(memory(b, p.Pid(), "VmHWM:"), "kill-peak-MiB")
		b.ReportMetric(memory(b, p.Pid(), "VmRSS:"), "killed-MiB")
		if err := p.Terminate(patience); err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		if err := p.Restart(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(time.Since(began).Seconds(), "clean-start-s")
		b.ReportMetric(memory(b, p.Pid(), "VmHWM:"), "clean-peak-MiB")
		b.ReportMetric(memory(b, p.Pid(), "VmRSS:"), "clean-MiB")
		b.ReportMetric(0, "ns/op")
		if err := p.Kill(); err != nil {
			b.Fatal(err)
		}
	}
}

func memory(b *testing.B, pid int, what string) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Skip(err)
	}
	_, rest, _ := bytes.Cut(status, []byte(what))
	kib, err := strconv.Atoi(string(bytes.Fields(rest)[0]))
	if err != nil {
		b.Fatal(err)
	}
	return float64(kib) / 1024
}

// BenchmarkCreate creates topics, one after the other.
func BenchmarkCreate(b *testing.B) {
	c := connect(b, start(b, embedded.Options{Dir: b.TempDir()}).Addr())
	b.ResetTimer()
	for i := range b.N {
		if err := c.Create(b.Context(), broker.TopicSpec{Name: fmt.Sprint("t", i), Partitions: 8}); err != nil {
			b.Fatal(err)
		}
	}
}
