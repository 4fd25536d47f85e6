package kafka

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/swarmlog/swarmlog/internal/broker"
)

const (
	maxBytesKey  = "max.message.bytes"
	cleanupKey   = "cleanup.policy"
	minInSyncKey = "min.insync.replicas"
	// defaultMaxBytes is Kafka's default of max.message.bytes, taken where we may not read a topic's configuration.
	defaultMaxBytes = 1_048_588
	leaderPoll      = 20 * time.Millisecond
	askWait         = 5 * time.Second
)

// Topics describes the named topics, in their order. Ids and partitions are asked of the broker each time.
func (b *Broker) Topics(ctx context.Context, names ...string) ([]broker.Topic, error) {
	if len(names) == 0 {
		return nil, nil
	}
	found, err := metadata(ctx, b.client, names)
	if err != nil {
		return nil, fmt.Errorf("describe topics: %w", explain(err))
	}
	configs, err := b.configured(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("describe topics: read their configuration: %w", explain(err))
	}
	topics := make([]broker.Topic, len(names))
	for i, name := range names {
		t, ok := found[name]
		if !ok {
			return nil, fmt.Errorf("describe topic %q: %w", name, broker.ErrNoTopic)
		}
		// A topic without leaders for a moment still exists, so only these errors count.
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.InvalidTopicException),
			errors.Is(err, kerr.TopicAuthorizationFailed):
			return nil, fmt.Errorf("describe topic %q: %w", name, explain(err))
		}
		topics[i] = broker.Topic{Name: name, ID: t.TopicID, Partitions: int32(len(t.Partitions)), MaxBytes: configs[name].maxBytes, Compact: configs[name].compact}
		b.noteCount(name, int32(len(t.Partitions)))
	}
	return topics, nil
}

// noteCount has kgo ask for a topic that has grown: it learns of new partitions only when it next looks for itself, which
// may be in minutes, and until then it publishes nothing to them.
func (b *Broker) noteCount(topic string, partitions int32) {
	if before, ok := b.counts.Swap(topic, partitions); ok && before.(int32) < partitions {
		b.client.ForceMetadataRefresh()
	}
}

// metadata asks the cluster, or one broker of it, what it knows of topics.
func metadata(ctx context.Context, of kmsg.Requestor, names []string) (map[string]kmsg.MetadataResponseTopic, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, of)
	if err != nil {
		return nil, err
	}
	found := make(map[string]kmsg.MetadataResponseTopic, len(resp.Topics))
	for _, t := range resp.Topics {
		if t.Topic != nil {
			found[*t.Topic] = t
		}
	}
	return found, nil
}

// configured is what is wanted of a topic's configuration.
type configured struct {
	maxBytes int
	compact  bool
}

// configured reads the configuration of topics, and remembers their limits for the publisher.
func (b *Broker) configured(ctx context.Context, names []string) (map[string]configured, error) {
	all, err := b.admin.DescribeTopicConfigs(ctx, names...)
	if err != nil {
		return nil, err
	}
	configs := make(map[string]configured, len(names))
	for _, c := range all {
		of := configured{maxBytes: defaultMaxBytes}
		if c.Err != nil {
			b.log.Debug("can't read a topic's configuration, taking the default largest batch",
				"topic", c.Name, "bytes", defaultMaxBytes, "error", c.Err)
			configs[c.Name] = of
			continue
		}
		for _, entry := range c.Configs {
			switch {
			case entry.Value == nil:
			case entry.Key == maxBytesKey:
				if n, err := strconv.Atoi(*entry.Value); err == nil && n > 0 {
					of.maxBytes = n
				}
			case entry.Key == cleanupKey:
				of.compact = strings.Contains(*entry.Value, "compact")
			}
		}
		configs[c.Name] = of
		b.limits.Store(c.Name, of.maxBytes)
	}
	return configs, nil
}

// batchLimit is what kgo asks for when it first produces to a partition.
func (b *Broker) batchLimit(topic string) int32 {
	if n, ok := b.limits.Load(topic); ok {
		return int32(min(max(n.(int), minBatchBytes), maxBatchBytes))
	}
	return defaultBatchBytes
}

// Create makes the topics that don't exist. Where a spec leaves the replicas open there are three, or as many as
// there are brokers if fewer; three or more come with min.insync.replicas of one less, so that one broker may be lost
// without losing an acknowledged record or the ability to write.
func (b *Broker) Create(ctx context.Context, specs ...broker.TopicSpec) error {
	if len(specs) == 0 {
		return nil
	}
	brokers, err := b.admin.ListBrokers(ctx)
	if err != nil {
		return fmt.Errorf("create topics: list brokers: %w", explain(err))
	}
	names := make([]string, len(specs))
	for i, spec := range specs {
		names[i] = spec.Name
		if err := b.create(ctx, spec, len(brokers)); err != nil {
			return fmt.Errorf("create topic %q: %w", spec.Name, err)
		}
	}
	for _, id := range brokers.NodeIDs() {
		if err := b.awaitLeaders(ctx, id, names); err != nil {
			return err
		}
	}
	if _, err := b.configured(ctx, names); err != nil {
		return fmt.Errorf("create topics: read their configuration: %w", explain(err))
	}
	return nil
}

func (b *Broker) create(ctx context.Context, spec broker.TopicSpec, brokers int) error {
	if spec.Partitions < 1 {
		return fmt.Errorf("it has %d partitions: give it at least one", spec.Partitions)
	}
	replicas := spec.Replicas
	if replicas <= 0 {
		replicas = int16(min(3, brokers))
	}
	config := make(map[string]*string, len(spec.Config)+1)
	if replicas >= 3 {
		config[minInSyncKey] = kadm.StringPtr(strconv.Itoa(int(replicas) - 1))
	}
	for key, value := range spec.Config {
		config[key] = &value
	}
	resp, err := b.admin.CreateTopic(ctx, spec.Partitions, replicas, config, spec.Name)
	switch {
	case err == nil:
		b.log.Debug("created a topic", "topic", spec.Name, "partitions", spec.Partitions, "replicas", replicas)
	case errors.Is(err, kerr.TopicAlreadyExists):
	case resp.ErrMessage != "":
		return fmt.Errorf("%w: %s", explain(err), resp.ErrMessage)
	default:
		return explain(err)
	}
	return nil
}

// awaitLeaders returns once a broker knows a leader of every partition, so that what follows a Create doesn't meet a
// broker that the news hasn't reached. One that can't be asked is passed over: it isn't up.
func (b *Broker) awaitLeaders(ctx context.Context, id int32, names []string) error {
	tick := time.NewTicker(leaderPoll)
	defer tick.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, askWait)
		found, err := metadata(asking, b.client.Broker(int(id)), names)
		cancel()
		switch {
		case err == nil && led(found, names):
			return nil
		case err != nil && ctx.Err() == nil:
			b.log.Warn("can't ask a broker whether it knows new topics", "broker", id, "error", err)
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the leaders of new topics %q: %w", names, ctx.Err())
		case <-tick.C:
		}
	}
}

func led(found map[string]kmsg.MetadataResponseTopic, names []string) bool {
	for _, name := range names {
		t, ok := found[name]
		if !ok || t.ErrorCode != 0 || len(t.Partitions) == 0 {
			return false
		}
		for _, p := range t.Partitions {
			if p.ErrorCode != 0 || p.Leader < 0 {
				return false
			}
		}
	}
	return true
}

// Offsets is the range of each partition, from the log's start to its high watermark.
func (b *Broker) Offsets(ctx context.Context, topic string) ([]broker.Range, error) {
	starts, err := b.admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list start offsets of topic %q: %w", topic, explain(err))
	}
	ends, err := b.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list end offsets of topic %q: %w", topic, explain(err))
	}
	partitions := starts[topic]
	if len(partitions) == 0 {
		return nil, fmt.Errorf("list offsets of topic %q: %w", topic, broker.ErrNoTopic)
	}
	ranges := make([]broker.Range, len(partitions))
	for p := range ranges {
		start, ok1 := starts.Lookup(topic, int32(p))
		end, ok2 := ends.Lookup(topic, int32(p))
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("list offsets of topic %q: the broker left out partition %d", topic, p)
		}
		ranges[p] = broker.Range{Start: start.Offset, End: max(end.Offset, start.Offset)}
	}
	return ranges, nil
}
