// Package broker owns the interface to the log: topics, reading from a known
// position and publishing. Package kafka is the only one that speaks the
// protocol; package embedded runs a broker in this process and hands out its
// address. Nothing here decides who reads what: that is the engine's, by lease.
package broker

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"github.com/swarmlog/swarmlog/event"
)

var (
	// ErrNoTopic is wrapped by errors about topics that don't exist.
	ErrNoTopic = errors.New("no such topic")
	// ErrTooLarge says that a record doesn't fit into its topic (max.message.bytes): it never will, trying again is
	// no use.
	ErrTooLarge = errors.New("record is too large for its topic")
	// ErrBehind says that a record wasn't published since one before it, of the same partition, failed.
	ErrBehind = errors.New("not published: an earlier record of the partition failed")
	// ErrDenied says that the cluster doesn't allow this user to do so.
	ErrDenied = errors.New("not allowed by the brokers")
	// ErrInUse says that another process has the broker's folder.
	ErrInUse = errors.New("in use by another process")
	// ErrClosed is what is answered after Close.
	ErrClosed = errors.New("broker connection is closed")
)

// TopicID tells a topic from another one of the same name, created later.
type TopicID [16]byte

func (id TopicID) String() string { return hex.EncodeToString(id[:]) }

// Topic is what the broker says about a topic.
type Topic struct {
	Name       string
	ID         TopicID
	Partitions int32
	MaxBytes   int  // largest record batch that it takes, in bytes
	Compact    bool // it's compacted, and so refuses records without a key
}

// TopicSpec is a topic to create. The replication factor and
// min.insync.replicas follow from the number of brokers unless they are set.
type TopicSpec struct {
	Name       string
	Partitions int32
	Replicas   int16             // 0: the broker's default
	Config     map[string]string // topic configuration, such as retention.ms
	// Commutative says that an aggregate's events may be handled in any order, also at once: nothing that a broker knows,
	// but how keys are made for the topic (package salt).
	Commutative bool
}

// Record is a record at its place.
type Record struct {
	event.Message
	event.Position
	TopicID TopicID
}

// Range is what a partition holds: offsets from Start up to, without, End.
type Range struct{ Start, End int64 }

// Broker is one cluster.
type Broker interface {
	// Topics describes the named topics, in their order. A missing one is an error that wraps ErrNoTopic.
	Topics(ctx context.Context, names ...string) ([]Topic, error)
	// Create makes topics that don't exist; those that do are left as they are.
	Create(ctx context.Context, specs ...TopicSpec) error
	// Offsets is the range of each partition of a topic, by partition.
	Offsets(ctx context.Context, topic string) ([]Range, error)
	// Report writes a group's progress where Kafka tools look for it: next offset by topic and partition.
	// It is never read back as truth.
	Report(ctx context.Context, group string, next map[string]map[int32]int64) error
	// Committed is what a group has committed: next offset by topic and partition. Partitions without a commit are left
	// out. It's compared with the ledger, and never read as truth.
	Committed(ctx context.Context, group string) (map[string]map[int32]int64, error)
	// OffsetsAt is, by partition, the offset of the first record that was appended at or after a time; the end where
	// there's none.
	OffsetsAt(ctx context.Context, topic string, at time.Time) ([]int64, error)
	// Join becomes a member of a Kafka group that consumes topics, for the sake of its assignments alone: nothing is read
	// through it. It returns once the member is under way, and Members' functions are called from then on, one at a time.
	Join(ctx context.Context, group string, topics []string, m Members) (Member, error)
	// Reader opens a reader of its own, for one agent.
	Reader(name string) (Reader, error)
	// Publisher is an idempotent producer with acks=all; all callers share it.
	Publisher() Publisher
	// Close ends everything that was opened.
	Close()
}

// Members are told what a member of a group is assigned. Each function has returned before the next is called, and the
// member's heartbeats go on meanwhile.
type Members struct {
	// Assigned names partitions that are this member's now, beside those that it had, and the group's generation (or
	// the member's epoch, KIP-848).
	Assigned func(ctx context.Context, generation int64, partitions map[string][]int32)
	// Revoked names partitions that others will have once it has returned: give them up first.
	Revoked func(ctx context.Context, partitions map[string][]int32)
	// Lost names partitions that others may have already.
	Lost func(ctx context.Context, partitions map[string][]int32)
}

// Member is a member of a Kafka group.
type Member interface {
	// Report commits progress as the member that it is: next offset by topic and partition.
	Report(ctx context.Context, next map[string]map[int32]int64) error
	// Generation is the group's present generation, or the member's epoch; 0 where it's none at present.
	Generation() int64
	// Close leaves the group, after Revoked for what the member still has.
	Close()
}

// Fetch is what one poll brought of one partition.
type Fetch struct {
	Topic     string
	TopicID   TopicID
	Partition int32
	Records   []Record
	End       int64 // high watermark
	// Err is non-nil where the partition can't be read: the caller decides. ErrOutOfRange, ErrTopicGone or another.
	Err error
}

var (
	// ErrOutOfRange says that the offset asked for isn't in the log (any more).
	ErrOutOfRange = errors.New("offset out of range")
	// ErrTopicGone says that the topic was deleted, or created anew under its name.
	ErrTopicGone = errors.New("topic is gone or was created anew")
)

// Reader reads partitions from given offsets; it knows no group.
// All methods are safe for concurrent use, except that Poll has one caller.
type Reader interface {
	// Add starts reading a partition at an offset; Remove ends it, and no record of it is polled afterwards.
	Add(topic Topic, partition int32, offset int64)
	Remove(topic string, partition int32)
	// Pause holds a partition back without forgetting its place; Resume lets it go on.
	Pause(topic string, partition int32)
	Resume(topic string, partition int32)
	// Poll waits for records, at most until ctx ends, and returns them by partition in offset order.
	Poll(ctx context.Context) ([]Fetch, error)
	Close()
}

// Publisher publishes records in the order in which they are given, per
// partition. Topic, Partition and the message are read of each record.
type Publisher interface {
	// Publish hands a record over and returns; done is called once, from another
	// goroutine, when all in-sync replicas have it or it can't be had. When one
	// record of a partition fails, those behind it that were handed over fail too.
	Publish(record Record, done func(offset int64, err error))
}
