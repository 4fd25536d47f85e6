package fieldcases

import (
	"context"
	"crypto/rand"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/engine"
	"github.com/swarmlog/swarmlog/internal/ledger/postgres"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
	"github.com/swarmlog/swarmlog/ledger"
)

// place is where a case happens: in this process, or on a real Kafka cluster and a PostgreSQL database of its own. Topics
// of the cluster are shared with other cases, so there each case gives its own a prefix.
type place struct {
	Data    string // folder of what is embedded; "": it's in memory
	Brokers []string
	DSN     string
	Prefix  string
}

// everywhere runs a case in both places.
func everywhere(t *testing.T, run func(t *testing.T, at *place)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		run(t, &place{})
	})
	t.Run("pair", func(t *testing.T) {
		t.Parallel()
		run(t, newPair(t))
	})
}

// newPair makes a database for a case, and drops it at the end.
func newPair(t *testing.T) *place {
	t.Helper()
	at := &place{Brokers: given.Kafka(t), Prefix: "case" + strings.ToLower(rand.Text()[:10]) + "."}
	server := given.Postgres(t)
	name := "swarmlog_" + strings.TrimSuffix(at.Prefix, ".")
	admin := func(statement string) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		c, err := pgx.Connect(ctx, server)
		check(t, err)
		defer func() { check(t, c.Close(ctx)) }()
		_, err = c.Exec(ctx, statement)
		check(t, err)
	}
	admin(`CREATE DATABASE ` + name)
	t.Cleanup(func() { admin(`DROP DATABASE ` + name + ` WITH (FORCE)`) })
	u, err := url.Parse(server)
	check(t, err)
	u.Path = "/" + name
	at.DSN = u.String()
	return at
}

// keep lets what the case does outlive a swarm.
func (p *place) keep(t *testing.T) {
	if p.Brokers == nil {
		p.Data = t.TempDir()
	}
}

func (p *place) topic(name string) string { return p.Prefix + name }

func (p *place) name() string { return p.Prefix + "cases" }

func (p *place) config(topics map[string]int32, agents ...engine.Agent) app.Config {
	c := app.Config{Name: p.name(), Data: p.Data, InMemory: p.Data == "", Agents: agents, LeaseTime: 600 * time.Millisecond, Drain: 2 * time.Second}
	if p.Brokers != nil {
		// Several databases share a server's connections, and on a busy machine its answers take a while.
		c.LeaseTime = 2 * time.Second
		c.Kafka, c.Postgres = &app.KafkaOptions{Seeds: p.Brokers}, &app.PostgresOptions{DSN: p.DSN, MaxConns: 5}
	}
	for name, partitions := range topics {
		c.Topics = append(c.Topics, broker.TopicSpec{Name: name, Partitions: partitions})
	}
	return c
}

// rename gives all topics the place's prefix.
func (p *place) rename(c *app.Config) {
	for i := range c.Topics {
		c.Topics[i].Name = p.topic(c.Topics[i].Name)
	}
	for i, a := range c.Agents {
		c.Agents[i].Reads, c.Agents[i].Emits = p.all(a.Reads), p.all(a.Emits)
	}
}

func (p *place) all(topics []string) (renamed []string) {
	for _, t := range topics {
		renamed = append(renamed, p.topic(t))
	}
	return renamed
}

// ledger opens the ledger of a swarm that has stopped.
func (p *place) ledger(t *testing.T) ledger.Ledger {
	t.Helper()
	if p.Brokers == nil {
		db, err := sqlite.OpenReadOnly(filepath.Join(p.Data, app.LedgerFile))
		check(t, err)
		return db
	}
	db, err := postgres.Open(t.Context(), postgres.Options{DSN: p.DSN})
	check(t, err)
	return db
}
