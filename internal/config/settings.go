package config

import (
	"os"
	"strings"
	"time"
)

// Settings are what a worker needs beside its agents: where the log and the ledger are, who it is, how patient. A flag
// counts before the environment, and that before the file.
type Settings struct {
	Kafka    Kafka
	Postgres Postgres
	Worker   Worker
	// Journal is a topic that gets events about workers, leases and steps, or JournalOff; default "": as the run has it.
	Journal string
	// AcceptRisk names what would be refused at the start and is accepted here, as swarmlog doctor names it.
	AcceptRisk []string
}

// Kafka says which cluster holds the log.
type Kafka struct {
	Brokers    []string // host:port of some brokers
	ClientID   string   // default "": swarmlog and the swarm's name
	TLS        TLS
	SASL       SASL
	Membership string // who decides which worker has which partition: MembershipLeases or MembershipKafka; default "": leases
	// GroupProtocol is what members of Kafka groups speak: classic (default), consumer (KIP-848) or auto.
	GroupProtocol string
	// Session and Rebalance are of members of Kafka groups; default 0: the client's own.
	Session, Rebalance time.Duration
}

// JournalOff says that nothing is journalled.
const JournalOff = "off"

// Kinds of membership.
const (
	MembershipLeases = "leases"
	MembershipKafka  = "kafka"
)

// TLS is how the connection to the brokers is protected. Certificates are always verified.
type TLS struct {
	On         bool
	CA         string // PEM file of certificates to trust; default: the system's
	Cert, Key  string // PEM files of this client's own certificate, where the brokers want one
	ServerName string // that the brokers' certificates must have; default: the address that is dialled
}

// SASL mechanisms.
const (
	Plain       = "PLAIN"
	Scram256    = "SCRAM-SHA-256"
	Scram512    = "SCRAM-SHA-512"
	OAuthBearer = "OAUTHBEARER"
)

// SASL is who we are to the brokers.
type SASL struct {
	Mechanism string // "": nobody
	User      string
	Password  Key
	// Token is OAUTHBEARER's; a file is read anew for each connection, so that another program may renew it. Or tokens
	// come from TokenURL, by OAuth's client credentials grant.
	Token        Key
	TokenURL     string
	Client       string
	ClientSecret Key
	Scope        string
}

// Postgres says which database holds the ledger.
type Postgres struct {
	DSN         DSN
	Schema      string // default "": the ledger's own
	Connections int    // default 0: the ledger's own
}

// DSN is a connection string that may hold a password, and where it comes from.
type DSN struct {
	Literal Secret // exported, so that formatting asks it what to show
	From    Key
}

// IsZero tells that none is set.
func (d DSN) IsZero() bool { return d.Literal.value == "" && d.From.IsZero() }

// InArguments tells that it's written in this process's arguments, where others on the machine can read it.
func (d DSN) InArguments() bool { return d.Literal.value != "" && hasPassword(d.Literal.value) }

// Resolve reads it.
func (d DSN) Resolve() (Secret, error) {
	if !d.From.IsZero() {
		return d.From.secret("PostgreSQL's connection string, such as postgres://USER@HOST:5432/DATABASE")
	}
	return d.Literal, nil
}

func (d DSN) String() string {
	if !d.From.IsZero() {
		return d.From.String()
	}
	return d.Literal.String()
}

// Worker is one process among those that share the work.
type Worker struct {
	ID           string // default "": made of the host's name and drawn
	Pool         string // default "": none
	LeaseTime    time.Duration
	Drain        time.Duration
	StuckAfter   time.Duration
	Listen       string
	ListenPublic bool
	LogLevel     string
	LogFormat    string
}

// Flag is a setting given on the command line.
type Flag struct{ Name, Value string } // without dashes; a list's entries are separated by commas

// SettingDoc describes a setting for people.
type SettingDoc struct{ Key, Env, Flag, Default, Doc string }

// SettingDocs describes all settings, in the order of the documentation.
func SettingDocs() []SettingDoc {
	docs := make([]SettingDoc, len(settings))
	for i, s := range settings {
		docs[i] = SettingDoc{s.key, s.env, s.flag, s.normal, s.doc}
	}
	return docs
}

// setting is one setting, wherever it's set: one field, one default, one line of documentation.
type setting struct {
	key  string // its path in swarm.yaml; "": it isn't set there
	env  string
	flag string
	list bool
	// secret says that the environment's value is one: only where it is is kept, and it's never quoted.
	secret bool
	normal string // the default, for people
	doc    string
	read   func(r *reader, s *Settings, v *node)
}

// settings is the one table of them.
var settings = []setting{
	{key: "kafka.brokers", env: "SWARMLOG_BROKERS", flag: "brokers", list: true, doc: "addresses of some brokers, host:port; the others are found through them",
		read: func(r *reader, s *Settings, v *node) { s.Kafka.Brokers = r.brokers(v) }},
	{key: "kafka.client_id", env: "SWARMLOG_CLIENT_ID", normal: "`swarmlog-` and the swarm's name", doc: "what quotas and the brokers' logs know the workers by",
		read: func(r *reader, s *Settings, v *node) { r.text(v, "client_id", &s.Kafka.ClientID) }},
	{key: "kafka.membership", env: "SWARMLOG_MEMBERSHIP", flag: "membership", normal: "`leases`", doc: "who decides which worker has which partition: `leases` (the workers themselves) or `kafka` (a consumer group); one for all workers of a swarm",
		read: func(r *reader, s *Settings, v *node) {
			r.choice(v, "membership", &s.Kafka.Membership, []string{MembershipLeases, MembershipKafka})
		}},
	{key: "kafka.group_protocol", env: "SWARMLOG_GROUP_PROTOCOL", normal: "`classic`", doc: "with membership `kafka`: `classic` (cooperative-sticky), `consumer` (KIP-848, Kafka 4.0 and newer) or `auto`",
		read: func(r *reader, s *Settings, v *node) {
			r.choice(v, "group_protocol", &s.Kafka.GroupProtocol, []string{"classic", "consumer", "auto"})
		}},
	{key: "kafka.session", env: "SWARMLOG_SESSION", normal: "10s", doc: "with membership `kafka` and protocol `classic`: after how long a member that isn't heard of loses its partitions; the brokers bound it, and with `consumer` it's theirs alone. It needn't cover steps",
		read: func(r *reader, s *Settings, v *node) {
			s.Kafka.Session = r.duration(v, "session", time.Second, time.Hour)
		}},
	{key: "kafka.rebalance", env: "SWARMLOG_REBALANCE", normal: "30s", doc: "with membership `kafka`: how long a member may take to give partitions up before it's put out; more than `worker.drain`",
		read: func(r *reader, s *Settings, v *node) {
			s.Kafka.Rebalance = r.duration(v, "rebalance", time.Second, time.Hour)
		}},
	{key: "kafka.tls", env: "SWARMLOG_TLS", normal: "off, unless one of those below is set", doc: "`on`: the brokers are spoken to through TLS, and their certificates verified",
		read: func(r *reader, s *Settings, v *node) { r.tls(v, &s.Kafka.TLS.On) }},
	{key: "kafka.tls.ca", env: "SWARMLOG_TLS_CA", normal: "the system's", doc: "PEM file of the certificates that vouch for the brokers",
		read: func(r *reader, s *Settings, v *node) { r.tlsFile(v, s, "ca", &s.Kafka.TLS.CA) }},
	{key: "kafka.tls.cert", env: "SWARMLOG_TLS_CERT", doc: "PEM file of the workers' own certificate, where the brokers want one",
		read: func(r *reader, s *Settings, v *node) { r.tlsFile(v, s, "cert", &s.Kafka.TLS.Cert) }},
	{key: "kafka.tls.key", env: "SWARMLOG_TLS_KEY", doc: "PEM file of its key",
		read: func(r *reader, s *Settings, v *node) { r.tlsFile(v, s, "key", &s.Kafka.TLS.Key) }},
	{key: "kafka.tls.server_name", env: "SWARMLOG_TLS_SERVER_NAME", normal: "the address that is dialled", doc: "the name that the brokers' certificates must have",
		read: func(r *reader, s *Settings, v *node) {
			r.text(v, "server_name", &s.Kafka.TLS.ServerName)
			s.Kafka.TLS.On = true
		}},
	{key: "kafka.sasl.mechanism", env: "SWARMLOG_SASL_MECHANISM", doc: "`PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`",
		read: func(r *reader, s *Settings, v *node) {
			r.choice(v, "mechanism", &s.Kafka.SASL.Mechanism, []string{Plain, Scram256, Scram512, OAuthBearer})
		}},
	{key: "kafka.sasl.user", env: "SWARMLOG_SASL_USER", doc: "the user of `PLAIN` and `SCRAM`",
		read: func(r *reader, s *Settings, v *node) { r.text(v, "user", &s.Kafka.SASL.User) }},
	{env: "SWARMLOG_SASL_PASSWORD", secret: true, doc: "the user's password",
		read: func(r *reader, s *Settings, v *node) { r.secretIn(v, &s.Kafka.SASL.Password, Key{Env: v.text}) }},
	{key: "kafka.sasl.password_env", doc: "name of another variable that holds it",
		read: func(r *reader, s *Settings, v *node) { r.secretEnv(v, "password_env", &s.Kafka.SASL.Password) }},
	{key: "kafka.sasl.password_file", env: "SWARMLOG_SASL_PASSWORD_FILE", doc: "or file that holds it, alone",
		read: func(r *reader, s *Settings, v *node) { r.secretFile(v, "password_file", &s.Kafka.SASL.Password) }},
	{env: "SWARMLOG_SASL_TOKEN", secret: true, doc: "the token of `OAUTHBEARER`",
		read: func(r *reader, s *Settings, v *node) { r.secretIn(v, &s.Kafka.SASL.Token, Key{Env: v.text}) }},
	{key: "kafka.sasl.token_env", doc: "name of another variable that holds it",
		read: func(r *reader, s *Settings, v *node) { r.secretEnv(v, "token_env", &s.Kafka.SASL.Token) }},
	{key: "kafka.sasl.token_file", env: "SWARMLOG_SASL_TOKEN_FILE", doc: "or file that holds it, read anew for each connection, so that another program may renew it",
		read: func(r *reader, s *Settings, v *node) { r.secretFile(v, "token_file", &s.Kafka.SASL.Token) }},
	{key: "kafka.sasl.token_url", env: "SWARMLOG_SASL_TOKEN_URL", doc: "or where tokens are got by OAuth's client credentials grant",
		read: func(r *reader, s *Settings, v *node) { r.tokenURL(v, &s.Kafka.SASL.TokenURL) }},
	{key: "kafka.sasl.client", env: "SWARMLOG_SASL_CLIENT", doc: "the client's id there",
		read: func(r *reader, s *Settings, v *node) { r.text(v, "client", &s.Kafka.SASL.Client) }},
	{env: "SWARMLOG_SASL_CLIENT_SECRET", secret: true, doc: "and its secret",
		read: func(r *reader, s *Settings, v *node) { r.secretIn(v, &s.Kafka.SASL.ClientSecret, Key{Env: v.text}) }},
	{key: "kafka.sasl.client_secret_env", doc: "or name of another variable that holds it",
		read: func(r *reader, s *Settings, v *node) { r.secretEnv(v, "client_secret_env", &s.Kafka.SASL.ClientSecret) }},
	{key: "kafka.sasl.client_secret_file", env: "SWARMLOG_SASL_CLIENT_SECRET_FILE", doc: "or file that holds it, alone",
		read: func(r *reader, s *Settings, v *node) {
			r.secretFile(v, "client_secret_file", &s.Kafka.SASL.ClientSecret)
		}},
	{key: "kafka.sasl.scope", env: "SWARMLOG_SASL_SCOPE", normal: "none", doc: "the scope that is asked for there",
		read: func(r *reader, s *Settings, v *node) { r.text(v, "scope", &s.Kafka.SASL.Scope) }},
	{key: "postgres.dsn", env: "SWARMLOG_LEDGER", flag: "ledger", secret: true, doc: "PostgreSQL's connection string, `postgres://USER@HOST:5432/DATABASE`; in `swarm.yaml` without a password. Steps' own SQL runs in this database, in the commit; another one isn't part of it",
		read: func(r *reader, s *Settings, v *node) { r.dsn(v, &s.Postgres.DSN) }},
	{key: "postgres.dsn_env", doc: "name of another variable that holds it",
		read: func(r *reader, s *Settings, v *node) { r.secretEnv(v, "dsn_env", &s.Postgres.DSN.From) }},
	{key: "postgres.dsn_file", env: "SWARMLOG_LEDGER_FILE", doc: "or file that holds it, alone",
		read: func(r *reader, s *Settings, v *node) { r.secretFile(v, "dsn_file", &s.Postgres.DSN.From) }},
	{key: "postgres.schema", env: "SWARMLOG_LEDGER_SCHEMA", normal: "`swarmlog`", doc: "schema of the ledger's own tables; one for each swarm",
		read: func(r *reader, s *Settings, v *node) { r.schema(v, &s.Postgres.Schema) }},
	{key: "postgres.connections", env: "SWARMLOG_LEDGER_CONNECTIONS", normal: "10", doc: "connections of one worker at most, 4 at least",
		read: func(r *reader, s *Settings, v *node) {
			s.Postgres.Connections = int(r.number(v, "connections", 4, 1000))
		}},
	{key: "worker.id", env: "SWARMLOG_WORKER", flag: "worker", normal: "the host's name and a drawn end", doc: "unique among running workers; one that stays the same over a restart (a stateful set's pod, say) takes its partitions back at once",
		read: func(r *reader, s *Settings, v *node) { r.workerID(v, &s.Worker.ID) }},
	{key: "worker.pool", env: "SWARMLOG_POOL", flag: "pool", normal: "none", doc: "which of the swarm's `pools` this worker belongs to",
		read: func(r *reader, s *Settings, v *node) { r.text(v, "pool", &s.Worker.Pool) }},
	{key: "worker.lease_time", env: "SWARMLOG_LEASE_TIME", flag: "lease-time", normal: "15s", doc: "after how long a worker that gives no sign is replaced; the same for all workers",
		read: func(r *reader, s *Settings, v *node) {
			s.Worker.LeaseTime = r.duration(v, "lease_time", time.Second, time.Hour)
		}},
	{key: "worker.drain", env: "SWARMLOG_DRAIN", flag: "drain", normal: "10s", doc: "how long running steps may go on after the first signal to end",
		read: func(r *reader, s *Settings, v *node) {
			s.Worker.Drain = r.duration(v, "drain", 10*time.Millisecond, time.Hour)
		}},
	{key: "worker.stuck_after", env: "SWARMLOG_STUCK_AFTER", normal: "2m", doc: "how long a handler may ignore that its time is up until the worker ends with 1, so that others can go on",
		read: func(r *reader, s *Settings, v *node) {
			s.Worker.StuckAfter = r.duration(v, "stuck_after", time.Second, 24*time.Hour)
		}},
	{key: "worker.listen", env: "SWARMLOG_LISTEN", flag: "listen", normal: "`127.0.0.1:8080`, or a free port", doc: "address of the live page, the API, health and metrics; `off`: none",
		read: func(r *reader, s *Settings, v *node) { r.text(v, "listen", &s.Worker.Listen) }},
	{key: "worker.listen_public", env: "SWARMLOG_LISTEN_PUBLIC", flag: "listen-public", normal: "off", doc: "`on`: the address may be one that others reach; only health and metrics are served there then",
		read: func(r *reader, s *Settings, v *node) { r.onOff(v, "listen_public", &s.Worker.ListenPublic) }},
	{key: "worker.log_level", env: "SWARMLOG_LOG_LEVEL", flag: "log-level", normal: "info", doc: "least level of log lines: `debug`, `info`, `warn` or `error`",
		read: func(r *reader, s *Settings, v *node) {
			r.choice(v, "log_level", &s.Worker.LogLevel, []string{"debug", "info", "warn", "error"})
		}},
	{key: "worker.log_format", env: "SWARMLOG_LOG_FORMAT", flag: "log-format", normal: "text", doc: "`text` or `json`",
		read: func(r *reader, s *Settings, v *node) {
			r.choice(v, "log_format", &s.Worker.LogFormat, []string{"text", "json"})
		}},
	{key: "journal", env: "SWARMLOG_JOURNAL", normal: "the swarm's name and `.journal`; with `swarmlog up` off", doc: "topic for events about workers, leases and steps, or `off`",
		read: func(r *reader, s *Settings, v *node) { r.journal(v, &s.Journal) }},
	{key: "accept_risk", env: "SWARMLOG_ACCEPT_RISK", flag: "accept-risk", list: true, normal: "none", doc: "names of what would be refused at the start, as `swarmlog doctor` names it",
		read: func(r *reader, s *Settings, v *node) { s.AcceptRisk = r.texts(v, "accept_risk") }},
}

// LoadSettings reads settings from the environment and flags alone, for commands that have no swarm.yaml.
func LoadSettings(flags ...Flag) (Settings, error) { return parseSettings(os.LookupEnv, flags) }

func parseSettings(env func(string) (string, bool), flags []Flag) (Settings, error) {
	r := &reader{}
	var s Settings
	r.settingsBeside(&s, env, flags)
	r.checkSettings(&s, nil)
	if len(r.problems) > 0 {
		return Settings{}, r.problems
	}
	return s, nil
}

// settingsBeside applies what the environment and then the flags say over what the file says.
func (r *reader) settingsBeside(s *Settings, env func(string) (string, bool), flags []Flag) {
	for _, one := range settings {
		if text, ok := env(one.env); one.env != "" && ok && strings.TrimSpace(text) != "" {
			r.source = fromEnv
			n := one.given("environment variable "+one.env, text)
			if one.secret {
				n.text = one.env
			}
			r.apply(one, s, n)
		}
	}
	for _, f := range flags {
		for _, one := range settings {
			if one.flag == f.Name && strings.TrimSpace(f.Value) != "" {
				r.source = fromFlag
				r.apply(one, s, one.given("--"+one.flag, f.Value))
			}
		}
	}
	r.source = fromFile
}

func (r *reader) apply(one setting, s *Settings, v *node) {
	if r.at == nil {
		r.at = map[string]*node{}
	}
	r.at[one.key] = v
	one.read(r, s, v)
}

// given makes a node of a text that doesn't come from the file.
func (one setting) given(from, text string) *node {
	n := &node{kind: scalar, plain: true, text: strings.TrimSpace(text), from: from}
	if !one.list {
		return n
	}
	n = &node{kind: sequence, from: from}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			n.items = append(n.items, &node{kind: scalar, plain: true, text: part, from: from})
		}
	}
	return n
}

// section reads the part of the file whose settings' keys begin with a prefix.
func (r *reader) section(s *Settings, prefix string, v *node) {
	known := map[string]func(k, v *node){}
	for _, one := range settings {
		rest, ok := strings.CutPrefix(one.key, prefix+".")
		if !ok {
			continue
		}
		if part, _, nested := strings.Cut(rest, "."); nested {
			if known[part] == nil {
				known[part] = func(_, v *node) { r.section(s, prefix+"."+part, v) }
			}
			continue
		}
		known[rest] = func(_, v *node) { r.apply(one, s, v) }
	}
	if prefix == "kafka" { // its tls is a word or a part of its own
		word := known["tls"]
		known["tls"] = func(k, v *node) {
			if v.kind == scalar {
				word(k, v)
				return
			}
			s.Kafka.TLS.On = true
			r.section(s, "kafka.tls", v)
		}
	}
	for name := range refused[prefix] {
		known[name] = func(_, v *node) {
			r.add(v, name+" of "+prefix+" is written here (its text isn't shown)", refused[prefix][name])
		}
	}
	r.fields(v, prefix, known)
}

// refused are keys that would hold secrets.
var refused = map[string]map[string]string{
	"kafka.sasl": {
		"password":      "keep secrets out of this file: write password_env: NAME or password_file: PATH",
		"token":         "keep secrets out of this file: write token_env: NAME or token_file: PATH",
		"client_secret": "keep secrets out of this file: write client_secret_env: NAME or client_secret_file: PATH",
	},
	"postgres": {"password": "keep secrets out of this file: write dsn_env: NAME or dsn_file: PATH, or set PGPASSWORD or PGPASSFILE"},
}
