package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/doctor"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/ledger/postgres"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// site is a swarm's place on real servers: topics and a database of its own.
type site struct {
	*testing.T
	name  string
	seeds []string
	dsn   string
	b     *kafka.Broker
	adm   *kadm.Client
	db    *pgx.Conn // of the server's own database, for what the account may do
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{T: t, name: fmt.Sprintf("doctor-%d", time.Now().UnixNano()), seeds: given.Kafka(t)}
	server, err := url.Parse(given.Postgres(t))
	s.must(err)
	s.db, err = pgx.Connect(t.Context(), server.String())
	s.must(err)
	_, err = s.db.Exec(t.Context(), "CREATE DATABASE "+pgx.Identifier{s.name}.Sanitize())
	s.must(err)
	t.Cleanup(func() { // the test's context is over
		_, err := s.db.Exec(context.Background(), "DROP DATABASE "+pgx.Identifier{s.name}.Sanitize()+" WITH (FORCE)")
		s.check(err)
		s.check(s.db.Close(context.Background()))
	})
	server.Path = "/" + s.name
	s.dsn = server.String()
	s.connect()
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.seeds...))
	s.must(err)
	t.Cleanup(cl.Close)
	s.adm = kadm.NewClient(cl)
	t.Cleanup(func() {
		_, err := s.adm.DeleteTopics(context.Background(), s.in(), s.out(), s.in()+".dead")
		s.check(err)
	})
	return s
}

func (s *site) connect() {
	s.Helper()
	b, err := kafka.Open(s.Context(), kafka.Options{Seeds: s.seeds})
	s.must(err)
	s.Cleanup(b.Close)
	s.b = b
}

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *site) check(err error) {
	s.Helper()
	if err != nil {
		s.Error(err)
	}
}

func (s *site) in() string  { return s.name + "-in" }
func (s *site) out() string { return s.name + "-out" }

// create makes the swarm's topics as the contract has them, but for what the spec of the first says otherwise.
func (s *site) create(first broker.TopicSpec) {
	s.Helper()
	first.Name = s.in()
	if first.Partitions == 0 {
		first.Partitions = 3
	}
	s.must(s.b.Create(s.Context(), first, broker.TopicSpec{Name: s.out(), Partitions: 3},
		broker.TopicSpec{Name: s.in() + ".dead", Partitions: first.Partitions, Config: map[string]string{"retention.ms": "2592000000", "max.message.bytes": "1200000"}}))
}

// publish sends records of keys to the swarm's input, placed by a partitioner.
func (s *site) publish(n int, at time.Time, key func(i int) string, by func([]byte, int32) int32) {
	s.Helper()
	s.must(s.tryPublish(n, at, key, by))
}

func (s *site) tryPublish(n int, at time.Time, key func(i int) string, by func([]byte, int32) int32) error {
	done := make(chan error, n)
	for i := range n {
		k := []byte(key(i))
		s.b.Publisher().Publish(broker.Record{Position: event.Position{Topic: s.in(), Partition: by(k, 3)},
			Message: event.Message{Key: k, Value: []byte("{}"), Time: at}}, func(_ int64, err error) { done <- err })
	}
	var errs []error
	for range n {
		errs = append(errs, <-done)
	}
	return errors.Join(errs...)
}

func order(i int) string { return "order-" + strconv.Itoa(i%17) }

// work takes a lease of each partition as far as next, and reports it.
func (s *site) work(next int64) {
	s.Helper()
	l, err := postgres.Open(s.Context(), postgres.Options{DSN: s.dsn})
	s.must(err)
	defer func() { s.check(l.Close()) }()
	topics, err := s.b.Topics(s.Context(), s.in())
	s.must(err)
	reported := map[int32]int64{}
	for p := range topics[0].Partitions {
		key := ledger.Key{Group: "split", TopicID: topics[0].ID, Partition: p}
		_, err := l.Acquire(s.Context(), key, s.in(), "w", next, time.Minute)
		s.must(err)
		reported[p] = next
	}
	_, err = l.Route(s.Context(), topics[0].ID, s.in(), topics[0].Partitions)
	s.must(err)
	s.must(s.b.Report(s.Context(), s.name+".split", map[string]map[int32]int64{s.in(): reported}))
}

// examine looks at the site by a swarm.yaml, and tells which checks find something.
func (s *site) examine() (found []string, findings []doctor.Finding) {
	s.Helper()
	file := filepath.Join(s.TempDir(), "dsn")
	s.must(os.WriteFile(file, []byte(s.dsn), 0o600))
	text := fmt.Sprintf(`name: %s
kafka: {brokers: ["%s"]}
postgres: {dsn_file: %s}
topics: {%s: {partitions: 3}, %s: {partitions: 3}}
agents:
  find: {kind: finder, input: %s, emits: %s}
  split: {kind: splitter, reads: %s, emits: %s}
`, s.name, strings.Join(s.seeds, `", "`), file, s.in(), s.out(), s.TempDir(), s.in(), s.in(), s.out())
	swarm, err := config.Parse("swarm.yaml", []byte(text), func(string) (string, bool) { return "", false })
	s.must(err)
	seen, err := Examine(s.Context(), swarm, 0, slog.New(slog.DiscardHandler))
	s.must(err)
	findings = doctor.Examine(seen)
	names := map[string]bool{}
	for _, f := range findings {
		names[f.Check] = true
	}
	return slices.Sorted(maps.Keys(names)), findings
}

func one(name, value string) broker.TopicSpec {
	return broker.TopicSpec{Config: map[string]string{name: value}}
}

// TestDoctorOnRealServers : each fault that can be planted on servers that others use too is found, alone, and a good
// swarm is none's.
func TestDoctorOnRealServers(t *testing.T) {
	t.Parallel()
	as := func(spec broker.TopicSpec) func(*site) {
		return func(s *site) { s.create(spec); s.publish(60, time.Time{}, order, route.Partition); s.work(0) }
	}
	fine := as(broker.TopicSpec{})
	alterDead := func(name, value string) func(*site) {
		return func(s *site) {
			fine(s)
			_, err := s.adm.AlterTopicConfigs(s.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, s.in()+".dead")
			s.must(err)
		}
	}
	for _, c := range []struct {
		name  string
		plant func(s *site)
		want  []string
	}{
		{"good", fine, nil},
		{"nothing there yet", func(*site) {}, []string{"kafka.topic_missing"}},
		{"one replica", as(broker.TopicSpec{Replicas: 1}), []string{"kafka.replication"}},
		{"min ISR 1", as(one("min.insync.replicas", "1")), []string{"kafka.min_insync"}},
		{"min ISR 3", as(one("min.insync.replicas", "3")), []string{"kafka.insync_spare"}},
		{"unclean", as(one("unclean.leader.election.enable", "true")), []string{"kafka.unclean_election"}},
		{"compaction", as(one("cleanup.policy", "compact,delete")), []string{"kafka.compaction"}},
		{"retention", as(one("retention.ms", "3600000")), []string{"kafka.retention"}},
		{"retention by bytes", as(one("retention.bytes", "100000000")), []string{"kafka.retention_bytes"}},
		{"oversize", as(one("max.message.bytes", "104857601")), []string{"kafka.message_size"}},
		{"small dead letters", alterDead("max.message.bytes", "1000"), []string{"kafka.message_size"}},
		{"brief dead letters", alterDead("retention.ms", "3600000"), []string{"kafka.dead_letters"}},
		{"no dead letters", func(s *site) {
			fine(s)
			_, err := s.adm.DeleteTopics(s.Context(), s.in()+".dead")
			s.must(err)
		}, []string{"kafka.dead_letters"}},
		{"CRC32", func(s *site) {
			s.create(broker.TopicSpec{})
			s.publish(60, time.Time{}, order, func(k []byte, n int32) int32 { return int32(crc32.ChecksumIEEE(k) % uint32(n)) })
			s.work(0)
		}, []string{"keys.misrouted"}},
		{"grown", func(s *site) {
			fine(s)
			_, err := s.adm.UpdatePartitions(s.Context(), 6, s.in(), s.in()+".dead")
			s.must(err)
			late := time.Now().Add(20 * time.Second)
			for err := errors.New("not yet"); err != nil; { // until the broker that a producer asks knows the new partitions
				if time.Now().After(late) {
					s.must(err)
				}
				s.connect()
				err = s.tryPublish(60, time.Time{}, order, func(k []byte, _ int32) int32 { return route.Partition(k, 6) })
			}
		}, []string{"keys.misrouted"}},
		{"keys that are times", func(s *site) {
			s.create(broker.TopicSpec{})
			s.publish(60, time.Time{}, func(i int) string { return fmt.Sprint(time.Now().UnixMilli() - int64(i)*1000) }, route.Partition)
		}, []string{"keys.timestamps"}},
		{"records from the future", func(s *site) {
			s.create(broker.TopicSpec{})
			s.publish(3, time.Now().Add(30*time.Minute), order, route.Partition)
		}, []string{"clock.records"}},
		{"overtaken", func(s *site) {
			fine(s)
			var to kadm.Offsets
			to.AddOffset(s.in(), 1, 5, -1)
			_, err := s.adm.DeleteRecords(s.Context(), to)
			s.must(err)
		}, []string{"kafka.overtaken"}},
		{"the ledger went back", func(s *site) {
			fine(s)
			s.must(s.b.Report(s.Context(), s.name+".split", map[string]map[int32]int64{s.in(): {1: 4}}))
		}, []string{"ledger.behind"}},
		{"a quota of ours", func(s *site) { fine(s); s.quota("swarmlog-" + s.name) }, []string{"quota.ours"}},
		{"a quota of nobody", func(s *site) { fine(s); s.quota("swarmlog-" + s.name + "-split-7f9c") }, []string{"quota.near_miss"}},
		{"synchronous_commit", func(s *site) {
			fine(s)
			_, err := s.db.Exec(s.Context(), "ALTER DATABASE "+pgx.Identifier{s.name}.Sanitize()+" SET synchronous_commit = off")
			s.must(err)
		}, []string{"postgres.synchronous_commit"}},
		{"few connections", func(s *site) {
			fine(s)
			_, err := s.db.Exec(s.Context(), "ALTER DATABASE "+pgx.Identifier{s.name}.Sanitize()+" CONNECTION LIMIT 4")
			s.must(err)
		}, []string{"postgres.connections"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			c.plant(s)
			// What was planted reaches all brokers in a moment, and so does what mends it.
			var findings []doctor.Finding
			for late := time.Now().Add(20 * time.Second); ; {
				var found []string
				if found, findings = s.examine(); slices.Equal(found, c.want) {
					break
				}
				if time.Now().After(late) {
					t.Fatalf("want %v, found %+v", c.want, findings)
				}
			}
			if !s.mend(findings) {
				return
			}
			for late := time.Now().Add(30 * time.Second); len(findings) > 0; _, findings = s.examine() {
				if time.Now().After(late) {
					t.Fatalf("mended as said, and still found: %+v", findings)
				}
			}
		})
	}
}

// quota sets a quota of a client id until the test ends.
func (s *site) quota(id string) {
	s.Helper()
	set := func(remove bool) error {
		_, err := s.adm.AlterClientQuotas(context.Background(), []kadm.AlterClientQuotaEntry{{Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &id}},
			Ops: []kadm.AlterClientQuotaOp{{Key: "consumer_byte_rate", Value: 1e6, Remove: remove}}}})
		return err
	}
	s.must(set(false))
	s.Cleanup(func() { s.check(set(true)) })
}

var (
	alterTopic  = regexp.MustCompile(`^kafka-configs\.sh --bootstrap-server \S+ --alter --entity-type topics --entity-name (\S+) --add-config (\S+)=(\S+)$`)
	removeQuota = regexp.MustCompile(`kafka-configs\.sh --bootstrap-server \S+ --alter --entity-type clients --entity-name (\S+) --delete-config (\S+)$`)
	createTopic = regexp.MustCompile(`^kafka-topics\.sh --bootstrap-server \S+ --create --topic (\S+) --partitions (\d+) --replication-factor (\d) --config (\S+)=(\S+)$`)
	reassign    = regexp.MustCompile(`^echo '(.*)' >\S+ && kafka-reassign-partitions\.sh --bootstrap-server \S+ --reassignment-json-file \S+ --execute$`)
)

// mend does what findings say, as the commands would; false where one of them says nothing that a test could do.
func (s *site) mend(findings []doctor.Finding) bool {
	s.Helper()
	for _, f := range findings {
		if m := alterTopic.FindStringSubmatch(f.Mend); m != nil && f.Check != "kafka.overtaken" {
			answers, err := s.adm.AlterTopicConfigs(s.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: m[2], Value: &m[3]}}, m[1])
			s.must(errors.Join(err, answers[0].Err))
		} else if m := removeQuota.FindStringSubmatch(f.Mend); m != nil {
			_, err := s.adm.AlterClientQuotas(s.Context(), []kadm.AlterClientQuotaEntry{{Entity: kadm.ClientQuotaEntity{{Type: "client-id", Name: &m[1]}},
				Ops: []kadm.AlterClientQuotaOp{{Key: m[2], Remove: true}}}})
			s.must(err)
		} else if m := createTopic.FindStringSubmatch(f.Mend); m != nil {
			partitions, err := strconv.Atoi(m[2])
			s.must(err)
			_, err = s.adm.CreateTopic(s.Context(), int32(partitions), int16(m[3][0]-'0'), map[string]*string{m[4]: &m[5]}, m[1])
			s.must(err)
		} else if m := reassign.FindStringSubmatch(f.Mend); m != nil {
			var plan struct {
				Partitions []struct {
					Topic     string
					Partition int32
					Replicas  []int32
				}
			}
			s.must(json.Unmarshal([]byte(m[1]), &plan))
			var req kadm.AlterPartitionAssignmentsReq
			for _, p := range plan.Partitions {
				req.Assign(p.Topic, p.Partition, p.Replicas)
			}
			_, err := s.adm.AlterPartitionAssignments(s.Context(), req)
			s.must(err)
		} else if strings.HasPrefix(f.Mend, "ALTER DATABASE") || strings.HasPrefix(f.Mend, "ALTER ROLE") {
			_, err := s.db.Exec(s.Context(), f.Mend)
			s.must(err)
		} else {
			return false
		}
	}
	return true
}

// TestStartRefusesRisks : a worker doesn't start where data can be lost, says what does and how to accept it, and starts
// where it's accepted.
func TestStartRefusesRisks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.create(one("min.insync.replicas", "1"))
	c := Config{Name: s.name, Examine: true, Kafka: &KafkaOptions{Seeds: s.seeds}, Postgres: &PostgresOptions{DSN: s.dsn},
		Agents: []engine.Agent{{Name: "split", Reads: []string{s.in()}, Handle: func(context.Context, event.Event, *engine.Step) error { return nil }}}}
	_, err := Start(t.Context(), c)
	if !errors.Is(err, doctor.ErrRisk) || !strings.Contains(err.Error(), "--accept-risk kafka.min_insync") || !strings.Contains(err.Error(), s.in()) {
		t.Fatalf("started, or refused for something else: %v", err)
	}
	c.AcceptRisk = []string{"kafka.min_insync"}
	a, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	s.check(a.Stop(context.Background()))
}
