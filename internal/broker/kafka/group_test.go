package kafka_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/brokertest"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
)

// network is a network that can be severed.
type network struct {
	mu      sync.Mutex
	severed bool
	conns   []net.Conn
}

func (n *network) dial(ctx context.Context, network, host string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.severed {
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("severed by the test")}
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, host)
	if err == nil {
		n.conns = append(n.conns, conn)
	}
	return conn, err
}

func (n *network) sever() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.severed = true
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
}

func (n *network) mend() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.severed = false
}

// cutter opens connections by a network that can be severed, with sessions as short as brokers allow.
func cutter(opts kafka.Options) func(t testing.TB) (broker.Broker, func(), func()) {
	opts.Group.Session = 6 * time.Second
	return func(t testing.TB) (broker.Broker, func(), func()) {
		var n network
		b, err := kafka.Open(t.Context(), opts.WithDial(n.dial))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b, n.sever, n.mend
	}
}

// consumerGroups is cluster for groups whose assignments are the brokers' (KIP-848).
func consumerGroups(t testing.TB, seeds ...string) brokertest.Cluster {
	c := cluster(t, seeds...)
	c.Open = func(t testing.TB) broker.Broker {
		b, err := kafka.Open(t.Context(), kafka.Options{
			Seeds: seeds, Logger: debug(), Group: kafka.Group{Protocol: kafka.GroupConsumer},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.Close)
		return b
	}
	c.OpenCut = nil // a session is the brokers', and takes 45 s to expire, unless they're told otherwise
	return c
}

func TestEmbeddedConsumerGroups(t *testing.T) {
	t.Parallel()
	addr := start(t, embedded.Options{}).Addr()
	for name, ms := range map[string]string{"group.consumer.session.timeout.ms": "6000", "group.consumer.heartbeat.interval.ms": "1000"} {
		answers, err := admin(t, addr).AlterBrokerConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &ms}})
		if err != nil || answers[0].Err != nil {
			t.Fatal(err, answers)
		}
	}
	c := consumerGroups(t, addr)
	c.OpenCut = cutter(kafka.Options{Seeds: []string{addr}, Logger: debug(), Group: kafka.Group{Protocol: kafka.GroupConsumer}})
	brokertest.ExerciseGroups(t, c)
}

func TestKafkaConsumerGroups(t *testing.T) {
	t.Parallel()
	brokertest.ExerciseGroups(t, consumerGroups(t, given.Kafka(t)...))
}

// requests counts requests by their kind.
type requests struct {
	mu sync.Mutex
	n  map[int16]int
}

func (r *requests) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, _ kgo.BrokerE2E) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.n[key]++
}

func (r *requests) of(kind kmsg.Key) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n[kind.Int16()]
}

// TestMemberReadsNothing: a member fetches nothing, and sends heartbeats while Revoked works.
func TestMemberReadsNothing(t *testing.T) {
	t.Parallel()
	for name, protocol := range map[string]kafka.GroupProtocol{"classic": kafka.GroupClassic, "consumer": kafka.GroupConsumer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := start(t, embedded.Options{}).Addr()
			seen := &requests{n: map[int16]int{}}
			heartbeats := func() int { return seen.of(kmsg.Heartbeat) + seen.of(kmsg.ConsumerGroupHeartbeat) }
			opts := kafka.Options{Seeds: []string{addr}, Logger: debug(), Group: kafka.Group{Protocol: protocol}}
			b, err := kafka.Open(t.Context(), opts.WithHooks(seen))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			other := connect(t, addr)
			if err := other.Create(t.Context(), broker.TopicSpec{Name: "t", Partitions: 2}); err != nil {
				t.Fatal(err)
			}
			assigned, revoked := make(chan struct{}), make(chan int, 1)
			first := sync.OnceFunc(func() { close(assigned) })
			member, err := b.Join(t.Context(), "g", []string{"t"}, broker.Members{
				Assigned: func(context.Context, int64, map[string][]int32) { first() },
				Revoked: func(ctx context.Context, _ map[string][]int32) {
					before, late := heartbeats(), time.After(brokertest.Patience)
					tick := time.NewTicker(20 * time.Millisecond)
					defer tick.Stop()
					for heartbeats() < before+2 {
						select {
						case <-tick.C:
						case <-late:
							t.Error("no heartbeats while Revoked worked")
							revoked <- 0
							return
						}
					}
					revoked <- heartbeats() - before
				},
				Lost: func(context.Context, map[string][]int32) { t.Error("partitions were lost") },
			})
			if err != nil {
				t.Fatal(err)
			}
			<-assigned
			publish(t, other, "t", 10)
			member.Close()
			t.Logf("%d heartbeats while Revoked worked", <-revoked)
			if n := seen.of(kmsg.Fetch) + seen.of(kmsg.ListOffsets); n > 0 {
				t.Errorf("the member sent %d requests to read records", n)
			}
		})
	}
}

// publish sends records to partition 0 and waits for them.
func publish(t testing.TB, b broker.Broker, topic string, n int) {
	t.Helper()
	results := make(chan error, n)
	for range n {
		b.Publisher().Publish(broker.Record{
			Position: event.Position{Topic: topic},
			Message:  event.Message{Key: []byte("k"), Value: []byte("v")},
		}, func(_ int64, err error) { results <- err })
	}
	for range n {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
}
