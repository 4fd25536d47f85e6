package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/swarmlog/swarmlog/internal/broker"
)

// Kinds of cluster.
const (
	KindKafka    = "Apache Kafka"
	KindRedpanda = "Redpanda"
	KindEmbedded = "embedded"
)

// MaxBatchBytes is the largest batch that is ever sent, whatever a topic takes.
const MaxBatchBytes = maxBatchBytes

// Cluster is what there is to say about a cluster as a place for events. It holds no secret.
type Cluster struct {
	Kind    string
	Version string // the release that its protocol is of; "" where that can't be told
	ID      string
	Nodes   []Node
	Topics  []TopicState // in the order in which they were asked for
	Quotas  []Quota      // all that there are
	Clock   *Clock       // of the active controller; nil where nobody tells (Redpanda, the embedded broker)
	Denied  []Denied     // what this client may not do and has to
	Blind   []Blind      // what couldn't be looked at
	Clients []string     // the client ids that this process's connections carry
}

// Node is a broker, with its settings by name; none where they may not be read.
type Node struct {
	ID     int32
	Addr   string
	Config map[string]string
}

// TopicState is what a topic is like.
type TopicState struct {
	Name       string
	Missing    bool
	ID         broker.TopicID
	Partitions []PartitionState
	Config     map[string]string // settings as they hold for it, by name; none where they may not be read
	Newest     time.Time         // the latest time that a record of it bears; zero: none has one, or it can't be told
}

// PartitionState is who has a partition. Leader is -1 where nobody leads it.
type PartitionState struct {
	ID       int32
	Leader   int32
	Replicas []int32
	InSync   []int32
}

// Quota is a quota that the brokers hold. Entity is by kind: user, client-id, client-id-prefix, ip; a nil name is the
// default of the kind.
type Quota struct {
	Entity map[string]*string
	Values map[string]float64 // producer_byte_rate, consumer_byte_rate, request_percentage, …
}

// Clock is a clock elsewhere, and when it was looked at by the one here: the middle of the round trip.
type Clock struct {
	Node  int32
	Time  time.Time
	Asked time.Time
	Trip  time.Duration
}

// Denied is an operation that the brokers don't let this client do.
type Denied struct {
	Resource  string // topic, group or cluster
	Name      string
	Operation string // as ACLs name it: READ, WRITE, DESCRIBE, …
}

// Blind is something that couldn't be looked at.
type Blind struct {
	What string
	Why  string
}

// Look says what to look at, and what this client has to do with it.
type Look struct {
	Topics []string
	Reads  []string // of Topics
	Writes []string // of Topics
	Groups []string // whose progress is reported
	Agents []string // names of readers, for their client ids
}

// Inspect looks at a cluster, for people who ask whether it keeps what it acknowledges. It changes nothing. What may not
// be looked at is said in the answer; an error says that the cluster can't be asked at all.
func (b *Broker) Inspect(ctx context.Context, l Look) (Cluster, error) {
	i := &inspection{b: b, look: l, c: Cluster{Clients: []string{b.opts.ClientID}}}
	for _, agent := range l.Agents {
		i.c.Clients = append(i.c.Clients, b.opts.ClientID+"-"+agent)
	}
	if err := i.cluster(ctx); err != nil {
		return Cluster{}, fmt.Errorf("look at the cluster: %w", explain(err))
	}
	for _, part := range []struct {
		what string
		look func(context.Context) error
	}{
		{"protocol versions", i.version}, {"topics", i.topics}, {"settings of topics", i.topicConfigs}, {"times of records", i.newest},
		{"settings of brokers", i.nodeConfigs}, {"groups", i.groups}, {"quotas", i.quotas}, {"the controller's clock", i.clock},
	} {
		if err := part.look(ctx); err != nil {
			if ctx.Err() != nil {
				return Cluster{}, fmt.Errorf("look at the cluster's %s: %w", part.what, err)
			}
			i.c.Blind = append(i.c.Blind, Blind{What: part.what, Why: err.Error()})
		}
	}
	return i.c, nil
}

// inspection is one look at a cluster.
type inspection struct {
	b    *Broker
	look Look
	c    Cluster
}

func (i *inspection) deny(resource, name, operation string) {
	i.c.Denied = append(i.c.Denied, Denied{Resource: resource, Name: name, Operation: operation})
}

func (i *inspection) cluster(ctx context.Context) error {
	meta, err := i.b.admin.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	i.c.ID = meta.Cluster
	switch {
	case strings.HasPrefix(meta.Cluster, "redpanda."):
		i.c.Kind = KindRedpanda
	case meta.Cluster == "swarmlog-embedded":
		i.c.Kind = KindEmbedded
	default:
		i.c.Kind = KindKafka
	}
	for _, n := range meta.Brokers {
		i.c.Nodes = append(i.c.Nodes, Node{ID: n.NodeID, Addr: fmt.Sprintf("%s:%d", n.Host, n.Port)})
	}
	slices.SortFunc(i.c.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return nil
}

func (i *inspection) version(ctx context.Context) error {
	versions, err := i.b.admin.ApiVersions(ctx)
	if err != nil {
		return err
	}
	for _, v := range versions.Sorted() {
		if v.Err == nil {
			i.c.Version = v.VersionGuess()
			return nil
		}
	}
	return nil
}

// topics asks for the state of topics, and for what this client may do with them.
func (i *inspection) topics(ctx context.Context) error {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	req.Topics = []kmsg.MetadataRequestTopic{}
	for _, name := range i.look.Topics {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, i.b.client)
	if err != nil {
		return err
	}
	found := map[string]kmsg.MetadataResponseTopic{}
	for _, t := range resp.Topics {
		if t.Topic != nil {
			found[*t.Topic] = t
		}
	}
	for _, name := range i.look.Topics {
		t, ok := found[name]
		state := TopicState{Name: name, ID: t.TopicID}
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			i.deny("topic", name, "DESCRIBE")
			continue
		case !ok, errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.InvalidTopicException):
			state.Missing = true
		default:
			i.rights("topic", name, t.AuthorizedOperations, i.needs(name)...)
		}
		for _, p := range t.Partitions {
			state.Partitions = append(state.Partitions, PartitionState{ID: p.Partition, Leader: p.Leader, Replicas: p.Replicas, InSync: p.ISR})
		}
		slices.SortFunc(state.Partitions, func(a, b PartitionState) int { return cmp.Compare(a.ID, b.ID) })
		i.c.Topics = append(i.c.Topics, state)
	}
	return nil
}

// needs is what this client has to do with a topic.
func (i *inspection) needs(topic string) []kmsg.ACLOperation {
	var ops []kmsg.ACLOperation
	if slices.Contains(i.look.Reads, topic) {
		ops = append(ops, kmsg.ACLOperationRead)
	}
	if slices.Contains(i.look.Writes, topic) {
		ops = append(ops, kmsg.ACLOperationWrite)
	}
	return append(ops, kmsg.ACLOperationDescribeConfigs)
}

// rights compares what is needed with what the brokers say is allowed: a bit for each operation, or that they don't say.
func (i *inspection) rights(resource, name string, allowed int32, needs ...kmsg.ACLOperation) {
	if allowed == math.MinInt32 {
		return
	}
	for _, op := range needs {
		if allowed&(1<<op) == 0 {
			i.deny(resource, name, op.String())
		}
	}
}

// there are the topics that exist, by name.
func (i *inspection) there() map[string]*TopicState {
	topics := map[string]*TopicState{}
	for n := range i.c.Topics {
		if t := &i.c.Topics[n]; !t.Missing {
			topics[t.Name] = t
		}
	}
	return topics
}

func (i *inspection) topicConfigs(ctx context.Context) error {
	topics := i.there()
	if len(topics) == 0 {
		return nil
	}
	configs, err := i.b.admin.DescribeTopicConfigs(ctx, names(topics)...)
	if err != nil {
		return err
	}
	for _, c := range configs {
		if t := topics[c.Name]; t != nil && c.Err == nil {
			t.Config = values(c)
		}
	}
	return nil
}

func names(topics map[string]*TopicState) []string {
	all := make([]string, 0, len(topics))
	for name := range topics {
		all = append(all, name)
	}
	return all
}

// values are settings by name. What is secret has no value.
func values(c kadm.ResourceConfig) map[string]string {
	all := map[string]string{}
	for _, entry := range c.Configs {
		if entry.Value != nil && !entry.Sensitive {
			all[entry.Key] = *entry.Value
		}
	}
	return all
}

func (i *inspection) newest(ctx context.Context) error {
	topics := i.there()
	if len(topics) == 0 {
		return nil
	}
	listed, err := i.b.admin.ListMaxTimestampOffsets(ctx, names(topics)...)
	if err != nil {
		return err
	}
	listed.Each(func(o kadm.ListedOffset) {
		if t := topics[o.Topic]; t != nil && o.Err == nil && o.Timestamp > 0 {
			if at := time.UnixMilli(o.Timestamp); at.After(t.Newest) {
				t.Newest = at
			}
		}
	})
	return nil
}

func (i *inspection) nodeConfigs(ctx context.Context) error {
	ids := make([]int32, len(i.c.Nodes))
	for n, node := range i.c.Nodes {
		ids[n] = node.ID
	}
	configs, err := i.b.admin.DescribeBrokerConfigs(ctx, ids...)
	if err != nil {
		return err
	}
	for _, c := range configs {
		for n := range i.c.Nodes {
			if fmt.Sprint(i.c.Nodes[n].ID) != c.Name {
				continue
			}
			if c.Err != nil {
				return c.Err
			}
			i.c.Nodes[n].Config = values(c)
		}
	}
	return nil
}

// groups tells which groups this client may not commit to. A group that nobody has made yet tells nothing.
func (i *inspection) groups(ctx context.Context) error {
	if len(i.look.Groups) == 0 {
		return nil
	}
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = i.look.Groups
	req.IncludeAuthorizedOperations = true
	for _, shard := range i.b.client.RequestSharded(ctx, req) {
		if errors.Is(shard.Err, kerr.GroupAuthorizationFailed) {
			for _, name := range shard.Req.(*kmsg.DescribeGroupsRequest).Groups {
				i.deny("group", name, kmsg.ACLOperationRead.String())
			}
			continue
		}
		if shard.Err != nil {
			return shard.Err
		}
		for _, g := range shard.Resp.(*kmsg.DescribeGroupsResponse).Groups {
			switch err := kerr.ErrorForCode(g.ErrorCode); {
			case errors.Is(err, kerr.GroupAuthorizationFailed):
				i.deny("group", g.Group, kmsg.ACLOperationRead.String())
			case err == nil:
				i.rights("group", g.Group, g.AuthorizedOperations, kmsg.ACLOperationRead)
			}
		}
	}
	return nil
}

func (i *inspection) quotas(ctx context.Context) error {
	described, err := i.b.admin.DescribeClientQuotas(ctx, false, nil)
	if err != nil {
		return err
	}
	for _, d := range described {
		q := Quota{Entity: map[string]*string{}, Values: map[string]float64{}}
		for _, e := range d.Entity {
			q.Entity[e.Type] = e.Name
		}
		for _, v := range d.Values {
			q.Values[v.Key] = v.Value
		}
		i.c.Quotas = append(i.c.Quotas, q)
	}
	return nil
}

// clock asks the metadata quorum how its replicas keep up: what its leader says of itself is its time now.
func (i *inspection) clock(ctx context.Context) error {
	if i.c.Kind != KindKafka {
		return nil
	}
	req := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, topic)
	before := time.Now()
	resp, err := req.RequestWith(ctx, i.b.client)
	trip := time.Since(before)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			for _, v := range p.CurrentVoters {
				if v.ReplicaID == p.LeaderID && v.LastCaughtUpTimestamp > 0 {
					i.c.Clock = &Clock{Node: v.ReplicaID, Time: time.UnixMilli(v.LastCaughtUpTimestamp), Asked: before.Add(trip / 2), Trip: trip}
				}
			}
		}
	}
	return nil
}

// Tail reads the last records of each partition of a topic, at most perPartition of each, for as long as the log brings
// some without a pause of quiet.
func (b *Broker) Tail(ctx context.Context, topic broker.Topic, perPartition int64, quiet time.Duration) ([]broker.Record, error) {
	ranges, err := b.Offsets(ctx, topic.Name)
	if err != nil {
		return nil, err
	}
	r, err := b.Reader("doctor")
	if err != nil {
		return nil, err
	}
	defer r.Close()
	left := map[int32]int64{} // where each partition ends
	for p, span := range ranges {
		if from := max(span.Start, span.End-perPartition); from < span.End {
			left[int32(p)] = span.End
			r.Add(topic, int32(p), from)
		}
	}
	var records []broker.Record
	for len(left) > 0 {
		polling, cancel := context.WithTimeout(ctx, quiet)
		fetches, err := r.Poll(polling)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("read the end of topic %q: %w", topic.Name, ctx.Err())
		case err != nil && over(err), err == nil && len(fetches) == 0:
			return records, nil // what is left is transaction markers, or nobody serves it
		case err != nil:
			return nil, fmt.Errorf("read the end of topic %q: %w", topic.Name, err)
		}
		for _, f := range fetches {
			if f.Err != nil {
				return nil, fmt.Errorf("read the end of topic %q, partition %d: %w", topic.Name, f.Partition, f.Err)
			}
			for _, rec := range f.Records {
				records = append(records, rec)
				if end, ok := left[f.Partition]; ok && rec.Offset >= end-1 {
					delete(left, f.Partition)
					r.Remove(topic.Name, f.Partition)
				}
			}
		}
	}
	return records, nil
}
