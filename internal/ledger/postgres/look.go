package postgres

import (
	"cmp"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/swarmlog/swarmlog/ledger"
)

var (
	qInsertSeen = define("INSERT INTO {}seen (group_id, event, digest, lease_id, log_time) " +
		"SELECT * FROM unnest($1::integer[], $2::uuid[], $3::uuid[], $4::integer[], $5::bigint[]) ON CONFLICT DO NOTHING RETURNING group_id, event, digest")
	qFindSeen = define("SELECT s.group_id, s.event, s.digest FROM unnest($1::integer[], $2::uuid[]) k (group_id, event) " +
		"JOIN {}seen s ON s.group_id = k.group_id AND s.event = k.event")
	qFindHistories = define("SELECT h.group_id, h.history, h.last, h.log_time FROM unnest($1::integer[], $2::bytea[]) k (group_id, history) " +
		"JOIN {}history h ON h.group_id = k.group_id AND h.history = k.history")
	qFindWaits = define("SELECT b.lease_id, b.position, b.dead, b.alone FROM unnest($1::integer[], $2::bigint[]) k (lease_id, position) " +
		"JOIN {}backlog b ON b.lease_id = k.lease_id AND b.position = k.position")
)

// look asks for all that the batch's steps may turn on, in one round trip, and puts the ids of events that may be
// applied into seen: so a copy under way elsewhere is waited for before anybody's SQL runs. An id that no step takes in
// the end is taken out again by flush.
func (a *attempt) look() error {
	b := &pgx.Batch{}
	candidates := a.candidates()
	if len(candidates) > 0 {
		s := seenArrays(candidates, a.now.seen)
		b.Queue(a.db.sql[qInsertSeen], s.groups, s.events, s.digests, s.leases, s.times).Query(func(rows pgx.Rows) error {
			return collect(rows, scanSeen, func(f foundSeen) { a.now.seen[f.seenKey].ours = true })
		})
	}
	a.lookForHistories(b)
	a.lookForWaits(b)
	ctx, cancel := a.limited()
	defer cancel()
	if err := send(ctx, a.link.conn(), b); err != nil {
		return err
	}
	return a.lookForCopies(slices.DeleteFunc(candidates, func(k seenKey) bool { return a.now.seen[k].ours }))
}

// candidates are the events whose ids may have to be in seen, in the order in which all insert them, so that two
// batches with the same events don't wait for each other. Each is noted as inserted by its first step.
func (a *attempt) candidates() []seenKey {
	var keys []seenKey
	for i, s := range a.batch.Steps {
		l := a.lease(s.Fence.Key)
		if a.failed[i] != nil || a.fenced(s) != nil || !asksSeen(s) || !s.FromBacklog && (s.Offset < l.Next || l.Finished.Contains(s.Offset)) {
			continue
		}
		k := seenKey{l.group, eventKey(s.Event.Source, s.Event.ID)}
		if a.now.seen[k] == nil {
			a.now.seen[k] = &seenRow{inserted: s, lease: l.id}
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(x, y seenKey) int {
		return cmp.Or(cmp.Compare(x.group, y.group), slices.Compare(x.event[:], y.event[:]))
	})
	return keys
}

// seenColumns are rows of seen as arrays for unnest.
type seenColumns struct {
	groups  []int32
	events  [][16]byte
	digests [][16]byte
	leases  []int32
	times   []int64
}

func seenArrays(keys []seenKey, rows map[seenKey]*seenRow) (c seenColumns) {
	for _, k := range keys {
		r := rows[k]
		c.groups, c.events = append(c.groups, k.group), append(c.events, k.event)
		c.digests, c.leases = append(c.digests, r.inserted.Event.Digest), append(c.leases, r.lease)
		c.times = append(c.times, stamp(r.inserted.LogTime))
	}
	return c
}

type foundSeen struct {
	seenKey
	digest [16]byte
}

func scanSeen(r pgx.CollectableRow) (f foundSeen, err error) {
	err = r.Scan(&f.group, &f.event, &f.digest)
	return f, err
}

// lookForCopies reads the rows of events that were in seen already.
func (a *attempt) lookForCopies(keys []seenKey) error {
	if len(keys) == 0 {
		return nil
	}
	ctx, cancel := a.limited()
	defer cancel()
	s := seenArrays(keys, a.now.seen)
	rows, err := a.link.conn().Query(ctx, a.db.sql[qFindSeen], s.groups, s.events)
	if err != nil {
		return err
	}
	found := 0
	if err := collect(rows, scanSeen, func(f foundSeen) {
		r := a.now.seen[f.seenKey]
		r.digest, r.present = f.digest, true
		found++
	}); err != nil {
		return err
	}
	if found < len(keys) {
		return errRace // it was there, and has been pruned since
	}
	return nil
}

func (a *attempt) lookForHistories(b *pgx.Batch) {
	var groups []int32
	var keys [][]byte
	for i, s := range a.batch.Steps {
		l := a.lease(s.Fence.Key)
		if a.failed[i] != nil || a.fenced(s) != nil || !asksHistory(s) {
			continue
		}
		k := historyOf(l, s)
		if a.now.histories[k] == nil {
			a.now.histories[k] = &history{}
			groups, keys = append(groups, k.group), append(keys, k.history[:])
		}
	}
	if len(keys) == 0 {
		return
	}
	b.Queue(a.db.sql[qFindHistories], groups, keys).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			var k historyKey
			var key []byte
			var last, logTime int64
			if err := rows.Scan(&k.group, &key, &last, &logTime); err != nil {
				return err
			}
			copy(k.history[:], key)
			*a.now.histories[k] = history{was: last, last: last, logTime: logTime}
		}
		return rows.Err()
	})
}

func (a *attempt) lookForWaits(b *pgx.Batch) {
	var leases []int32
	var positions []int64
	for i, s := range a.batch.Steps {
		l := a.lease(s.Fence.Key)
		if a.failed[i] == nil && a.fenced(s) == nil && s.FromBacklog {
			leases, positions = append(leases, l.id), append(positions, s.Offset)
		}
	}
	if len(leases) == 0 {
		return
	}
	b.Queue(a.db.sql[qFindWaits], leases, positions).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			var k rowKey
			r := &waitRow{was: true, present: true}
			if err := rows.Scan(&k.lease, &k.position, &r.dead, &r.alone); err != nil {
				return err
			}
			a.now.rows[k] = r
		}
		return rows.Err()
	})
}

// stale tells whether a row that was put into seen says something else than the step that took it.
func (r *seenRow) stale() bool {
	return r.ours && r.claimed != nil && r.claimed != r.inserted && !same(r.claimed, r.inserted)
}

func same(a, b *ledger.Step) bool {
	return a.Event.Digest == b.Event.Digest && a.Fence.Key == b.Fence.Key && a.LogTime.Equal(b.LogTime)
}
