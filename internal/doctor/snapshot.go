package doctor

import "time"

// Snapshot is what was seen of the servers that a swarm works on, and of the swarm.
type Snapshot struct {
	Cluster  *Cluster  // nil: the cluster wasn't looked at
	Database *Database // nil: the ledger isn't in PostgreSQL
	Swarm    Swarm
	Blind    []Blind // what couldn't be looked at
}

// Cluster is a Kafka or Redpanda cluster.
type Cluster struct {
	Kind      string // Kafka, Redpanda or Embedded
	Version   string
	Bootstrap string // addresses, for commands
	Brokers   []Broker
	Topics    []Topic
	Quotas    []Quota
	Clock     *Clock // of the controller; nil where nobody tells
	Denied    []Denied
	Clients   []string // the client ids of a worker's connections
	User      string   // that a worker logs in as; "": nobody
}

// Kinds of cluster.
const (
	Kafka    = "Apache Kafka"
	Redpanda = "Redpanda"
	Embedded = "embedded"
)

// Broker is one of the cluster's brokers, with its settings by name.
type Broker struct {
	ID     int32
	Config map[string]string
}

// Topic is a topic that the swarm uses.
type Topic struct {
	Name       string
	DeadOf     string // the topic whose dead letters it holds; "": it holds events
	Missing    bool
	Partitions []Partition
	Config     map[string]string // settings as they hold for it; empty where they may not be read
	Newest     time.Time         // the latest time that a record bears; zero: unknown
	Seen       time.Time         // when Newest was looked at, by the clock here
	Slots      int32             // how many slots its keys have; 0: as many as it has partitions
	Sample     []Key             // of the last records of each partition
}

// Partition is who has a partition. Leader is -1 where nobody leads it.
type Partition struct {
	ID       int32
	Leader   int32
	Replicas []int32
	InSync   []int32
}

// Key is the key of a record, and where it was found. A nil Bytes is no key.
type Key struct {
	Partition int32
	Bytes     []byte
	Time      time.Time
}

// Quota is a quota that brokers hold: Entity by kind (user, client-id, client-id-prefix), where nil is the default.
type Quota struct {
	Entity map[string]*string
	Values map[string]float64
}

// Clock is a clock elsewhere, and the one here at the same moment, up to half of Trip.
type Clock struct {
	Name  string
	There time.Time
	Here  time.Time
	Trip  time.Duration
}

// Denied is an operation that a worker needs and may not do.
type Denied struct{ Resource, Name, Operation string }

// Blind is something that couldn't be looked at.
type Blind struct{ What, Why string }

// Database is a PostgreSQL server, as a session of the ledger's role sees it.
type Database struct {
	Host, Name, User string
	Version          string
	Number           int // 170002
	InRecovery       bool

	Fsync, FullPageWrites string
	SynchronousCommit     string
	CommitSource          string // where SynchronousCommit comes from: configuration file, database, user, client, …
	StandbyNames          string
	Standbys              []Standby

	Connections int // that a session of this role may still open
	Clock       Clock
}

// Standby is a server that follows the database. Sync is sync, quorum, potential or async, or "" where the role may
// not see it.
type Standby struct{ Name, Sync string }

// Swarm is what is to run, and what runs.
type Swarm struct {
	File         string // as commands name it
	RecoveryTime time.Duration
	LeaseTime    time.Duration
	Drain        time.Duration
	Members      *Members // of Kafka groups; nil: partitions are owned by leases
	Connections  int      // to the database that a worker may open
	MaxBatch     int      // bytes of the largest batch that a worker sends
	Agents       []Agent
	Workers      []Worker
	Progress     []Progress
}

// Members is how members of Kafka groups behave.
type Members struct{ Session, Rebalance time.Duration }

// Agent is an agent's name and the time that one run of its handler may take.
type Agent struct {
	Name      string
	StepLimit time.Duration
}

// Worker is a worker that runs, and how long its oldest running step has been running.
type Worker struct {
	ID     string
	Oldest time.Duration
}

// Progress is how far an agent got in a partition by the ledger, and what the log holds of it.
type Progress struct {
	Agent     string
	Topic     string
	Partition int32
	Next      int64
	Start     int64
	End       int64
	Committed int64 // what the brokers have as the agent's group's progress; -1: nothing
}
