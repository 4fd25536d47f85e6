package kafka

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
)

// underWay counts the produce requests that were written and not answered.
type underWay struct {
	mu        sync.Mutex
	now, most int
}

var (
	_ kgo.HookBrokerWrite = (*underWay)(nil)
	_ kgo.HookBrokerRead  = (*underWay)(nil)
)

func (u *underWay) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	u.count(key, 1, err)
}

// OnBrokerRead delays what was answered, so that requests would pile up where they may.
func (u *underWay) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if key == kmsg.Produce.Int16() {
		time.Sleep(3 * time.Millisecond)
	}
	u.count(key, -1, err)
}

func (u *underWay) count(key int16, n int, err error) {
	if key != kmsg.Produce.Int16() || err != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.now += n
	u.most = max(u.most, u.now)
}

func TestOneInflight(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for _, one := range []bool{true, false} {
		u := &underWay{}
		b, err := Open(t.Context(), Options{Seeds: []string{s.Addr()}, OneInflight: one, hooks: []kgo.Hook{u}})
		if err != nil {
			t.Fatal(err)
		}
		name := fmt.Sprint("inflight-", one)
		if err := b.Create(t.Context(), broker.TopicSpec{Name: name, Partitions: 8, Config: map[string]string{"max.message.bytes": "20000"}}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 20_000 {
			wg.Add(1)
			b.Publisher().Publish(broker.Record{
				Position: event.Position{Topic: name, Partition: int32(i % 8)},
				Message:  event.Message{Value: make([]byte, 500)},
			}, func(_ int64, err error) {
				if err != nil {
					t.Error(err)
				}
				wg.Done()
			})
		}
		wg.Wait()
		b.Close()
		t.Logf("one in flight %t: %d under way at most", one, u.most)
		if one && u.most != 1 {
			t.Errorf("%d produce requests were under way at once", u.most)
		}
		if !one && u.most < 2 {
			t.Errorf("no two produce requests were under way at once, so the other case shows nothing")
		}
	}
}
