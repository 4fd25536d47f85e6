package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

const (
	defaultMaxWait = 500 * time.Millisecond

	fetchMaxBytes     = 8 << 20  // one answer of one broker
	fetchPartition    = 1 << 20  // of it, one partition's share; a larger batch still comes, alone
	maxDecompressed   = 64 << 20 // a batch that inflates to more stops its partition instead of the process
	bufferedRecords   = 100_000  // handed over and not yet acknowledged; beyond it Publish waits
	bufferedBytes     = 64 << 20
	unknownTopicTries = 8 // a topic that was just created may be unknown to its leader for a moment
	defaultBatchBytes = 1_000_012
	minBatchBytes     = 512 // what kgo takes at least
	maxBatchBytes     = 48 << 20

	defaultSession   = 10 * time.Second
	defaultRebalance = 30 * time.Second
	defaultHeartbeat = time.Second

	minBackoff  = 100 * time.Millisecond
	maxBackoff  = 2 * time.Second
	metadataMin = 250 * time.Millisecond
	metadataMax = 3 * time.Minute

	memberMetadata = 5 * time.Second
)

// Options say which cluster to connect to, and how. Seeds is all that must be set.
type Options struct {
	Seeds    []string     // addresses (host:port) of some brokers; the others are found through them
	ClientID string       // as quotas and broker logs name this client; default "swarmlog". Readers append their own name.
	Logger   *slog.Logger // default: nothing is logged

	// OneInflight sends the next produce request to a broker once the last one is answered. By default several are
	// under way, which keeps order and makes no copies on brokers that keep their idempotence window; the embedded
	// broker loses its window when it is killed, so there it must be set.
	OneInflight bool
	// Uncompressed sends batches as they are: on loopback, compressing costs more than it saves. Default: snappy.
	Uncompressed bool
	// MaxWait is how long a broker may hold a fetch for which it has nothing. Default 500 ms. A partition that is
	// resumed while such a fetch is under way, for others, is asked for after it: so this is also how long that may take.
	// One that is added ends such fetches.
	MaxWait time.Duration

	// Throttled is told how long a broker holds this client back by quota, each time. It may be nil, and must not block.
	Throttled func(time.Duration)

	TLS   *TLS  // nil: connections are plain text
	SASL  *SASL // nil: nobody logs in
	Group Group // how Join's members behave

	secured []kgo.Opt // what TLS and SASL come to, once for all clients

	hooks []kgo.Hook                                                        // tests look on
	dial  func(ctx context.Context, network, host string) (net.Conn, error) // tests cut connections
}

// GroupProtocol is how members of a group come to their partitions.
type GroupProtocol string

const (
	// GroupClassic is the protocol that every broker has: members agree among themselves, cooperative-sticky.
	GroupClassic GroupProtocol = "classic"
	// GroupConsumer is KIP-848: the brokers assign (Kafka 4.0 and later; 4.3 and later is advised). A group can't change
	// between the two while it has members.
	GroupConsumer GroupProtocol = "consumer"
	// GroupAuto is GroupConsumer where every broker offers it, else GroupClassic.
	GroupAuto GroupProtocol = "auto"
)

// Group says how members of Kafka groups behave. The zero value is the default.
type Group struct {
	Protocol GroupProtocol // default GroupClassic
	// Session is how long the group waits for a member that isn't heard of before others get its partitions. Default
	// 10 s. The brokers bound it (group.min.session.timeout.ms, 6 s by default). Under GroupConsumer it's theirs alone:
	// group.consumer.session.timeout.ms, 45 s by default.
	Session time.Duration
	// Rebalance is how long a member may take to give partitions up, Members.Revoked included, before it's put out.
	// Default 30 s.
	Rebalance time.Duration
	// Heartbeat is how often a member is heard of, and so how soon it learns of a rebalance. Default 1 s. Under
	// GroupConsumer it's the brokers': group.consumer.heartbeat.interval.ms, 5 s by default.
	Heartbeat time.Duration
}

func (g Group) withDefaults() (Group, error) {
	if g.Protocol == "" {
		g.Protocol = GroupClassic
	}
	if g.Session <= 0 {
		g.Session = defaultSession
	}
	if g.Rebalance <= 0 {
		g.Rebalance = defaultRebalance
	}
	if g.Heartbeat <= 0 {
		g.Heartbeat = min(defaultHeartbeat, g.Session/3)
	}
	switch {
	case g.Protocol != GroupClassic && g.Protocol != GroupConsumer && g.Protocol != GroupAuto:
		return g, fmt.Errorf("connect to kafka: group protocol %q is none: set classic, consumer or auto", g.Protocol)
	case g.Heartbeat > g.Session/2:
		return g, fmt.Errorf("connect to kafka: group heartbeats every %s leave no second chance in a session of %s: set at most a third of it", g.Heartbeat, g.Session)
	}
	return g, nil
}

func (o Options) withDefaults() (Options, error) {
	if len(o.Seeds) == 0 {
		return o, errors.New("connect to kafka: no broker address given: set at least one, such as 127.0.0.1:9092")
	}
	if o.ClientID == "" {
		o.ClientID = "swarmlog"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxWait <= 0 {
		o.MaxWait = defaultMaxWait
	}
	if o.Throttled != nil {
		o.hooks = append(slices.Clip(o.hooks), throttle{o.Throttled})
	}
	var err error
	if o.Group, err = o.Group.withDefaults(); err != nil {
		return o, err
	}
	o.secured, err = o.security()
	return o, err
}

// connection is what every client of the cluster shares: where it is, who we are and how patient. Transport security
// and authentication belong here, so that producer, readers and administration can't differ in them.
func (o Options) connection(clientID string) []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.Seeds...),
		kgo.ClientID(clientID),
		kgo.SoftwareNameAndVersion("swarmlog", "1"),
		kgo.WithLogger(logger{o.Logger.With("client", clientID)}),
		kgo.DialTimeout(5 * time.Second),
		kgo.RetryBackoffFn(backoff),
		kgo.MetadataMinAge(metadataMin),
		kgo.MetadataMaxAge(metadataMax),
		kgo.MaxDecompressBatchBytes(maxDecompressed),
		kgo.DisableClientMetrics(), // nothing is pushed to the broker that nobody asked for
		kgo.WithHooks(o.hooks...),
	}
	if o.dial != nil {
		opts = append(opts, kgo.Dialer(o.dial))
	}
	return append(opts, o.secured...)
}

// producer adds to connection what the one idempotent producer needs: limit tells the largest batch of a topic.
func (o Options) producer(limit func(topic string) int32) []kgo.Opt {
	compression := []kgo.CompressionCodec{kgo.SnappyCompression(), kgo.NoCompression()}
	if o.Uncompressed {
		compression = compression[1:]
	}
	all := o.connection(o.ClientID)
	if o.OneInflight {
		all = append(all, kgo.MaxVersions(oneInflight()))
	}
	return append(all,
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), // records carry their partition
		kgo.ProducerLinger(0),                          // while one request is under way the next batch fills by itself
		kgo.ProducerBatchCompression(compression...),
		kgo.ProducerBatchMaxBytesFn(limit),
		kgo.MaxBufferedRecords(bufferedRecords),
		kgo.MaxBufferedBytes(bufferedBytes),
		kgo.UnknownTopicRetries(unknownTopicTries),
	)
}

// oneInflight is the protocol as kgo speaks it, with produce requests held at the last version that allows one request
// under way: an idempotent kgo producer has five from version 4 on, and no option for it.
func oneInflight() *kversion.Versions {
	v := kversion.Stable()
	v.SetMaxKeyVersion(kmsg.Produce.Int16(), 3)
	return v
}

// consumer adds to connection what a reader needs. Nothing resets an offset: what isn't there is an error.
func (o Options) consumer(name string) []kgo.Opt {
	return append(o.connection(o.ClientID+"-"+name),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxBytes(fetchMaxBytes),
		kgo.FetchMaxPartitionBytes(fetchPartition),
		kgo.FetchMinBytes(1),
		kgo.FetchMaxWait(o.MaxWait),
	)
}

// member adds to connection what a member of a group needs, which reads nothing: it's told to begin nowhere.
func (o Options) member(group string, topics []string, serverSide bool) []kgo.Opt {
	all := append(o.connection(o.ClientID+"-"+group),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topics...),
		kgo.DisableAutoCommit(),
		kgo.SessionTimeout(o.Group.Session),
		kgo.RebalanceTimeout(o.Group.Rebalance),
		kgo.HeartbeatInterval(o.Group.Heartbeat),
		kgo.MetadataMaxAge(memberMetadata), // new partitions are assigned once the group's leader has seen them
		kgo.AdjustFetchOffsetsFn(func(context.Context, map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
			return map[string]map[int32]kgo.Offset{}, nil
		}),
	)
	if serverSide {
		return append(all, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	return append(all, kgo.Balancers(kgo.CooperativeStickyBalancer()))
}
