package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/swarmlog/swarmlog/internal/broker/embedded"
	"github.com/swarmlog/swarmlog/internal/broker/kafka"
	"github.com/swarmlog/swarmlog/internal/config"
	"github.com/swarmlog/swarmlog/internal/ledger/postgres"
	"github.com/swarmlog/swarmlog/internal/ledger/sqlite"
)

// This file knows the kinds of broker and ledger.

// KafkaOptions say which cluster to use; Logger and what the embedded broker needs may be left out.
type KafkaOptions = kafka.Options

// KafkaTLS, KafkaSASL and KafkaSecret are parts of KafkaOptions.
type (
	KafkaTLS    = kafka.TLS
	KafkaSASL   = kafka.SASL
	KafkaSecret = kafka.Secret
)

// PostgresOptions say which database to use; Logger and LeaseTime may be left out.
type PostgresOptions = postgres.Options

// hasFolder tells whether anything is kept in the data folder.
func (a *App) hasFolder() bool {
	return !a.config.InMemory && (a.config.Kafka == nil || a.config.Postgres == nil)
}

func (a *App) openFolder(ctx context.Context) error {
	if !a.hasFolder() {
		return nil
	}
	f, err := lockFolder(ctx, a.config.Data)
	if err != nil {
		return err
	}
	a.onClose("data folder", func(context.Context) error { return f.unlock() })
	return writeName(a.config.Data, a.config.Name)
}

func (a *App) startBroker(ctx context.Context) error {
	var o KafkaOptions
	if a.config.Kafka != nil {
		o = *a.config.Kafka
	} else {
		server, err := embedded.Start(ctx, embedded.Options{Addr: a.config.BrokerListen, Dir: a.inData("log"), Logger: a.log})
		if err != nil {
			return err
		}
		a.server = server
		a.onClose("broker", func(context.Context) error { return server.Close() })
		o = toEmbedded(server)
	}
	if o.ClientID == "" {
		o.ClientID = "swarmlog-" + a.config.Name
	}
	o.Logger, o.Throttled = a.log, a.metrics.Throttled
	opening, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	var err error
	if a.broker, err = kafka.Open(opening, o); err != nil {
		return err
	}
	a.onClose("broker's client", func(context.Context) error { a.broker.Close(); return nil })
	return nil
}

// toEmbedded is how the embedded broker is spoken to: it forgets its idempotence window when it's killed, and one
// request at a time keeps the order then.
func toEmbedded(server *embedded.Server) KafkaOptions {
	return KafkaOptions{Seeds: []string{server.Addr()}, OneInflight: true, Uncompressed: true}
}

// inData is a place in the data folder, or "" where all is kept in memory.
func (a *App) inData(name string) string {
	if a.config.InMemory {
		return ""
	}
	return filepath.Join(a.config.Data, name)
}

func (a *App) openLedger(ctx context.Context) (err error) {
	if a.config.Postgres != nil {
		err = a.openPostgres(ctx)
	} else {
		err = a.openSQLite(ctx)
	}
	if err != nil {
		return err
	}
	l := a.ledger
	a.onClose("ledger", func(context.Context) error { return l.Close() })
	if a.config.Closed != nil {
		a.onClose("agents", func(context.Context) error { a.config.Closed(); return nil })
	}
	if a.config.Opened != nil {
		a.answers, err = a.config.Opened(ctx, a.ledger)
	}
	return err
}

func (a *App) openPostgres(ctx context.Context) error {
	o := *a.config.Postgres
	o.Logger = a.log
	if o.LeaseTime == 0 {
		o.LeaseTime = a.config.LeaseTime
	}
	o.AcceptLoss = o.AcceptLoss || slices.ContainsFunc(a.config.AcceptRisk, losesCommits)
	db, err := postgres.Open(ctx, o)
	if err != nil {
		return err
	}
	a.ledger = db
	return nil
}

func (a *App) openSQLite(ctx context.Context) error {
	path := ":memory:"
	if !a.config.InMemory {
		path = a.inData(LedgerFile)
	}
	db, err := sqlite.Open(ctx, path, sqlite.Options{Logger: a.log})
	if err != nil {
		return err
	}
	a.ledger = db
	return nil
}

// losesCommits tells that a risk by its name is one that the ledger refuses by itself.
func losesCommits(risk string) bool {
	return risk == "postgres.fsync" || risk == "postgres.synchronous_commit"
}

// shared tells whether other processes may work on the same ledger.
func (a *App) shared() bool { return a.config.Postgres != nil }

// workerID names the n-th engine of this process, unlike any other's of another process that runs.
func (a *App) workerID(n int) string {
	id := a.config.Worker
	switch {
	case id == "" && !a.shared():
		id = "local"
	case id != "" && a.config.Workers == 1:
		return id
	}
	return id + "-" + strconv.Itoa(n+1)
}

// drawnEnd is what makes a worker's id its own.
func drawnEnd() string { return strings.ToLower(rand.Text()[:8]) }

// kafkaOptions are a swarm's settings as the broker's client takes them.
func kafkaOptions(k config.Kafka) (*KafkaOptions, error) {
	if len(k.Brokers) == 0 {
		return nil, errors.New("no broker is named: write kafka: {brokers: [HOST:9092]}, set SWARMLOG_BROKERS or give --brokers")
	}
	o := &KafkaOptions{Seeds: k.Brokers, ClientID: k.ClientID,
		Group: kafka.Group{Protocol: kafka.GroupProtocol(k.GroupProtocol), Session: k.Session, Rebalance: k.Rebalance}}
	if k.TLS.On {
		o.TLS = &kafka.TLS{CAFile: k.TLS.CA, CertFile: k.TLS.Cert, KeyFile: k.TLS.Key, ServerName: k.TLS.ServerName}
	}
	if k.SASL.Mechanism == "" {
		return o, nil
	}
	o.SASL = &kafka.SASL{Mechanism: k.SASL.Mechanism, User: k.SASL.User}
	var client kafka.Secret
	for _, one := range []struct {
		key  config.Key
		what string
		to   *kafka.Secret
	}{
		{k.SASL.Password, "the user's password", &o.SASL.Password},
		{k.SASL.Token, "the token", &o.SASL.Token},
		{k.SASL.ClientSecret, "the client's secret", &client},
	} {
		s, err := one.key.Credential(one.what)
		if err != nil {
			return nil, fmt.Errorf("log in to Kafka: %w", err)
		}
		*one.to = kafka.Secret{Value: s.Reveal()}
		if one.key.File != "" { // it may be renewed
			*one.to = kafka.Secret{File: one.key.File}
		}
	}
	if k.SASL.TokenURL != "" {
		o.SASL.Client = &kafka.OAuthClient{Endpoint: k.SASL.TokenURL, ID: k.SASL.Client, Secret: client, Scope: k.SASL.Scope}
	}
	return o, nil
}

// postgresOptions are a swarm's settings as the ledger takes them.
func postgresOptions(p config.Postgres) (*PostgresOptions, error) {
	dsn, err := p.DSN.Resolve()
	if err != nil {
		return nil, fmt.Errorf("open PostgreSQL ledger: %w", err)
	}
	return &PostgresOptions{DSN: dsn.Reveal(), Schema: p.Schema, MaxConns: p.Connections}, nil
}
