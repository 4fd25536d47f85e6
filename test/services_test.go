package test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/swarmlog/swarmlog/internal/devservices"
)

// services takes what is given by address, as make test does; run alone, it starts them and ends them again.
func services(t *testing.T, name string) *devservices.Report {
	t.Helper()
	given := os.Getenv(devservices.EnvKafka)
	if name == devservices.Postgres {
		given = os.Getenv(devservices.EnvPostgres)
	}
	if given == "" && testing.Short() && !devservices.InCI() {
		t.Skip("NOT RUN: it starts services, which -short leaves out: run make test")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 12*time.Minute) // the first start fetches programs
	defer cancel()
	o := devservices.Options{Logf: t.Logf}
	r, err := devservices.Start(ctx, o, name)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Started) > 0 {
		t.Cleanup(func() {
			if err := devservices.Stop(context.Background(), o, r.Started...); err != nil {
				t.Error(err)
			}
		})
	}
	for _, m := range r.Missing {
		if devservices.InCI() || given != "" {
			t.Fatalf("%s can't be had: %v", m.Name, m.Err)
		}
		t.Skipf("NOT RUN: %s can't be had: %v", m.Name, m.Err)
	}
	return r
}

// TestKafkaService shows that the brokers are what later suites rest on: three, replicating, durable, in order.
func TestKafkaService(t *testing.T) {
	r := services(t, devservices.Kafka)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(r.Kafka, ",")...), kgo.RequiredAcks(kgo.AllISRAcks()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	brokers, err := admin.ListBrokers(ctx)
	if err != nil || len(brokers) < devservices.Brokers {
		t.Fatalf("brokers are %v, %v; want %d", brokers, err, devservices.Brokers)
	}
	topic := fmt.Sprintf("services-%d", time.Now().UnixNano())
	two := "2"
	if _, err := admin.CreateTopic(ctx, 2, 3, map[string]*string{"min.insync.replicas": &two}, topic); err != nil {
		t.Fatalf("create a topic of three replicas: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if c, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(r.Kafka, ",")...)); err == nil {
			defer c.Close()
			_, _ = kadm.NewClient(c).DeleteTopics(ctx, topic)
		}
	})

	const records = 100
	for n := range records {
		client.Produce(ctx, &kgo.Record{Topic: topic, Key: []byte("k"), Value: fmt.Appendf(nil, "%d", n)}, func(_ *kgo.Record, err error) {
			if err != nil {
				t.Errorf("produce record %d: %v", n, err)
			}
		})
	}
	if err := client.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	client.AddConsumeTopics(topic)
	for next := 0; next < records; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d records: %v", next, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if want := fmt.Sprint(next); string(r.Value) != want {
				t.Fatalf("record %s comes where %s should", r.Value, want)
			}
			next++
		})
	}

	topics, err := admin.ListTopics(ctx, topic)
	if err != nil || topics.Error() != nil {
		t.Fatal(err, topics.Error())
	}
	for _, p := range topics[topic].Partitions {
		if len(p.Replicas) != 3 || len(p.ISR) < 2 {
			t.Errorf("partition %d has replicas %v, in sync %v; want 3 and at least 2", p.Partition, p.Replicas, p.ISR)
		}
	}
}

// TestPostgresService shows that PostgreSQL is of a release and set-up that the ledger's promises can rest on.
func TestPostgresService(t *testing.T) {
	r := services(t, devservices.Postgres)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var version int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int / 10000").Scan(&version); err != nil || version < 14 {
		t.Errorf("version is %d, %v; want 14 or newer", version, err)
	}
	for _, setting := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		var value string
		if err := conn.QueryRow(ctx, "SELECT current_setting($1)", setting).Scan(&value); err != nil || value != "on" {
			t.Errorf("%s is %q, %v; want on", setting, value, err)
		}
	}
	// Suites make a database each, so the account must be allowed to.
	database := fmt.Sprintf("services_%d", time.Now().UnixNano())
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+database); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "DROP DATABASE "+database); err != nil {
		t.Error(err)
	}
}
