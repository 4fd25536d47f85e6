package swarmlog

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/swarmlog/swarmlog/internal/app"
	"github.com/swarmlog/swarmlog/internal/engine"
)

// KafkaCluster is a Kafka or Redpanda cluster of one's own.
type KafkaCluster struct {
	Brokers  []string // host:port of some brokers; the others are found through them
	ClientID string   // what quotas and the brokers' logs know this process by; default: swarmlog- and the swarm's name
	TLS      *KafkaTLS
	Login    *KafkaLogin
}

// KafkaTLS protects connections by TLS, and verifies the brokers' certificates, always. The zero value trusts what the
// system trusts.
type KafkaTLS struct {
	CA         string // PEM file of the certificates to trust instead
	Cert, Key  string // PEM files of this client's own certificate, where the brokers want one
	ServerName string // the name that the brokers' certificates must have; default: the address that is dialled
}

// KafkaLogin is who this process is to the brokers. Formatting and logging it shows no secret.
type KafkaLogin struct {
	Mechanism    string // PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER
	User         string // of PLAIN and SCRAM
	Password     string
	PasswordFile string // or the file that holds it, alone; it's read anew for each connection
	Token        string // of OAUTHBEARER
	TokenFile    string
}

func (l KafkaLogin) String() string { return fmt.Sprintf("%s as %q", l.Mechanism, l.User) }

// GoString keeps %#v from showing the password.
func (l KafkaLogin) GoString() string { return l.String() }

// LogValue keeps the password out of logs.
func (l KafkaLogin) LogValue() slog.Value { return slog.StringValue(l.String()) }

// Kafka runs the swarm on a cluster of one's own instead of the embedded broker. Topics that agents name and that don't
// exist are created so that a broker may be lost: three replicas, two of which must have a record before it counts as
// accepted. Give Postgres as well where several processes are to share the work.
func Kafka(k KafkaCluster) Option {
	return func(c *app.Config) {
		o := &app.KafkaOptions{Seeds: k.Brokers, ClientID: k.ClientID}
		if k.TLS != nil {
			o.TLS = &app.KafkaTLS{CAFile: k.TLS.CA, CertFile: k.TLS.Cert, KeyFile: k.TLS.Key, ServerName: k.TLS.ServerName}
		}
		if l := k.Login; l != nil {
			o.SASL = &app.KafkaSASL{Mechanism: l.Mechanism, User: l.User, Password: app.KafkaSecret{Value: l.Password, File: l.PasswordFile},
				Token: app.KafkaSecret{Value: l.Token, File: l.TokenFile}}
		}
		c.Kafka = o
	}
}

// Postgres keeps the ledger in PostgreSQL instead of the data folder: several processes with the same agents share the
// work then, and each record still has one effect. The agents' own SQL runs there, in PostgreSQL's dialect.
//
// dsn is a connection string, postgres://USER@HOST:5432/DATABASE; what it leaves out comes from PostgreSQL's own
// variables, such as PGPASSWORD. schema is where the ledger's own tables are; "": swarmlog. Each swarm needs one of its own.
func Postgres(dsn, schema string) Option {
	return func(c *app.Config) { c.Postgres = &app.PostgresOptions{DSN: dsn, Schema: schema} }
}

// Worker names this process among those that share the work. No two that run may have the same name; one that stays
// the same over a restart takes its partitions back at once. The default is made of the host's name and drawn.
func Worker(id string) Option { return func(c *app.Config) { c.Worker = id } }

// Pool says which pool of workers this process belongs to; see InPool.
func Pool(name string) Option { return func(c *app.Config) { c.Pool = name } }

// KafkaMembership lets a Kafka consumer group decide which process has which partition, instead of the processes
// themselves by leases. It's the same for all processes of a swarm.
func KafkaMembership() Option {
	return func(c *app.Config) { c.Membership = engine.MembershipKafka }
}

// LeaseTime is after how long a process that gives no sign is replaced; the default is 15 seconds. It's the same for all
// processes of a swarm.
func LeaseTime(d time.Duration) Option { return func(c *app.Config) { c.LeaseTime = d } }

// Drain is how long Stop lets running steps go on; the default is 10 seconds.
func Drain(d time.Duration) Option { return func(c *app.Config) { c.Drain = d } }

// StuckAfter is how long a handler may ignore that its context has ended until this process's part of the swarm ends with
// an error, so that other processes can go on; the default is 2 minutes.
func StuckAfter(d time.Duration) Option { return func(c *app.Config) { c.StuckAfter = d } }

// Journal names a topic that gets events about what happens to processes, leases and steps; docs/journal.md lists them.
// It's made where it doesn't exist. The default is none.
func Journal(topic string) Option {
	return func(c *app.Config) { c.Journal, c.JournalAsked = topic, topic != "" }
}

// AcceptRisk accepts, by name, what Start would refuse since it can lose data; swarmlog doctor names it.
func AcceptRisk(names ...string) Option {
	return func(c *app.Config) { c.AcceptRisk = append(c.AcceptRisk, names...) }
}

// InPool lets an agent run in processes of one pool alone. The default is any.
func InPool(name string) AgentOption { return func(a *engine.Agent) { a.Pool = name } }
