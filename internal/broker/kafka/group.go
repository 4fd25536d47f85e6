package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/swarmlog/swarmlog/internal/broker"
)

// leaveWait bounds how long leaving a group may take once its partitions are given up.
const leaveWait = 5 * time.Second

// Committed is what a group has committed, as Kafka's tools show it.
func (b *Broker) Committed(ctx context.Context, group string) (map[string]map[int32]int64, error) {
	answer, err := b.admin.FetchOffsets(ctx, group)
	if err == nil {
		err = answer.Error()
	}
	if errors.Is(err, kerr.GroupIDNotFound) {
		return map[string]map[int32]int64{}, nil // nobody has committed to it
	}
	if err != nil {
		return nil, fmt.Errorf("read what group %s has committed: %w", group, explain(err))
	}
	next := map[string]map[int32]int64{}
	answer.Each(func(o kadm.OffsetResponse) {
		if o.At < 0 {
			return
		}
		if next[o.Topic] == nil {
			next[o.Topic] = map[int32]int64{}
		}
		next[o.Topic][o.Partition] = o.At
	})
	return next, nil
}

// OffsetsAt is the offset of the first record of each partition that was appended at or after a time, and the
// partition's end where there's none.
func (b *Broker) OffsetsAt(ctx context.Context, topic string, at time.Time) ([]int64, error) {
	listed, err := b.admin.ListOffsetsAfterMilli(ctx, at.UnixMilli(), topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list offsets of topic %q at %s: %w", topic, at.UTC().Format(time.RFC3339Nano), explain(err))
	}
	partitions := listed[topic]
	if len(partitions) == 0 {
		return nil, fmt.Errorf("list offsets of topic %q: %w", topic, broker.ErrNoTopic)
	}
	offsets := make([]int64, len(partitions))
	for p := range offsets {
		o, ok := listed.Lookup(topic, int32(p))
		if !ok {
			return nil, fmt.Errorf("list offsets of topic %q: the broker left out partition %d", topic, p)
		}
		offsets[p] = o.Offset
	}
	return offsets, nil
}

// Join becomes a member of a group. It fails where one of the topics doesn't exist, or where Options.Group asks for a
// protocol that the cluster doesn't speak.
func (b *Broker) Join(ctx context.Context, group string, topics []string, m broker.Members) (broker.Member, error) {
	fail := func(err error) (broker.Member, error) { return nil, fmt.Errorf("join group %s: %w", group, err) }
	if len(topics) == 0 {
		return fail(errors.New("no topics are given"))
	}
	if _, err := b.Topics(ctx, topics...); err != nil {
		return fail(err)
	}
	serverSide, err := b.serverSide(ctx)
	if err != nil {
		return fail(err)
	}
	me := &member{group: group, told: m, owned: map[string]map[int32]struct{}{}, left: make(chan struct{})}
	me.ctx, me.cancel = context.WithCancel(context.WithoutCancel(ctx))

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		me.cancel()
		return fail(broker.ErrClosed)
	}
	me.turn.Lock() // no function is called before client is set
	defer me.turn.Unlock()
	me.client, err = kgo.NewClient(append(b.opts.member(group, topics, serverSide),
		kgo.OnPartitionsAssigned(me.assigned),
		kgo.OnPartitionsRevoked(me.revoked),
		kgo.OnPartitionsLost(me.lost),
	)...)
	if err != nil {
		me.cancel()
		return fail(err)
	}
	me.patience = b.opts.Group.Rebalance
	me.forget = func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.members, me)
	}
	b.members[me] = struct{}{}
	return me, nil
}

// serverSide tells whether the group's assignments are to be the broker's (KIP-848).
func (b *Broker) serverSide(ctx context.Context) (bool, error) {
	if b.opts.Group.Protocol == GroupClassic {
		return false, nil
	}
	versions, err := b.admin.ApiVersions(ctx)
	if err != nil {
		return false, fmt.Errorf("ask the brokers which protocols they speak: %w", explain(err))
	}
	offered := len(versions) > 0
	for _, v := range versions {
		// Version 1, of Kafka 4.0, is the first that kgo speaks.
		most, ok := v.KeyMaxVersion(kmsg.ConsumerGroupHeartbeat.Int16())
		offered = offered && v.Err == nil && ok && most >= 1
	}
	if !offered && b.opts.Group.Protocol == GroupConsumer {
		return false, errors.New("not every broker offers the consumer group protocol of KIP-848 (Kafka 4.0 and later): set the group protocol to classic")
	}
	return offered, nil
}

// member is a member of a group, by a client of its own. Nothing is fetched through it: whatever it's assigned, its
// client is told to read no partition.
//
// Members' functions are called under turn, by kgo's group management or by Close:
//
//  1. kgo calls assigned, revoked and lost one at a time, from a goroutine beside the one that sends heartbeats, so
//     these go on while a function works. (The last revoked, of a client that leaves, comes after the last heartbeat.)
//  2. So Close calls Revoked itself, for all that the member has, before kgo hears that it leaves. What kgo tells
//     from then on isn't passed on.
type member struct {
	client   *kgo.Client
	group    string
	told     broker.Members
	patience time.Duration // how long Close waits for functions to return
	forget   func()
	ctx      context.Context // what Members' functions get; it ends when Close has done with them
	cancel   context.CancelFunc

	turn    sync.Mutex // held while a function is called; client may be called under it
	owned   map[string]map[int32]struct{}
	leaving bool

	state   sync.Mutex // a leaf
	outside bool       // lost, or left, and nothing assigned since

	closing sync.Once
	left    chan struct{}
}

func (me *member) assigned(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	me.turn.Lock()
	defer me.turn.Unlock()
	if me.leaving {
		return
	}
	for topic, ps := range partitions {
		if me.owned[topic] == nil {
			me.owned[topic] = map[int32]struct{}{}
		}
		for _, p := range ps {
			me.owned[topic][p] = struct{}{}
		}
	}
	me.setOutside(false)
	me.told.Assigned(me.ctx, me.Generation(), partitions)
}

func (me *member) revoked(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	me.take(partitions, me.told.Revoked)
}

func (me *member) lost(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
	me.setOutside(true)
	me.take(partitions, me.told.Lost)
}

// take tells of partitions that the member has no more.
func (me *member) take(partitions map[string][]int32, tell func(context.Context, map[string][]int32)) {
	me.turn.Lock()
	defer me.turn.Unlock()
	if me.leaving {
		return
	}
	gone := map[string][]int32{}
	for topic, ps := range partitions {
		for _, p := range ps {
			if _, ok := me.owned[topic][p]; ok {
				delete(me.owned[topic], p)
				gone[topic] = append(gone[topic], p)
			}
		}
	}
	if len(gone) > 0 {
		tell(me.ctx, gone)
	}
}

func (me *member) setOutside(outside bool) {
	me.state.Lock()
	defer me.state.Unlock()
	me.outside = outside
}

// Generation is the group's generation, or this member's epoch.
func (me *member) Generation() int64 {
	me.state.Lock()
	defer me.state.Unlock()
	if me.outside {
		return 0
	}
	_, generation := me.client.GroupMetadata()
	return max(int64(generation), 0)
}

// Report commits as the member that it is. While the group settles between join and assignment it waits, at most until
// ctx ends.
func (me *member) Report(ctx context.Context, next map[string]map[int32]int64) error {
	offsets := make(map[string]map[int32]kgo.EpochOffset, len(next))
	for topic, partitions := range next {
		offsets[topic] = make(map[int32]kgo.EpochOffset, len(partitions))
		for p, offset := range partitions {
			offsets[topic][p] = kgo.EpochOffset{Epoch: -1, Offset: offset}
		}
	}
	var failed error
	me.client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		failed = err
		if err != nil {
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				if err := kerr.ErrorForCode(p.ErrorCode); err != nil && failed == nil {
					failed = fmt.Errorf("%s/%d: %w", t.Topic, p.Partition, err)
				}
			}
		}
	})
	if failed != nil {
		return fmt.Errorf("report progress of group %s as its member: %w", me.group, explain(failed))
	}
	return nil
}

// Close gives up what the member has, and leaves. It's idempotent, waits no longer than a rebalance may take for
// Members' functions to return before it ends their context, and must not be called by one of them.
func (me *member) Close() {
	me.closing.Do(func() {
		defer close(me.left)
		impatient := time.AfterFunc(me.patience, me.cancel)
		me.giveUp()
		impatient.Stop()
		me.cancel()
		me.setOutside(true)
		ctx, cancel := context.WithTimeout(context.Background(), leaveWait)
		defer cancel()
		// Where the coordinator can't be told, the group finds out when the session expires.
		_ = me.client.LeaveGroupContext(ctx)
		me.client.Close()
		me.forget()
	})
	<-me.left
}

func (me *member) giveUp() {
	me.turn.Lock()
	defer me.turn.Unlock()
	me.leaving = true
	rest := map[string][]int32{}
	for topic, ps := range me.owned {
		if len(ps) > 0 {
			rest[topic] = slices.Sorted(maps.Keys(ps))
		}
	}
	if len(rest) > 0 {
		me.told.Revoked(me.ctx, rest)
	}
}
