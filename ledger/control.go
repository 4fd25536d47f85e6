package ledger

import (
	"context"
	"errors"
	"time"
)

// ErrMode says that a group's partitions are owned in another way: by leases where a member of a Kafka group asks, or
// the other way round. One group has one kind of membership at a time.
var ErrMode = errors.New("the group's partitions are owned by another kind of membership")

// Carried is a step that its worker may still finish after its partition moved on.
type Carried struct {
	Offset  int64
	Subject string
	Worker  string
	Epoch   int64     // under which the step was begun
	Expires time.Time // by the database's clock; the worker's heartbeat puts it off
}

// Handovers move a lease without waiting for the steps that still run under it.
type Handovers interface {
	// Claim is Acquire for a member of a Kafka group: the group's coordinator has assigned the partition to owner in a
	// generation (of the classic protocol) or member epoch (KIP-848), which is from 1. A generation as high as the
	// lease's or higher takes the lease whoever holds it, or was passed it; a lower one is ErrHeld while the lease is
	// held. A lease that nobody holds takes any generation, since those of a group that was made anew start from 1
	// again. A lease of Acquire that is held is ErrMode, and so is Acquire of a claimed one that is held; Acquire of a
	// free one forgets its generation.
	Claim(ctx context.Context, key Key, topic, owner string, start int64, ttl time.Duration, generation int64) (Lease, error)
	// Pass gives a lease up in order, while steps of it still run: each of those is carried from then on, which is what
	// its commit is fenced by (Step.Carried). Offset and Subject of carried are read; worker and epoch are f's. For ttl
	// only the worker to may acquire the lease, where to isn't ""; after that, anybody. The epoch rises with that. The
	// expiry of what is carried is now + ttl. ErrFenced.
	Pass(ctx context.Context, f Fence, to string, carried []Carried, ttl time.Duration) error
	// Progress is the owner's lease as it stands, with what others still carry of it. Carried rows that have expired are
	// removed first, in the same transaction: their steps can't commit any more, and are the owner's to run. Acquire and
	// Claim do the same. A step whose row has expired and wasn't removed yet commits. ErrFenced.
	Progress(ctx context.Context, f Fence) (Lease, error)
	// PutDown ends carrying without a commit: the step failed or was given up. f is the fence that it was begun under. A
	// row that isn't there is passed over.
	PutDown(ctx context.Context, f Fence, offsets ...int64) error
}

// Want is the worker that a partition is planned for.
type Want struct {
	Key
	Worker string
}

// Plans are what the planner wants: advice, and no fence. Whoever plans holds a lease of its own, under which it writes.
type Plans interface {
	// SetPlan replaces the plan. ErrFenced.
	SetPlan(ctx context.Context, f Fence, wants []Want) error
	// Plan is the plan; empty where there's none.
	Plan(ctx context.Context) ([]Want, error)
}

// Control is what people want of an agent.
type Control struct {
	Group  string    `json:"agent"`
	Paused bool      `json:"paused"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"` // since when, by the database's clock
}

// Controls are people's hands on agents. Workers look at them with each heartbeat.
type Controls interface {
	// SetControl pauses an agent or lets it go on. At isn't read: it's now where Paused changes, and else stays.
	SetControl(ctx context.Context, c Control) error
	// Controls lists what was ever set.
	Controls(ctx context.Context) ([]Control, error)
	// Rewind moves the progress of a group's partitions to offsets, back or forward; their finished ranges, what is
	// carried of them, and what waits in their backlog at or above the offset go. While any of the group's leases is held
	// it's ErrHeld; a partition that was never taken is an error.
	//
	// What the group applied stays seen, so that a copy is a duplicate, unless again is set: then what it applied at or
	// after that log time on those partitions is forgotten, with the sequences of its histories, and will be applied
	// again; a history begins anew with the first of its events that comes. It returns how many seen ids were forgotten.
	//
	// Counters go on: a record that is delivered again is counted again. A row that leaves the backlog so was counted as
	// waiting and isn't any more; as a dead one it stays counted, since it ended so, once. So the counters still add up
	// to the deliveries that have ended or wait, and Waiting to the rows that aren't dead. Rows in the outbox stay.
	Rewind(ctx context.Context, group string, to map[Key]int64, again bool, since time.Time) (int64, error)
	// Route is how many slots the keys of a topic have: the count of partitions that was given first for the topic id.
	// Slots lead to partitions by slot mod that count, however the topic has grown since.
	Route(ctx context.Context, topicID [16]byte, topic string, partitions int32) (int32, error)
}

// ParkedReason begins the reason of a backlog row that died at the head of its aggregate, and of those behind it.
const ParkedReason = "parked behind"

// GoOnReason begins what Parked says of an aggregate that a new owner lets go on: a dead record of it was released, or
// what it was parked behind is gone from the backlog, and its first row waits for nothing any more. The first row's own
// reason follows. Whoever goes through its rows stops at one that is dead and not released.
const GoOnReason = "goes on"

// Ask is an aggregate about which a person has decided: its partition's owner looks at its backlog anew.
type Ask struct {
	Fence   Fence // of the present owner
	Subject string
}

// WaitQuery chooses backlog rows. Zero fields choose all.
type WaitQuery struct {
	Group    string
	Topic    string
	Subject  string
	DeadOnly bool      // heads of parked aggregates, and dead records that were put back
	After    WaitPlace // where the last listing ended; zero: from the beginning
	Limit    int       // 0: 100
}

// WaitPlace is where a backlog row stands; rows are listed in this order.
type WaitPlace struct {
	Group     string
	TopicID   [16]byte
	Partition int32
	Offset    int64
}

// WaitRow is a backlog row, for people.
type WaitRow struct {
	Key   Key
	Topic string
	Wait
	Arrived time.Time // in the backlog, by the database's clock; zero where that isn't known
	Behind  int64     // where it's the dead head of its aggregate, released or not: how many rows wait behind it
}

// Redrives let go on what a dead record holds up. What they decide is done by the lease's owner, present or next, in
// the lane of the aggregate: see Asks.
type Redrives interface {
	// Waits lists backlog rows.
	Waits(ctx context.Context, q WaitQuery) ([]WaitRow, error)
	// Redrive releases the dead head of a parked aggregate: it is to be handled again, and what waits behind it after
	// it. It counts as dead until then; where it dies again it stays so, parks again and isn't released any more. False
	// where the aggregate isn't parked behind a dead record, or that one is released already, or isn't the one at the
	// offset, which was looked at and decided about; -1: whichever it is.
	Redrive(ctx context.Context, key Key, subject string, offset int64) (bool, error)
	// Discard drops the dead head of a parked aggregate, which stays counted as dead and takes its place in its history;
	// what waits behind it goes on. False where there's none, or it is released, or isn't the one at the offset; -1:
	// whichever it is.
	Discard(ctx context.Context, key Key, subject string, offset int64) (bool, error)
	// Requeue puts a dead record into the backlog that parks nothing, released: it is handled again, alone, also where
	// its history has gone on without it. It counts as dead until then. False where the backlog has a row at its offset
	// already, or the record isn't dead (see Dead): so a letter that was handled since isn't handled once more, however
	// long ago that was and whatever its id is.
	Requeue(ctx context.Context, key Key, w Wait) (bool, error)
	// Dead tells, of records of a partition, which were given up and still wait for a person: neither handled since (a
	// step from the backlog has ended otherwise than dead or waiting) nor discarded, dismissed or rewound over.
	Dead(ctx context.Context, key Key, offsets []int64) ([]bool, error)
	// Dismiss says that nobody needs to act on dead records any more that have no row in the backlog; they stay counted as
	// dead. It returns how many of them were dead until now.
	Dismiss(ctx context.Context, key Key, offsets ...int64) (int64, error)
	// Asks lists what was decided about aggregates of the leases that a worker holds, and not answered yet.
	Asks(ctx context.Context, worker string) ([]Ask, error)
	// Answer takes asks off the list. Do so before the aggregate's rows are read: then a decision that comes meanwhile is
	// asked anew, and should the owner end before the rows are handled, Parked tells the next one (GoOnReason). ErrFenced.
	Answer(ctx context.Context, f Fence, subjects ...string) error
}
