package kafka_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/brokertest"
	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// debug is a logger to standard error where SWARMLOG_TEST_LOG is set, else none.
func debug() *slog.Logger {
	if os.Getenv("SWARMLOG_TEST_LOG") == "" {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func start(t testing.TB, opts embedded.Options) *embedded.Server {
	t.Helper()
	opts.Logger = debug()
	s, err := embedded.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func connect(t testing.TB, seeds ...string) *kafka.Broker {
	t.Helper()
	b, err := kafka.Open(t.Context(), kafka.Options{Seeds: seeds, Logger: debug(), OneInflight: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func admin(t testing.TB, seeds ...string) *kadm.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

func cluster(t testing.TB, seeds ...string) brokertest.Cluster {
	adm := admin(t, seeds...)
	return brokertest.Cluster{
		OpenCut: cutter(kafka.Options{Seeds: seeds, Logger: debug(), OneInflight: true}),
		Open:    func(t testing.TB) broker.Broker { return connect(t, seeds...) },
		Delete: func(ctx context.Context, topic string) error {
			_, err := adm.DeleteTopic(ctx, topic)
			return err
		},
		Grow: func(ctx context.Context, topic string, partitions int) error {
			_, err := adm.UpdatePartitions(ctx, partitions, topic)
			return err
		},
		Committed: func(ctx context.Context, group string) (map[string]map[int32]int64, error) {
			answer, err := adm.FetchOffsets(ctx, group)
			if err != nil {
				return nil, err
			}
			got := map[string]map[int32]int64{}
			answer.Each(func(o kadm.OffsetResponse) {
				if got[o.Topic] == nil {
					got[o.Topic] = map[int32]int64{}
				}
				got[o.Topic][o.Partition] = o.At
			})
			return got, nil
		},
	}
}

func TestEmbeddedInMemory(t *testing.T) {
	t.Parallel()
	brokertest.Exercise(t, cluster(t, start(t, embedded.Options{}).Addr()))
}

func TestEmbeddedOnDisk(t *testing.T) {
	t.Parallel()
	brokertest.Exercise(t, cluster(t, start(t, embedded.Options{Dir: t.TempDir()}).Addr()))
}

// TestKafka runs the suite on the cluster that SWARMLOG_KAFKA names.
func TestKafka(t *testing.T) {
	t.Parallel()
	addrs := os.Getenv("SWARMLOG_KAFKA")
	if addrs == "" {
		if os.Getenv("CI") != "" {
			t.Fatal("SWARMLOG_KAFKA isn't set: the suite must run on a real Kafka in CI; `make services` starts one")
		}
		t.Skip("NOT TESTED ON A REAL KAFKA: set SWARMLOG_KAFKA to its addresses; `make services` starts one")
	}
	seeds := strings.Split(addrs, ",")
	c := cluster(t, seeds...)
	adm := admin(t, seeds...)
	c.Trim = func(ctx context.Context, topic string, partition int32, offset int64) error {
		var offsets kadm.Offsets
		offsets.AddOffset(topic, partition, offset, -1)
		answer, err := adm.DeleteRecords(ctx, offsets)
		return errors.Join(err, answer.Error())
	}
	brokertest.Exercise(t, c)
}
