package swarmlog_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog"
	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/ledger"
)

// Two swarms of the same agents on real servers share the work; what either sees is what both did.
func TestTwoSwarmsShareTheWorkOnServers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	topic := "library-" + strings.ToLower(rand.Text()[:12])
	tally := swarmlog.Handle("tally", func(_ context.Context, e event.Event, s *swarmlog.Step) error {
		s.Tx(func(ctx context.Context, tx ledger.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO tally (subject, n) VALUES ($1, 1) ON CONFLICT (subject) DO UPDATE SET n = tally.n + 1`, e.Subject)
			return err
		})
		s.Emit(event.New("TalliedEvent", e.Subject, nil))
		return nil
	}, swarmlog.Reads(topic), swarmlog.Emits(topic+"-out"), swarmlog.Tables(func(ctx context.Context, tx ledger.Tx) error {
		_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS tally (subject text PRIMARY KEY, n bigint NOT NULL)`)
		return err
	}))
	cluster, dsn := swarmlog.KafkaCluster{Brokers: given.Kafka(t)}, given.Database(t)
	start := func(id string) *swarmlog.Swarm {
		s, err := swarmlog.Start(ctx, swarmlog.Name(topic), swarmlog.Agents(tally), swarmlog.Kafka(cluster), swarmlog.Postgres(dsn, ""),
			swarmlog.Worker(id), swarmlog.LeaseTime(3*time.Second), swarmlog.Drain(5*time.Second), swarmlog.Topic(topic, 4))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	one := start("one")
	two := start("two")
	const subjects, each = 20, 5
	for i := range subjects * each {
		e := event.New("E", fmt.Sprint("subject-", i%subjects), i)
		e.ID, e.Source = fmt.Sprint(i), "test"
		if err := []*swarmlog.Swarm{one, two}[i%2].Publish(ctx, topic, e); err != nil {
			t.Fatal(err)
		}
	}
	if err := one.Settled(ctx); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*swarmlog.Swarm{"one": one, "two": two} {
		c, err := s.Counters(ctx, "tally")
		if err != nil || c.Applied != subjects*each || c.Delivered() != c.Applied {
			t.Errorf("%s counts %+v, %v", name, c, err)
		}
		out, err := s.Messages(ctx, topic+"-out")
		ids := map[string]bool{} // a hand-over may publish an event again; its id tells
		for _, m := range out {
			e, err := event.Decode(m, event.Position{})
			if err != nil {
				t.Fatal(err)
			}
			ids[e.ID] = true
		}
		if err != nil || len(ids) != subjects*each {
			t.Errorf("%s sees %d events, %v", name, len(ids), err)
		}
	}
	if err := two.Read(ctx, func(ctx context.Context, tx ledger.Tx) error {
		var wrong int64
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM tally WHERE n <> $1`, int64(each)).Scan(&wrong); err != nil || wrong != 0 {
			t.Errorf("%d subjects have another count, %v", wrong, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestLoginShowsNoSecret(t *testing.T) {
	l := swarmlog.KafkaLogin{Mechanism: "PLAIN", User: "me", Password: "sk-verysecret", Token: "sk-verysecret"}
	if shown := fmt.Sprintf("%v %+v %#v %s %v", l, l, l, &l, swarmlog.KafkaCluster{Login: &l}); strings.Contains(shown, "verysecret") {
		t.Errorf("shown: %s", shown)
	}
}
