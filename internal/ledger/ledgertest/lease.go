package ledgertest

import (
	"errors"
	"time"

	"github.com/swarmlog/swarmlog/ledger"
)

var leaseTests = []test{
	{"StartsWhereItIsToldAndKeepsItsProgress", func(k *kit) {
		l := k.acquire(key(1, 7), worker, 42)
		if l.Next != 42 || l.Epoch != 1 || l.Owner != worker || !l.Held || l.Topic != topic || l.Seq != 0 {
			k.Fatalf("new lease is %+v", l)
		}
		s := k.step(42)
		s.Fence = l.Fence
		k.want(k.commit(s)[0], ledger.Applied, nil)
		again := k.acquire(key(1, 7), worker, 0)
		if again.Next != 43 || again.Epoch != 2 || again.Counters.Applied != 1 {
			k.Fatalf("lease taken again is %+v", again)
		}
		if !again.LastTime.Equal(logTime(42)) || again.LastCRC != 42 {
			k.Errorf("last record is %v with CRC %d, want that of offset 42", again.LastTime, again.LastCRC)
		}
	}},
	{"AnotherOwnerWaitsForItsEnd", func(k *kit) {
		if _, err := k.l.Acquire(k.ctx, k.fence.Key, topic, "w2", 0, ttl); !errors.Is(err, ledger.ErrHeld) {
			k.Fatalf("acquiring a held lease: %v, want ErrHeld", err)
		}
		_, err := k.l.Acquire(k.ctx, k.fence.Key, topic, worker, 0, 50*time.Millisecond)
		k.must(err)
		k.until("the lease to expire", func() bool {
			l, err := k.l.Acquire(k.ctx, k.fence.Key, topic, "w2", 0, ttl)
			return err == nil && l.Owner == "w2" && l.Epoch == 3
		})
	}},
	{"ExpiredOwnerGoesOnUntilItIsTaken", func(k *kit) {
		l, err := k.l.Acquire(k.ctx, key(1, 1), topic, worker, 0, time.Millisecond)
		k.must(err)
		k.until("the lease to expire", func() bool { return !k.lease(l.Key).Held })
		s := k.step(0)
		s.Fence = l.Fence
		k.want(k.commit(s)[0], ledger.Applied, nil)
		held, err := k.l.Beat(k.ctx, ledger.Worker{ID: worker}, ttl)
		k.must(err)
		if len(held) != 2 || !k.lease(l.Key).Held {
			k.Errorf("a beat left the worker %v", held)
		}
	}},
	{"ReleasedIsFreeAndFenced", func(k *kit) {
		old := k.acquire(k.fence.Key, worker, 0).Fence
		k.must(k.l.Release(k.ctx, k.fence)) // an older epoch: passed over
		if l := k.lease(k.fence.Key); !l.Held {
			k.Fatal("a release with an older epoch freed the lease")
		}
		k.must(k.l.Release(k.ctx, old))
		s := k.step(0)
		s.Fence = old
		k.want(k.commit(s)[0], 0, ledger.ErrFenced)
		if l := k.acquire(k.fence.Key, "w2", 0); l.Epoch != 3 {
			k.Errorf("epoch is %d, want 3", l.Epoch)
		}
	}},
	{"BeatExtendsAndTellsWhatIsHeld", func(k *kit) {
		other := k.acquire(key(1, 1), "w2", 0)
		started := time.UnixMilli(1_700_000_000_123)
		held, err := k.l.Beat(k.ctx, ledger.Worker{ID: worker, Pool: "big", Started: started, InFlight: 3, Oldest: started}, time.Hour)
		k.must(err)
		if len(held) != 1 || held[0] != k.fence {
			k.Errorf("beat returned %v, want %v", held, k.fence)
		}
		if l := k.lease(k.fence.Key); time.Until(l.Expires) < 50*time.Minute {
			k.Errorf("lease expires %v, want it extended by an hour", l.Expires)
		}
		if l := k.lease(other.Key); !l.Expires.Equal(other.Expires) {
			k.Error("a beat extended another worker's lease")
		}
		ws, err := k.l.Workers(k.ctx, time.Hour)
		k.must(err)
		if len(ws) != 1 || ws[0].ID != worker || ws[0].Pool != "big" || !ws[0].Started.Equal(started) ||
			ws[0].InFlight != 3 || !ws[0].Oldest.Equal(started) || time.Since(ws[0].Beat) > time.Minute {
			k.Errorf("workers are %+v", ws)
		}
		k.until("the worker to be quiet", func() bool {
			ws, err := k.l.Workers(k.ctx, time.Millisecond)
			k.must(err)
			return len(ws) == 0
		})
		k.must(k.l.Retire(k.ctx, worker))
		k.must(k.l.Retire(k.ctx, "nobody"))
		if ws, err = k.l.Workers(k.ctx, time.Hour); err != nil || len(ws) != 0 {
			k.Errorf("workers after one has retired: %+v, %v", ws, err)
		}
	}},
	{"TopicMadeAnewIsAnotherTopic", func(k *kit) { // K4
		k.want(k.commit(k.step(0), k.step(1))[1], ledger.Applied, nil)
		anew := k.acquire(key(2, 0), worker, 0)
		if anew.Next != 0 || anew.Counters != (ledger.Counters{}) {
			k.Fatalf("lease on the new topic is %+v", anew)
		}
		s := k.step(0)
		s.Fence = anew.Fence
		k.want(k.commit(s)[0], ledger.Applied, nil)
		k.wantProgress(2, 2)
	}},
	{"StaleOwnerChangesNothing", func(k *kit) { // R6
		k.must(k.l.Release(k.ctx, k.fence))
		old, now := k.fence, k.acquire(k.fence.Key, "w2", 0).Fence
		stale, fresh := k.step(0), k.step(0)
		stale.Emits = []ledger.Outgoing{{Topic: "out", Message: message("stale")}}
		fresh.Fence, fresh.Emits = now, []ledger.Outgoing{{Topic: "out", Message: message("fresh")}}
		k.want(k.commit(fresh)[0], ledger.Applied, nil)
		results, err := k.l.Commit(k.ctx, &ledger.Batch{Steps: []*ledger.Step{stale}, Published: []ledger.Published{{Fence: old, From: 1, To: 1}}})
		k.must(err)
		k.want(results[0], 0, ledger.ErrFenced)
		k.wantEffects(fresh)
		k.wantProgress(1, 1)
		rows, err := k.l.Outbox(k.ctx, now, 0, 10)
		k.must(err)
		if len(rows) != 1 || string(rows[0].Message.Value) != "fresh" {
			k.Errorf("outbox holds %v", rows)
		}
		for what, err := range map[string]error{
			"Outbox":  second(k.l.Outbox(k.ctx, old, 0, 1)),
			"Parked":  second(k.l.Parked(k.ctx, old)),
			"Backlog": second(k.l.Backlog(k.ctx, old, "s", 1)),
			"Skip":    second(k.l.Skip(k.ctx, old, 9)),
		} {
			if !errors.Is(err, ledger.ErrFenced) {
				k.Errorf("%s of a stale owner: %v, want ErrFenced", what, err)
			}
		}
	}},
	{"SameOwnerOfAnOlderEpochIsFenced", func(k *kit) {
		now := k.acquire(k.fence.Key, worker, 0).Fence
		stale, fresh := k.step(0), k.step(0)
		fresh.Fence = now
		results := k.commit(stale, fresh)
		k.want(results[0], 0, ledger.ErrFenced)
		k.want(results[1], ledger.Applied, nil)
		k.wantEffects(fresh)
	}},
	{"NeverTakenIsFenced", func(k *kit) {
		s := k.step(0)
		s.Fence = ledger.Fence{Key: key(9, 9), Owner: worker, Epoch: 1}
		k.want(k.commit(s)[0], 0, ledger.ErrFenced)
	}},
	{"SkipCountsWhatWasNotFinished", func(k *kit) { // K3
		k.commit(k.step(0), k.step(3), k.step(4), k.step(9))
		n, err := k.l.Skip(k.ctx, k.fence, 8)
		k.must(err)
		if n != 5 { // 1, 2, 5, 6, 7
			k.Errorf("passed over %d offsets, want 5", n)
		}
		k.wantProgress(8, 4, ledger.Span{From: 9, To: 9})
		if n, err = k.l.Skip(k.ctx, k.fence, 3); n != 0 || err != nil {
			k.Errorf("going back passed over %d with error %v", n, err)
		}
		if n, err = k.l.Skip(k.ctx, k.fence, 9); n != 1 || err != nil {
			k.Errorf("passed over %d with error %v, want 1", n, err)
		}
		k.wantProgress(10, 4)
	}},
}

func second[T any](_ T, err error) error { return err }
