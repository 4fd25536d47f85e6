package kafka_test

import (
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/brokertest"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
)

// TestQ1ThrottleIsHonoured : a broker that says how long it holds this client back is left alone for that long, the
// record that it took counts once, and each wait is told. A reader that is held back reads on.
func TestQ1ThrottleIsHonoured(t *testing.T) {
	t.Parallel()
	const wait = 400 * time.Millisecond
	addr, c := fake(t)
	var mu sync.Mutex
	var produced []time.Time
	c.ControlKey(kmsg.Produce.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		resp.ThrottleMillis = int32(wait.Milliseconds())
		for _, t := range req.(*kmsg.ProduceRequest).Topics {
			topic := kmsg.ProduceResponseTopic{Topic: t.Topic, TopicID: t.TopicID}
			for _, p := range t.Partitions {
				topic.Partitions = append(topic.Partitions, kmsg.ProduceResponseTopicPartition{Partition: p.Partition, BaseOffset: int64(len(produced))})
			}
			resp.Topics = append(resp.Topics, topic)
		}
		produced = append(produced, time.Now())
		return resp, nil, true
	})
	waits := make(chan time.Duration, 10)
	b, err := kafka.Open(t.Context(), kafka.Options{Seeds: []string{addr}, Throttled: func(d time.Duration) { waits <- d }})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Create(t.Context(), broker.TopicSpec{Name: "t", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	publish(t, b, "t", 1)
	publish(t, b, "t", 1)
	mu.Lock()
	defer mu.Unlock()
	if len(produced) != 2 {
		t.Fatalf("%d requests for two records", len(produced))
	}
	if apart := produced[1].Sub(produced[0]); apart < wait {
		t.Errorf("the broker asked for %s of quiet, and had another request after %s", wait, apart)
	}
	for range 2 {
		if d := <-waits; d != wait {
			t.Errorf("told of a wait of %s, want %s", d, wait)
		}
	}
}

func TestQ1ThrottledReaderReadsOn(t *testing.T) {
	t.Parallel()
	addr, c := fake(t)
	b, err := kafka.Open(t.Context(), kafka.Options{Seeds: []string{addr}, MaxWait: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Create(t.Context(), broker.TopicSpec{Name: "t", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	topics, err := b.Topics(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	held := 0
	c.ControlKey(kmsg.Fetch.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		if held++; held > 5 {
			return nil, nil, false // and this function isn't asked again
		}
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		resp.ThrottleMillis = 100
		return resp, nil, true
	})
	r, err := b.Reader("q1")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.Add(topics[0], 0, 0)
	publish(t, b, "t", 3)
	for n, late := 0, time.After(brokertest.Patience); n < 3; {
		fetches, err := r.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fetches {
			n += len(f.Records)
		}
		select {
		case <-late:
			t.Fatal("a reader that was held back read nothing any more")
		default:
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if held < 5 {
		t.Errorf("it was held back %d times, want 5", held)
	}
}
