// Package ledger owns the interface to the place where effects commit: leases,
// progress, what has been seen, the outbox, the backlog and recorded model
// answers, all in one database, so that one transaction covers a step.
//
// A user's handler needs Tx alone. The rest is what the engine asks of an
// implementation; the conformance suite in internal/ledger/ledgertest says what
// each must do, and every implementation passes it.
//
// What survives a crash: everything whose Commit returned nil. A Commit that
// returned ErrUnknown is settled by Resolve, never by assuming.
package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/swarmlog/swarmlog/event"
)

var (
	// ErrNoRows is what Row.Scan answers where the query found nothing.
	ErrNoRows = errors.New("no rows")
	// ErrHeld says that another worker holds the lease and its time isn't over.
	ErrHeld = errors.New("lease is held by another worker")
	// ErrFenced says that the lease's epoch moved on: someone else owns the partition now.
	ErrFenced = errors.New("fenced: the lease has another owner or epoch")
	// ErrUnknown says that the connection was lost, or the disk failed, while a COMMIT was under way:
	// only Resolve tells whether it happened.
	ErrUnknown = errors.New("outcome of the commit is unknown")
	// ErrConflict says that an event of the same source and id, but another digest, was applied before.
	ErrConflict = errors.New("an event with this id and other content was applied before")
	// ErrElsewhere says that another worker may be asking a model the same at this moment: ask again in a while, then
	// its answer serves both. It comes with the class fault.Unavailable.
	ErrElsewhere = errors.New("another worker is asking the same")
	// ErrInUse says that another process has the database or folder.
	ErrInUse = errors.New("in use by another process")
)

// Key names a lease: one partition of one topic, for one group (an agent).
type Key struct {
	Group     string
	TopicID   [16]byte
	Partition int32
}

// Fence is a lease as its owner knows it; a write under it is refused once the owner or the epoch differ.
type Fence struct {
	Key
	Owner string
	Epoch int64
}

// Lease is who owns a partition for a group and how far it got.
type Lease struct {
	Fence
	Topic    string    // the topic's name, for people
	Next     int64     // the lowest offset that isn't finished
	Finished Ranges    // what is finished above Next
	Seq      int64     // the last outbox number given out
	Expires  time.Time // by the database's clock
	Held     bool      // has an owner whose time isn't over, by the same clock
	Counters Counters
	LastTime time.Time // append time and CRC of the last finished record
	LastCRC  uint32

	Generation int64     // of the Kafka group that claimed it last; 0: it was acquired
	Carried    []Carried // what others may still finish of it; Acquire, Claim and Progress tell, lists don't
}

// Outcome is how a record ended. Each delivered record is counted under exactly one.
type Outcome uint8

const (
	Applied   Outcome = iota + 1
	Duplicate         // applied before, with the same digest
	Refused           // a command that was refused, with a reason
	Skipped           // passed over on purpose, with a reason
	Ignored           // of a type that the agent doesn't handle
	Dead              // dead-lettered
	Waiting           // in the backlog; counted under another outcome once it leaves
	Misrouted         // found where its key doesn't lead: passed over here and forwarded to where it belongs
)

var outcomeNames = [...]string{"", "applied", "duplicate", "refused", "skipped", "ignored", "dead", "waiting", "misrouted"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "unknown"
}

// Counters counts records by outcome. Waiting falls again when a record leaves the backlog.
type Counters struct {
	Applied   int64 `json:"applied"`
	Duplicate int64 `json:"duplicate"`
	Refused   int64 `json:"refused"`
	Skipped   int64 `json:"skipped"`
	Ignored   int64 `json:"ignored"`
	Dead      int64 `json:"dead"`
	Waiting   int64 `json:"waiting"`
	Misrouted int64 `json:"misrouted"`
}

// Of points to the counter of an outcome, or is nil for an unknown one.
func (c *Counters) Of(o Outcome) *int64 {
	switch o {
	case Applied:
		return &c.Applied
	case Duplicate:
		return &c.Duplicate
	case Refused:
		return &c.Refused
	case Skipped:
		return &c.Skipped
	case Ignored:
		return &c.Ignored
	case Dead:
		return &c.Dead
	case Waiting:
		return &c.Waiting
	case Misrouted:
		return &c.Misrouted
	}
	return nil
}

// Add adds other's counts to c.
func (c *Counters) Add(other Counters) {
	for o := Applied; o <= Misrouted; o++ {
		*c.Of(o) += *other.Of(o)
	}
}

// Delivered is the number of records that the counts account for.
func (c Counters) Delivered() int64 {
	return c.Applied + c.Duplicate + c.Refused + c.Skipped + c.Ignored + c.Dead + c.Waiting + c.Misrouted
}

// Identity is what tells an event from another.
type Identity struct {
	Source  string
	ID      string
	Subject string
	Digest  [16]byte // of type, source, id, subject and canonical data; event.Event.Digest makes it
	// Sequence, where positive, is the event's place in its aggregate's history: copies are told by it, and
	// Seen isn't asked. It counts from 1 per source and subject. Give it with every outcome: an event that is ignored,
	// skipped, refused or dead (but not parked) takes its place in the history too, and leaves no gap. One that is
	// misrouted doesn't: it will where it's forwarded to.
	Sequence int64
	// Positional ids have no copies: nothing is kept in seen for them.
	Positional bool
}

// Outgoing is an event to publish, waiting in the outbox.
type Outgoing struct {
	Seq       int64  // given by Commit, per lease, without gaps
	Topic     string // target
	Partition int32  // -1: by key
	Message   event.Message
}

// GapReason begins the reason of a backlog row that waits for an earlier event of its sequence.
const GapReason = "sequence gap"

// Wait is a record in the backlog, or to be put there.
type Wait struct {
	Subject  string
	Reason   string // for people; begins with GapReason where it waits for an earlier event
	Offset   int64
	Message  event.Message
	Dead     bool // the record that died, at the head of its parked aggregate; it's counted as dead, not as waiting
	Released bool // a dead record that is to be handled again
	Sequence int64
}

// Step is one agent's handling of one record, ready to commit.
type Step struct {
	Fence Fence
	// The step finishes the offsets From to Offset: its record, and the gap that compaction or transaction
	// markers left before it. So the watermark follows delivered offsets.
	From, Offset int64
	LogTime      time.Time // append time of the record
	CRC          uint32
	// FromBacklog says that the record comes from the backlog row at Offset: the row goes, no offset is finished.
	FromBacklog bool
	// Carried says that the partition has moved on since the step was begun, and left the step to its worker: it's
	// fenced by its carried row (Fence's epoch and owner, and Offset), which goes, and not by the lease's owner. All
	// else is as ever: progress, counters and outbox numbers are those of the lease as it stands.
	Carried bool

	Event   Identity
	Outcome Outcome // what was decided: Applied, Refused, Skipped, Ignored, Misrouted, Dead or Waiting; Duplicate where known already

	Effects []func(context.Context, Tx) error // the user's SQL, in order
	Emits   []Outgoing                        // to the outbox
	// Wait is the record's row in the backlog: with Outcome Waiting; with Dead where its aggregate is parked, then
	// with Wait.Dead; and with any outcome of an event that has a Sequence, for the gap that it may turn out to follow.
	Wait *Wait
}

// Result is what became of a step in a Commit.
type Result struct {
	Outcome  Outcome // Applied may turn out to be Duplicate, or Waiting for a sequence gap
	FirstSeq int64   // outbox number of the first of Emits
	// Err is nil where the step committed. ErrFenced: its partition has another owner; drop it. ErrConflict (the
	// text names both digests): dead-letter it. Else its effects failed and nothing of it stayed; the class
	// (package fault) says what to do.
	Err error
}

// Published says that the outbox rows From to To of a lease were acknowledged and can go.
type Published struct {
	Fence    Fence
	From, To int64
}

// Batch is what one transaction commits. Steps of one aggregate don't share a batch, but for records that only go to the
// backlog: it orders its rows itself.
type Batch struct {
	Steps     []*Step
	Published []Published
}

// Worker is one running process, as the others see it.
type Worker struct {
	ID       string    `json:"id"`
	Pool     string    `json:"pool"`
	Started  time.Time `json:"started"`
	Beat     time.Time `json:"beat"`   // last heartbeat, by the database's clock
	Steps    int       `json:"steps"`  // handlers that it may run at once, all agents together; negative: it is ending and takes nothing more
	Memory   int64     `json:"memory"` // bytes that it has for them
	InFlight int       `json:"in_flight"`
	Oldest   time.Time `json:"oldest_step"` // start of the oldest running step; zero: none
}

// CallTime is how long a call that was begun may be in the air, as others take it: after that it's in doubt, also
// where the lease that it was begun under is held still.
const CallTime = 10 * time.Minute

// Call names a call to a model made by an event's step.
type Call struct {
	Fence   Fence
	Offset  int64  // of the event's record: a carried step may go on calling
	Source  string // of the event
	EventID string
	Name    string   // the given name, else address and occurrence; never a position
	Address [32]byte // of the request: package inference makes it
	Reuse   bool     // answer from, and into, the cache by address
	Key     string   // idempotency key, the same on every attempt
}

// Answer is a complete model answer.
type Answer struct {
	Model     string // the resolved model, as the provider reports it
	Response  []byte
	TokensIn  int64
	TokensOut int64
	At        time.Time
}

// CallState is what is known of a call.
type CallState uint8

const (
	CallNew      CallState = iota // nothing: it was begun now and may be sent
	CallRecorded                  // this event's step got an answer before
	CallReused                    // the address has a reusable answer; it is now recorded for this step too
	CallInDoubt                   // begun by an attempt that never ended: it may be sent again, with the same key, and is counted
)

// InferenceTotals counts model calls.
type InferenceTotals struct {
	Calls   int64 `json:"calls"`    // begun; of those a step may end before its request was sent, while it waits for its turn
	Reused  int64 `json:"reused"`   // answered from a record or from the cache
	InDoubt int64 `json:"in_doubt"` // sent again since an earlier attempt's end is unknown
}

// Totals is the state of the whole ledger, for people and for knowing when all is done.
type Totals struct {
	Leases    []Lease
	Workers   []Worker
	Outbox    int64 // rows not yet published and deleted
	Waiting   int64 // rows in the backlog, the dead heads of parked aggregates included
	Parked    int64 // dead heads: aggregates that wait for a person
	Inference InferenceTotals
}

// Ledger is where effects commit. All methods are safe for concurrent use.
// Errors without a class are transient: nothing happened, and the call may be made again.
type Ledger interface {
	Handovers
	Plans
	Controls
	Redrives

	// Beat writes a worker's heartbeat and extends all its leases, and what it carries, to now + ttl, by the database's
	// clock; it returns what the worker still holds.
	Beat(ctx context.Context, w Worker, ttl time.Duration) ([]Fence, error)
	// Retire says that a worker has ended: it's no longer among the workers, so that the others take its share at once.
	// What it carried is put down.
	Retire(ctx context.Context, worker string) error
	// Workers lists those whose heartbeat isn't older than ttl.
	Workers(ctx context.Context, ttl time.Duration) ([]Worker, error)
	// Acquire takes the lease if it's free, expired or owner's own; the epoch rises each time. A lease that
	// doesn't exist yet starts at offset start. Held by another, or passed to another (see Pass): ErrHeld.
	Acquire(ctx context.Context, key Key, topic, owner string, start int64, ttl time.Duration) (Lease, error)
	// Release gives leases back; one that has another owner or epoch is passed over.
	Release(ctx context.Context, fences ...Fence) error
	// Leases lists a group's leases; all groups' where group is "".
	Leases(ctx context.Context, group string) ([]Lease, error)

	// Seen tells for each identity whether group has applied it: nil, or the digest that it was applied with.
	Seen(ctx context.Context, group string, ids []Identity) ([]*[16]byte, error)
	// Commit commits the batch in one transaction and returns a result for each step, in order. A step that
	// fails is left out as if it had never been tried; the others commit. An error means that nothing was
	// committed, except ErrUnknown, which must be settled by Resolve. The context bounds waiting for the
	// transaction to begin, not the commit itself.
	Commit(ctx context.Context, b *Batch) ([]Result, error)
	// Resolve settles a batch whose Commit returned ErrUnknown, by reading progress back under the leases'
	// locks: its results, or committed == false where nothing of it stayed (it may then be committed again).
	Resolve(ctx context.Context, b *Batch) (results []Result, committed bool, err error)
	// Skip moves a lease's progress up to offset without handling what lies between: for records that are no
	// longer in the log. It returns how many offsets that weren't finished were passed over. What is carried of them
	// is put down.
	Skip(ctx context.Context, f Fence, offset int64) (int64, error)

	// Outbox reads rows of a lease with seq > after, in order, at most limit.
	Outbox(ctx context.Context, f Fence, after int64, limit int) ([]Outgoing, error)
	// Parked lists the subjects of a lease that have rows in the backlog, with the reason of the first; it begins with
	// GoOnReason where the aggregate may go on at once.
	Parked(ctx context.Context, f Fence) (map[string]string, error)
	// Backlog reads rows of one subject in the order in which they are to be handled: by sequence where they
	// have one, else by offset.
	Backlog(ctx context.Context, f Fence, subject string, limit int) ([]Wait, error)

	// Recall looks a call up and, where there's no answer, marks it as begun under the fence, in one
	// transaction: the caller then sends it, and ends with Settle or Abandon. The fence of a carried step stands while
	// its carried row does, for the call's Offset.
	//
	// A call of this event and name that is pending is in doubt. With Reuse, so is one of another event to the same
	// address, and this call takes its place, but only where nobody can have it in the air any more: it was begun by
	// the same owner, who keeps calls to one address apart and so knows that it has ended; or under a lease that was
	// released, has expired or is at another epoch by now, and its step isn't carried; or longer than CallTime ago. Else
	// it is ErrElsewhere, and
	// nothing is marked or counted. An owner must therefore never Recall a call with Reuse while another one of its own
	// to the same address is in the air.
	Recall(ctx context.Context, c Call) (Answer, CallState, error)
	// Settle records a complete answer for the call.
	Settle(ctx context.Context, c Call, a Answer) error
	// Abandon says that the call ended without an answer, known for certain.
	Abandon(ctx context.Context, c Call) error

	// Setup runs schema statements of an agent, each time it starts, in a transaction.
	Setup(ctx context.Context, f func(context.Context, Tx) error) error
	// Read runs f in a read-only transaction that sees what is committed and holds nobody up.
	Read(ctx context.Context, f func(context.Context, Tx) error) error
	// Totals is the state of the whole ledger.
	Totals(ctx context.Context) (Totals, error)
	// Prune forgets what is older than the horizons and returns how many rows went. Seen ids go by log time:
	// those seen before their own lease's LastTime minus seen. Recorded calls go by age, pending ones and those of
	// events that are in the backlog excepted.
	Prune(ctx context.Context, seen, recorded time.Duration) (int64, error)
	Close() error
}
