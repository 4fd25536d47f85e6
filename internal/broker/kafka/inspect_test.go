package kafka_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
)

func unique(name string) string { return fmt.Sprintf("%s-%d", name, time.Now().UnixNano()) }

func TestInspectEmbedded(t *testing.T) {
	t.Parallel()
	b := connect(t, start(t, embedded.Options{}).Addr())
	inspect(t, b, kafka.KindEmbedded, 1)
}

func TestInspectKafka(t *testing.T) {
	t.Parallel()
	seeds := given.Kafka(t)
	b := connect(t, seeds...)
	c := inspect(t, b, kafka.KindKafka, 3)
	if c.Clock == nil {
		t.Fatal("nobody told the controller's time")
	}
	if off := c.Clock.Time.Sub(c.Clock.Asked).Abs(); off > c.Clock.Trip/2+time.Second {
		t.Errorf("on one machine, the controller's clock is %s off", off)
	}

	adm := admin(t, seeds...)
	id, rate := unique("quota"), 12345678.0
	entity := kadm.ClientQuotaEntity{{Type: "client-id", Name: &id}}
	set := func(remove bool) {
		t.Helper()
		// Another context than the test's, which is over when what was set is taken away.
		if _, err := adm.AlterClientQuotas(context.Background(), []kadm.AlterClientQuotaEntry{{Entity: entity,
			Ops: []kadm.AlterClientQuotaOp{{Key: "producer_byte_rate", Value: rate, Remove: remove}}}}); err != nil {
			t.Error(err)
		}
	}
	set(false)
	t.Cleanup(func() { set(true) })
	for late := time.After(30 * time.Second); ; { // the brokers hear of it one after another
		found, err := b.Inspect(t.Context(), kafka.Look{})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range found.Quotas {
			if name := q.Entity["client-id"]; name != nil && *name == id && q.Values["producer_byte_rate"] == rate {
				return
			}
		}
		select {
		case <-late:
			t.Fatalf("the quota isn't among %+v", found.Quotas)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// inspect looks at two topics, of which one doesn't exist.
func inspect(t *testing.T, b *kafka.Broker, kind string, replicas int) kafka.Cluster {
	t.Helper()
	name, missing := unique("inspected"), unique("missing")
	if err := b.Create(t.Context(), broker.TopicSpec{Name: name, Partitions: 2, Config: map[string]string{"max.message.bytes": "77777"}}); err != nil {
		t.Fatal(err)
	}
	publish(t, b, name, 3)
	c, err := b.Inspect(t.Context(), kafka.Look{Topics: []string{missing, name}, Reads: []string{name}, Writes: []string{name}, Groups: []string{unique("g")}, Agents: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Denied) > 0 || len(c.Blind) > 0 {
		t.Errorf("denied %v, blind %v: want nothing", c.Denied, c.Blind)
	}
	if c.Kind != kind || c.Version == "" || len(c.Nodes) < replicas || c.Nodes[0].Config["message.max.bytes"] == "" {
		t.Errorf("cluster: %+v", c)
	}
	if got := fmt.Sprint(c.Clients); got != "[swarmlog swarmlog-a]" {
		t.Errorf("client ids %s", got)
	}
	if len(c.Topics) != 2 || !c.Topics[0].Missing || c.Topics[0].Name != missing {
		t.Fatalf("topics: %+v", c.Topics)
	}
	topic := c.Topics[1]
	if topic.Missing || len(topic.Partitions) != 2 || topic.Config["max.message.bytes"] != "77777" || topic.ID == (broker.TopicID{}) {
		t.Errorf("topic: %+v", topic)
	}
	if p := topic.Partitions[1]; p.ID != 1 || p.Leader < 0 || len(p.Replicas) != replicas || len(p.InSync) != replicas {
		t.Errorf("partition: %+v", p)
	}
	if age := time.Since(topic.Newest); age < -time.Second || age > time.Minute {
		t.Errorf("the newest record is %s old", age)
	}
	return c
}

// TestInspectDenied : what this client may not do is said, and all else looked at.
func TestInspectDenied(t *testing.T) {
	t.Parallel()
	allowed := kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: "readable", Pattern: kmsg.ACLResourcePatternTypeLiteral,
		Operation: kmsg.ACLOperationRead, Allow: true} // and so DESCRIBE
	addr, _ := fake(t, kfake.SeedTopics(1, "readable", "hidden"), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.User(kafka.Plain, "ann", password, allowed))
	b, err := kafka.Open(t.Context(), kafka.Options{Seeds: []string{addr},
		SASL: &kafka.SASL{Mechanism: kafka.Plain, User: "ann", Password: kafka.Secret{Value: password}}})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	c, err := b.Inspect(t.Context(), kafka.Look{Topics: []string{"readable", "hidden"}, Reads: []string{"readable"}, Writes: []string{"readable"}, Groups: []string{"g"}})
	if err != nil {
		t.Fatal(err)
	}
	denied := map[kafka.Denied]bool{}
	for _, d := range c.Denied {
		denied[d] = true
	}
	for _, want := range []kafka.Denied{{"topic", "readable", "WRITE"}, {"topic", "hidden", "DESCRIBE"}, {"group", "g", "READ"}} {
		if !denied[want] {
			t.Errorf("%v isn't among what is denied: %v", want, c.Denied)
		}
	}
	if denied[kafka.Denied{Resource: "topic", Name: "readable", Operation: "READ"}] {
		t.Error("what is allowed is said to be denied")
	}
	if len(c.Blind) == 0 {
		t.Error("nothing is said of the quotas, which may not be described")
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	b := connect(t, start(t, embedded.Options{}).Addr())
	if err := b.Create(t.Context(), broker.TopicSpec{Name: "t", Partitions: 3}); err != nil {
		t.Fatal(err)
	}
	publish(t, b, "t", 50)
	done := make(chan error, 1)
	b.Publisher().Publish(broker.Record{Position: event.Position{Topic: "t", Partition: 2}, Message: event.Message{Key: []byte("k")}},
		func(_ int64, err error) { done <- err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	topics, err := b.Topics(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	records, err := b.Tail(t.Context(), topics[0], 20, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	of := map[int32][]int64{}
	for _, r := range records {
		of[r.Partition] = append(of[r.Partition], r.Offset)
	}
	if len(of[0]) != 20 || of[0][0] != 30 || of[0][19] != 49 || len(of[1]) != 0 || len(of[2]) != 1 {
		t.Errorf("offsets by partition: %v", of)
	}
}
