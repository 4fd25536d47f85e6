package kafka_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
)

// What package embedded promises of every client is tested here, since this is where clients are.

func TestEmbeddedRefusesWhatCouldLoseRecords(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{Dir: t.TempDir()})
	adm := admin(t, s.Addr())
	ctx := t.Context()

	resp, err := adm.CreateTopic(ctx, 1, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("delete,compact")}, "compacted")
	if !errors.Is(err, kerr.PolicyViolation) || !strings.Contains(resp.ErrMessage, "leave the setting out") {
		t.Errorf("a compacted topic: %v, %q", err, resp.ErrMessage)
	}

	_, err = adm.CreateTopic(ctx, 1, 1, map[string]*string{"retention.ms": kadm.StringPtr("1"), "max.message.bytes": kadm.StringPtr("77777")}, "kept")
	if err != nil {
		t.Fatal(err)
	}
	configs, err := adm.DescribeTopicConfigs(ctx, "kept")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": "77777"}
	for _, c := range configs[0].Configs {
		if w, ok := want[c.Key]; ok && c.MaybeValue() != w {
			t.Errorf("%s=%s, want %s", c.Key, c.MaybeValue(), w)
		}
	}

	for _, set := range []kadm.AlterConfig{
		{Op: kadm.SetConfig, Name: "retention.ms", Value: kadm.StringPtr("1")},
		{Op: kadm.SetConfig, Name: "retention.bytes", Value: kadm.StringPtr("1")},
		{Op: kadm.AppendConfig, Name: "cleanup.policy", Value: kadm.StringPtr("compact")},
	} {
		answers, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{set}, "kept")
		if err != nil || len(answers) != 1 || !errors.Is(answers[0].Err, kerr.PolicyViolation) {
			t.Errorf("%s: %v, %v", set.Name, answers, err)
		}
		old, err := adm.AlterTopicConfigsState(ctx, []kadm.AlterConfig{set}, "kept")
		if err != nil || len(old) != 1 || !errors.Is(old[0].Err, kerr.PolicyViolation) {
			t.Errorf("%s, the old way: %v, %v", set.Name, old, err)
		}
	}
	broker, err := adm.AlterBrokerConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "log.retention.ms", Value: kadm.StringPtr("1")}})
	if err != nil || len(broker) != 1 || !errors.Is(broker[0].Err, kerr.PolicyViolation) {
		t.Errorf("the broker's retention: %v, %v", broker, err)
	}
	fine, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: kadm.StringPtr("88888")}}, "kept")
	if err != nil || fine[0].Err != nil {
		t.Errorf("a harmless setting: %v, %v", fine, err)
	}

	var offsets kadm.Offsets
	offsets.AddOffset("kept", 0, 0, -1)
	deleted, err := adm.DeleteRecords(ctx, offsets)
	if err != nil {
		t.Fatal(err)
	}
	if err := deleted.Error(); !errors.Is(err, kerr.PolicyViolation) {
		t.Errorf("records deleted: %v", err)
	}
}

func TestEmbeddedOffersNoSharesAndNoAutoCreation(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{})
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.Addr()), kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(0))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	versions, err := kmsg.NewPtrApiVersionsRequest().RequestWith(t.Context(), cl)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range versions.ApiKeys {
		if name := kmsg.NameForKey(k.ApiKey); strings.HasPrefix(name, "Share") || strings.Contains(name, "ShareGroup") {
			t.Errorf("%s is offered", name)
		}
	}
	err = cl.ProduceSync(t.Context(), &kgo.Record{Topic: "not-created", Value: []byte("x")}).FirstErr()
	if !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("a record for a topic that nobody created: %v", err)
	}
}

// TestBombs: a small batch that inflates to 120 MB stops its partition with an error instead of taking the memory, and
// the partition goes on behind it (P12).
func TestBombs(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{})
	b := connect(t, s.Addr())
	ctx := t.Context()
	if err := b.Create(ctx, broker.TopicSpec{Name: "bombs", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	topics, err := b.Topics(ctx, "bombs")
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.Addr()), kgo.ProducerBatchMaxBytes(1<<28), kgo.BrokerMaxWriteBytes(1<<29),
		kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, value := range [][]byte{[]byte("before"), make([]byte, 120<<20), []byte("after")} {
		if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "bombs", Value: value}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	r, err := b.Reader("bombs")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var (
		values [][]byte
		failed error
	)
	r.Add(topics[0], 0, 0)
	for failed == nil {
		failed = pollOnce(ctx, t, r, &values)
	}
	if !strings.Contains(failed.Error(), "offset 1") {
		t.Errorf("error: %v", failed)
	}
	r.Add(topics[0], 0, 2)
	for len(values) < 2 {
		if err := pollOnce(ctx, t, r, &values); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(bytes.Join(values, []byte(" ")), []byte("before after")) {
		t.Errorf("%d values", len(values))
	}
}

func pollOnce(ctx context.Context, t *testing.T, r broker.Reader, values *[][]byte) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	fetches, err := r.Poll(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fetches {
		for _, rec := range f.Records {
			*values = append(*values, rec.Value)
		}
		if f.Err != nil {
			return f.Err
		}
	}
	return nil
}

func TestOpenWithoutBroker(t *testing.T) {
	t.Parallel()
	if _, err := kafka.Open(t.Context(), kafka.Options{}); err == nil {
		t.Error("opened without an address")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := kafka.Open(ctx, kafka.Options{Seeds: []string{"127.0.0.1:1"}}); err == nil || !strings.Contains(err.Error(), "check that the broker runs") {
		t.Errorf("no broker at the address: %v", err)
	}
}

// TestReportWhereAGroupHasMembers: progress isn't written over a consumer group that works.
func TestReportWhereAGroupHasMembers(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Options{})
	b := connect(t, s.Addr())
	ctx := t.Context()
	if err := b.Create(ctx, broker.TopicSpec{Name: "shared", Partitions: 1}); err != nil {
		t.Fatal(err)
	}
	joined := make(chan struct{}, 1)
	member, err := kgo.NewClient(kgo.SeedBrokers(s.Addr()), kgo.ConsumerGroup("busy"), kgo.ConsumeTopics("shared"),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { joined <- struct{}{} }))
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	select {
	case <-joined:
	case <-time.After(30 * time.Second):
		t.Fatal("the group member got no partition")
	}
	if err := b.Report(ctx, "busy", map[string]map[int32]int64{"shared": {0: 1}}); !errors.Is(err, kerr.UnknownMemberID) {
		t.Errorf("report: %v", err)
	}
}
