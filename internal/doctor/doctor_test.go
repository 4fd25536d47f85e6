package doctor

import (
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/swarmlog/swarmlog/internal/route"
)

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func ptr(s string) *string { return &s }

// good is a snapshot with which nothing is wrong.
func good() Snapshot {
	topic := func(name, deadOf string, bytes string) Topic {
		t := Topic{Name: name, DeadOf: deadOf, Seen: noon, Newest: noon.Add(-time.Second), Slots: 3, Config: map[string]string{
			"min.insync.replicas": "2", "unclean.leader.election.enable": "false", "cleanup.policy": "delete", "retention.ms": "604800000",
			"retention.bytes": "-1", "max.message.bytes": bytes}}
		for p := range int32(3) {
			t.Partitions = append(t.Partitions, Partition{ID: p, Leader: p + 1, Replicas: []int32{1, 2, 3}, InSync: []int32{3, 1, 2}})
		}
		return t
	}
	s := Snapshot{
		Cluster: &Cluster{
			Kind: Kafka, Version: "v4.3", Bootstrap: "k1:9092", Clients: []string{"swarmlog-shop", "swarmlog-shop-reader"}, User: "shop",
			Topics: []Topic{topic("orders", "", "1048588"), topic("orders.dead", "orders", "2097164")},
			Quotas: []Quota{{Entity: map[string]*string{client: ptr("billing")}, Values: map[string]float64{"producer_byte_rate": 1000}}},
			Clock:  &Clock{Name: "broker 1", There: noon.Add(300 * time.Millisecond), Here: noon},
		},
		Database: &Database{
			Host: "db:5432", Name: "shop", User: "shop", Version: "17.2", Number: 170002, Fsync: "on", FullPageWrites: "on", SynchronousCommit: "on",
			CommitSource: "default", StandbyNames: "ANY 1 (b)", Standbys: []Standby{{"b", "quorum"}}, Connections: 80,
			Clock: Clock{There: noon, Here: noon.Add(time.Second), Trip: time.Millisecond},
		},
		Swarm: Swarm{
			File: "shop.yaml", RecoveryTime: 24 * time.Hour, LeaseTime: 15 * time.Second, Drain: 10 * time.Second, Connections: 10, MaxBatch: 48 << 20,
			Members:  &Members{Session: 10 * time.Second, Rebalance: 30 * time.Second},
			Agents:   []Agent{{Name: "reader", StepLimit: 5 * time.Minute}},
			Workers:  []Worker{{ID: "w1", Oldest: 2 * time.Second}, {ID: "w2"}},
			Progress: []Progress{{Agent: "reader", Topic: "orders", Partition: 0, Next: 50, Start: 10, End: 60, Committed: 50}, {Agent: "reader", Topic: "orders", Partition: 1, Committed: -1}},
		},
	}
	for id := range int32(3) {
		s.Cluster.Brokers = append(s.Cluster.Brokers, Broker{ID: id + 1, Config: map[string]string{"auto.create.topics.enable": "false",
			"socket.request.max.bytes": "104857600", "group.min.session.timeout.ms": "6000", "group.max.session.timeout.ms": "1800000"}})
	}
	s.topic("orders").Sample = sample(300, 3, func(i int) string { return fmt.Sprintf("order-%d", i%40) }, route.Partition)
	return s
}

func (s *Snapshot) topic(name string) *Topic {
	for i := range s.Cluster.Topics {
		if s.Cluster.Topics[i].Name == name {
			return &s.Cluster.Topics[i]
		}
	}
	return nil
}

// sample makes records of keys, placed by a partitioner.
func sample(n int, count int32, key func(i int) string, by func([]byte, int32) int32) []Key {
	keys := make([]Key, n)
	for i := range keys {
		b := []byte(key(i))
		keys[i] = Key{Partition: by(b, count), Bytes: b, Time: noon}
	}
	return keys
}

func set(name, value string) func(*Snapshot) {
	return func(s *Snapshot) { s.topic("orders").Config[name] = value }
}

func quota(entity map[string]*string, kind string) func(*Snapshot) {
	return func(s *Snapshot) {
		s.Cluster.Quotas = append(s.Cluster.Quotas, Quota{Entity: entity, Values: map[string]float64{kind: 1e6}})
	}
}

// planted are faults, each with what finds it and a word of what mends it.
var planted = []struct {
	name  string
	plant func(s *Snapshot)
	check string
	mend  string
}{
	{"RF 1", func(s *Snapshot) {
		for i := range s.topic("orders").Partitions {
			s.topic("orders").Partitions[i].Replicas, s.topic("orders").Partitions[i].InSync = []int32{2}, []int32{2}
		}
		s.topic("orders").Config["min.insync.replicas"] = "1"
	}, "kafka.replication", `"topic":"orders","partition":1,"replicas":[2,3,1]`},
	{"RF 1 on one broker", func(s *Snapshot) {
		s.Cluster.Brokers = s.Cluster.Brokers[:1]
		s.topic("orders").Partitions[0].Replicas, s.topic("orders").Partitions[0].InSync = []int32{1}, []int32{1}
	}, "kafka.replication", "add brokers"},
	{"RF 1 on Redpanda", func(s *Snapshot) {
		s.Cluster.Kind = Redpanda
		s.topic("orders").Partitions[0].Replicas, s.topic("orders").Partitions[0].InSync = []int32{1}, []int32{1}
	}, "kafka.replication", "rpk topic alter-config orders --set replication.factor=3"},
	{"min ISR 1", set("min.insync.replicas", "1"), "kafka.min_insync", "--entity-name orders --add-config min.insync.replicas=2"},
	{"min ISR 3 of 3", set("min.insync.replicas", "3"), "kafka.insync_spare", "min.insync.replicas=2"},
	{"unclean election", set("unclean.leader.election.enable", "true"), "kafka.unclean_election", "unclean.leader.election.enable=false"},
	{"write caching", func(s *Snapshot) { s.Cluster.Kind = Redpanda; set("write.caching", "true")(s) }, "kafka.write_caching", "rpk topic alter-config orders --set write.caching=false"},
	{"compaction", set("cleanup.policy", "compact,delete"), "kafka.compaction", "cleanup.policy=delete"},
	{"an hour's retention", set("retention.ms", "3600000"), "kafka.retention", "retention.ms=604800000"},
	{"retention by bytes", set("retention.bytes", "1000000"), "kafka.retention_bytes", "retention.bytes=-1"},
	{"records removed unread", func(s *Snapshot) { s.Swarm.Progress[0].Start = 55 }, "kafka.overtaken", "retention.ms"},
	{"the ledger went back", func(s *Snapshot) { s.Swarm.Progress[0].Next = 40 }, "ledger.behind", "swarmlog recover --swarm shop.yaml"},
	{"the log went back", func(s *Snapshot) { s.Swarm.Progress[0].End = 20 }, "ledger.behind", "before a worker starts"},
	{"a replica away", func(s *Snapshot) { s.topic("orders").Partitions[1].InSync = []int32{1, 2} }, "kafka.replicas_away", "--under-replicated-partitions"},
	{"no leader", func(s *Snapshot) { s.topic("orders").Partitions[1].Leader = -1 }, "kafka.replicas_away", "start the brokers"},
	{"no dead-letter topic", func(s *Snapshot) {
		*s.topic("orders.dead") = Topic{Name: "orders.dead", DeadOf: "orders", Missing: true}
	}, "kafka.dead_letters", "--create --topic orders.dead --partitions 3 --replication-factor 3"},
	{"too few dead-letter partitions", func(s *Snapshot) { s.topic("orders.dead").Partitions = s.topic("orders.dead").Partitions[:1] }, "kafka.dead_letters", "--topic orders.dead --partitions 3"},
	{"dead letters kept for an hour", func(s *Snapshot) { s.topic("orders.dead").Config["retention.ms"] = "3600000" }, "kafka.dead_letters", "--entity-name orders.dead"},
	{"dead letters may not fit", func(s *Snapshot) { s.topic("orders.dead").Config["max.message.bytes"] = "1000" }, "kafka.message_size", "--entity-name orders.dead --add-config max.message.bytes=1114124"},
	{"more than a worker sends", func(s *Snapshot) {
		set("max.message.bytes", "90000000")(s)
		s.topic("orders.dead").Config["max.message.bytes"] = "90000000"
		s.topic("orders.dead").DeadOf = "another"
		s.Cluster.Topics = s.Cluster.Topics[:1]
	}, "kafka.message_size", "max.message.bytes=50266112"},
	{"more than brokers take", func(s *Snapshot) { s.Cluster.Brokers[2].Config["socket.request.max.bytes"] = "1500000" }, "kafka.message_size", "--entity-name orders.dead"},
	{"no right to write", func(s *Snapshot) { s.Cluster.Denied = []Denied{{"topic", "orders", "WRITE"}} }, "kafka.access", "--allow-principal User:shop --operation WRITE --topic orders"},
	{"a quota on an id of ours", quota(map[string]*string{client: ptr("swarmlog-shop-reader")}, "consumer_byte_rate"), "quota.ours", "--entity-type clients --entity-name swarmlog-shop-reader --delete-config consumer_byte_rate"},
	{"a default quota of ids", quota(map[string]*string{client: nil}, "producer_byte_rate"), "quota.ours", "--entity-type clients --entity-default"},
	{"a quota of our user", quota(map[string]*string{user: ptr("shop")}, "request_percentage"), "quota.ours", "--entity-type users --entity-name shop"},
	{"a quota of a prefix", quota(map[string]*string{prefix: ptr("swarmlog-")}, "producer_byte_rate"), "quota.ours", "leave it if it's meant"},
	{"a quota for an id that nobody has", quota(map[string]*string{client: ptr("swarmlog")}, "producer_byte_rate"), "quota.near_miss", "--entity-name swarmlog --delete-config producer_byte_rate"},
	{"a library's id", func(s *Snapshot) { s.Cluster.Clients = []string{"kgo"} }, "quota.shared_id", "kafka.client_id"},
	{"the database's clock", func(s *Snapshot) { s.Database.Clock.There = noon.Add(9 * time.Second) }, "clock.database", "NTP"},
	{"the broker's clock", func(s *Snapshot) { s.Cluster.Clock.There = noon.Add(-9 * time.Second) }, "clock.brokers", "NTP"},
	{"records from the future", func(s *Snapshot) { s.topic("orders").Newest = noon.Add(time.Hour) }, "clock.records", "LogAppendTime"},
	{"librdkafka's partitioner", func(s *Snapshot) {
		s.topic("orders").Sample = sample(300, 3, func(i int) string { return fmt.Sprintf("order-%d", i%40) }, func(k []byte, n int32) int32 { return int32(crc32.ChecksumIEEE(k) % uint32(n)) })
	}, "keys.misrouted", "murmur2_random"},
	{"Sarama's partitioner", func(s *Snapshot) {
		s.topic("orders").Sample = sample(300, 3, func(i int) string { return fmt.Sprintf("order-%d", i%40) }, func(k []byte, n int32) int32 {
			h := fnv.New32a()
			_, _ = h.Write(k)
			p := int32(h.Sum32()) % n
			return max(p, -p)
		})
	}, "keys.misrouted", "Sarama"},
	{"a topic that has grown", func(s *Snapshot) {
		s.topic("orders").Slots = 2
	}, "keys.misrouted", "forwards them"},
	{"one record astray", func(s *Snapshot) {
		s.topic("orders").Sample[7].Partition = (s.topic("orders").Sample[7].Partition + 1) % 3
	}, "keys.misrouted", "murmur2"},
	{"keys that are times", func(s *Snapshot) {
		s.topic("orders").Sample = sample(60, 3, func(i int) string { return fmt.Sprint(noon.Add(time.Duration(-i) * time.Minute).UnixMilli()) }, route.Partition)
	}, "keys.timestamps", "what they are about"},
	{"keys that are dates", func(s *Snapshot) {
		s.topic("orders").Sample = sample(60, 3, func(i int) string { return noon.Add(time.Duration(-i) * time.Minute).Format(time.RFC3339) }, route.Partition)
	}, "keys.timestamps", "what they are about"},
	{"one aggregate dominates", func(s *Snapshot) {
		s.topic("orders").Sample = sample(300, 3, func(i int) string { return fmt.Sprintf("order-%d", max(i%40-30, 0)) }, route.Partition)
	}, "keys.dominant", "commutative"},
	{"no keys", func(s *Snapshot) { s.topic("orders").Sample = append(s.topic("orders").Sample, Key{Partition: 1}) }, "keys.none", "where it doesn't"},
	{"a session that brokers refuse", func(s *Snapshot) { s.Swarm.Members.Session = 3 * time.Second }, "time.session", "6s"},
	{"a drain longer than a rebalance", func(s *Snapshot) { s.Swarm.Drain = time.Minute }, "time.session", "--drain 15s"},
	{"a step longer than the drain", func(s *Snapshot) { s.Swarm.Workers[0].Oldest = time.Minute }, "time.drain", "--drain 2m"},
	{"a step that doesn't end", func(s *Snapshot) { s.Swarm.Workers[0].Oldest = time.Hour }, "time.overdue", "restart the worker"},
	{"fsync off", func(s *Snapshot) { s.Database.Fsync = "off" }, "postgres.fsync", "ALTER SYSTEM SET fsync = on"},
	{"full_page_writes off", func(s *Snapshot) { s.Database.FullPageWrites = "off" }, "postgres.full_page_writes", "ALTER SYSTEM SET full_page_writes = on"},
	{"synchronous_commit off for the role", func(s *Snapshot) { s.Database.SynchronousCommit, s.Database.CommitSource = "off", "user" }, "postgres.synchronous_commit", `ALTER ROLE "shop" SET synchronous_commit = on`},
	{"synchronous_commit off for the database", func(s *Snapshot) { s.Database.SynchronousCommit, s.Database.CommitSource = "off", "database" }, "postgres.synchronous_commit", `ALTER DATABASE "shop" SET synchronous_commit = on`},
	{"synchronous_commit off in the file", func(s *Snapshot) { s.Database.SynchronousCommit, s.Database.CommitSource = "off", "configuration file" }, "postgres.synchronous_commit", `ALTER SYSTEM SET synchronous_commit = on`},
	{"an asynchronous stand-by", func(s *Snapshot) { s.Database.Standbys[0].Sync = "async" }, "postgres.standby", `synchronous_standby_names = 'ANY 1 ("b")'`},
	{"commits that don't wait for it", func(s *Snapshot) { s.Database.SynchronousCommit, s.Database.CommitSource = "local", "database" }, "postgres.standby", `ALTER DATABASE "shop"`},
	{"a stand-by", func(s *Snapshot) { s.Database.InRecovery = true }, "postgres.primary", "target_session_attrs"},
	{"PostgreSQL 13", func(s *Snapshot) { s.Database.Number, s.Database.Version = 130010, "13.10" }, "postgres.version", "pg_upgrade"},
	{"no connections left", func(s *Snapshot) { s.Database.Connections = 4 }, "postgres.connections", "max_connections"},
	{"a topic that doesn't exist", func(s *Snapshot) {
		s.Cluster.Topics = append(s.Cluster.Topics, Topic{Name: "invoices", Missing: true}, Topic{Name: "invoices.dead", DeadOf: "invoices", Missing: true})
	}, "kafka.topic_missing", "swarmlog run shop.yaml"},
	{"topics made by a slip of the pen", func(s *Snapshot) { s.Cluster.Brokers[0].Config["auto.create.topics.enable"] = "true" }, "kafka.auto_create", "server.properties"},
	{"quotas that may not be seen", func(s *Snapshot) { s.Blind = []Blind{{"quotas", "CLUSTER_AUTHORIZATION_FAILED"}} }, "doctor.blind", "the right to describe"},
}

func TestEachFaultIsFound(t *testing.T) {
	t.Parallel()
	if found := Examine(good()); len(found) > 0 {
		t.Errorf("a good cluster: %+v", found)
	}
	found := map[string]bool{}
	for _, p := range planted {
		s := good()
		p.plant(&s)
		findings := Examine(s)
		names := map[string]bool{}
		for _, f := range findings {
			names[f.Check] = true
			found[f.Check] = true
			if f.Object == "" || f.Found == "" || f.Wanted == "" || f.Mend == "" {
				t.Errorf("%s: %+v leaves something out", p.name, f)
			}
		}
		delete(names, "kafka.min_insync") // comes with a replication factor of 1
		if p.check == "kafka.min_insync" {
			names[p.check] = true
		}
		if got := slices.Sorted(maps.Keys(names)); !slices.Equal(got, []string{p.check}) {
			t.Errorf("%s: found %v, want %s alone: %+v", p.name, got, p.check, findings)
			continue
		}
		if !slices.ContainsFunc(findings, func(f Finding) bool { return strings.Contains(f.Mend, p.mend) }) {
			t.Errorf("%s: nothing says how to mend it by %q: %+v", p.name, p.mend, findings)
		}
	}
	for _, c := range Checks() {
		if !found[c.Name] {
			t.Errorf("no planted fault is found by %s", c.Name)
		}
	}
}

// TestEmbeddedIsExcused : a broker in one process keeps no copies, and says so elsewhere.
func TestEmbeddedIsExcused(t *testing.T) {
	t.Parallel()
	s := good()
	s.Cluster.Kind, s.Cluster.Brokers, s.Database = Embedded, s.Cluster.Brokers[:1], nil
	for i := range s.Cluster.Topics {
		for p := range s.Cluster.Topics[i].Partitions {
			s.Cluster.Topics[i].Partitions[p].Replicas, s.Cluster.Topics[i].Partitions[p].InSync = []int32{1}, []int32{1}
		}
		s.Cluster.Topics[i].Config["min.insync.replicas"] = "1"
	}
	if found := Examine(s); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	if found := Examine(Snapshot{}); len(found) > 0 {
		t.Errorf("of nothing: %+v", found)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	s := good()
	set("min.insync.replicas", "1")(&s)
	s.Database.Fsync = "off"
	s.Database.Clock.There = noon.Add(time.Hour) // a warning, which refuses nothing
	findings := Examine(s)
	if Worst(findings) != LosesData {
		t.Errorf("worst %q", Worst(findings))
	}
	err := Refused(findings, []string{"postgres.fsync"})
	if !errors.Is(err, ErrRisk) || !strings.Contains(err.Error(), "--accept-risk kafka.min_insync") || strings.Contains(err.Error(), "fsync") {
		t.Errorf("one of two accepted: %v", err)
	}
	if err := Refused(findings, []string{"postgres.fsync", "kafka.min_insync"}); err != nil {
		t.Errorf("both accepted: %v", err)
	}
	for _, name := range []string{"kafka.min_isr", "clock.database"} {
		if err := Refused(nil, []string{name}); !errors.Is(err, ErrNoRisk) {
			t.Errorf("accepting %s: %v", name, err)
		}
	}
	if Worst(Examine(good())) != "" {
		t.Error("the worst of nothing is something")
	}
}

// TestQuotaOrder : of quotas that could hold, the one that Kafka takes is named (KIP-55).
func TestQuotaOrder(t *testing.T) {
	t.Parallel()
	order := []map[string]*string{
		{user: ptr("shop"), client: ptr("swarmlog-shop")}, {user: ptr("shop"), client: nil}, {user: ptr("shop")},
		{user: nil, client: ptr("swarmlog-shop")}, {user: nil, client: nil}, {user: nil}, {client: ptr("swarmlog-shop")}, {client: nil},
	}
	for first := range order {
		c := good().Cluster
		c.Quotas = nil
		for i := len(order) - 1; i >= first; i-- {
			c.Quotas = append(c.Quotas, Quota{Entity: order[i], Values: map[string]float64{"producer_byte_rate": float64(i)}})
		}
		c.Quotas = append(c.Quotas, Quota{Entity: map[string]*string{"ip": ptr("10.0.0.1")}, Values: map[string]float64{"producer_byte_rate": -1}},
			Quota{Entity: map[string]*string{user: ptr("else")}, Values: map[string]float64{"producer_byte_rate": -1}},
			Quota{Entity: order[0], Values: map[string]float64{"consumer_byte_rate": -1}})
		if q := c.effective("producer_byte_rate", "swarmlog-shop"); q == nil || q.Values["producer_byte_rate"] != float64(first) {
			t.Errorf("of quotas %d and on, %+v was taken", first, q)
		}
	}
}

// TestRoutedKeysAreNotAstray : whatever keys are, what murmur2 has placed is nowhere called misrouted.
func TestRoutedKeysAreNotAstray(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.Int32Range(1, 30).Draw(t, "partitions")
		slots := rapid.Int32Range(1, count).Draw(t, "slots")
		s := good()
		topic := s.topic("orders")
		topic.Partitions, topic.Slots, topic.Sample = make([]Partition, count), slots, nil
		for _, key := range rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "keys") {
			topic.Sample = append(topic.Sample, Key{Bytes: key, Partition: route.Partition(key, slots), Time: noon})
		}
		if found := misrouted(nil, &s, topic); len(found) > 0 {
			t.Fatalf("%+v", found)
		}
	})
}

// TestDocumented : docs/doctor.md has each check, with its severity and promise.
func TestDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range Checks() {
		promise := c.Promise
		if promise == "" {
			promise = "–"
		}
		if row := fmt.Sprintf("| `%s` | %s | %s |", c.Name, c.Severity, promise); !strings.Contains(string(text), row) {
			t.Errorf("docs/doctor.md has no row that begins with %s", row)
		}
	}
	if rows := strings.Count(string(text), "\n| `"); rows != len(Checks()) {
		t.Errorf("docs/doctor.md has %d rows of checks, and there are %d checks", rows, len(Checks()))
	}
}
