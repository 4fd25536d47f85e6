package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/ledger"
)

// The benchmarks compare the ledger's whole book-keeping with a bare loop that does the same effect and writes one
// offset per batch, on the same kind of connection, for the same user's tables; names are those of the embedded
// ledger's. Run them with
//
//	go test -run '^$' -bench Steps -count 6 ./internal/ledger/postgres | tee steps.txt && benchstat -col /path steps.txt
//
// A user's statement is a round trip here. So path=quiet has none: it's what the book-keeping alone takes.

var effects = []struct{ name, table, insert string }{
	{"keyed", "CREATE TABLE notes (id text PRIMARY KEY, body text NOT NULL)", "INSERT INTO notes (id, body) VALUES ($1, $2)"},
	{"append", "CREATE TABLE notes (id text, body text NOT NULL)", "INSERT INTO notes (id, body) VALUES ($1, $2)"},
}

var benchSizes = []int{256, 512}

const benchBody = "a summary of a page in about a hundred bytes, which isn't much for a summary and isn't nothing"

// benchID is an id as derived ones are: in no order.
func benchID(n int64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d", n))
	return hex.EncodeToString(sum[:16])
}

func BenchmarkSteps(b *testing.B) {
	for _, e := range effects {
		for _, size := range benchSizes {
			name := fmt.Sprintf("effect=%s/batch=%d", e.name, size)
			b.Run(name+"/path=ledger", func(b *testing.B) { benchLedger(b, e.table, e.insert, size, 0, false) })
			b.Run(name+"/path=history", func(b *testing.B) { benchLedger(b, e.table, e.insert, size, 0, true) })
			b.Run(name+"/path=outbox", func(b *testing.B) { benchLedger(b, e.table, e.insert, size, 1, false) })
			b.Run(name+"/path=bare", func(b *testing.B) { benchBare(b, e.table, e.insert, size) })
		}
	}
	b.Run("effect=none/batch=512/path=quiet", func(b *testing.B) { benchLedger(b, effects[0].table, "", 512, 0, false) })
}

func benchLedger(b *testing.B, table, insert string, size, emits int, history bool) {
	db := newRoom(b).open(b, func(o *Options) { o.EffectTimeout = 5 * time.Second })
	setup(b, db, table)
	f := acquire(b, db, 0)
	n, published := int64(0), int64(0)
	b.ReportAllocs()
	for b.Loop() {
		batch := &ledger.Batch{Steps: make([]*ledger.Step, 0, size)}
		for range size {
			batch.Steps = append(batch.Steps, benchStep(f, n, insert, emits, history))
			n++
		}
		if emits > 0 && n > int64(size) {
			to := (n - int64(size)) * int64(emits)
			batch.Published = []ledger.Published{{Fence: f, From: published + 1, To: to}}
			published = to
		}
		results, err := db.Commit(b.Context(), batch)
		if err != nil || results[0].Outcome != ledger.Applied {
			b.Fatal(results[0], err)
		}
	}
	report(b, n)
}

func benchStep(f ledger.Fence, n int64, insert string, emits int, history bool) *ledger.Step {
	id := benchID(n)
	s := &ledger.Step{Fence: f, From: n, Offset: n, Outcome: ledger.Applied, LogTime: time.UnixMilli(1_700_000_000_000 + n), CRC: uint32(n),
		Event: ledger.Identity{Source: "swarmlog://papers/splitter", ID: id, Subject: id, Digest: [16]byte{1}}}
	if insert != "" {
		s.Effects = []effect{exec(insert, id, benchBody)}
	}
	if history {
		s.Event.Subject, s.Event.Sequence = fmt.Sprint(n%1000), n/1000+1
		s.Wait = &ledger.Wait{Subject: s.Event.Subject, Sequence: s.Event.Sequence}
	}
	for range emits {
		s.Emits = append(s.Emits, ledger.Outgoing{Topic: "summaries", Partition: -1, Message: event.Message{Key: []byte(id), Value: []byte(benchBody),
			Headers: []event.Header{{Key: "ce_id", Value: []byte(id)}, {Key: "ce_type", Value: []byte("PageReadEvent")}}}})
	}
	return s
}

func benchBare(b *testing.B, table, insert string, size int) {
	db := newRoom(b).open(b)
	setup(b, db, table, "CREATE TABLE progress (part int PRIMARY KEY, next bigint NOT NULL)", "INSERT INTO progress VALUES (0, 0)")
	l, err := db.take(b.Context(), db.writes)
	if err != nil {
		b.Fatal(err)
	}
	defer l.close()
	run := func(sql string, args ...any) {
		if _, err := l.conn().Exec(context.Background(), sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	n := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		run("BEGIN")
		for range size {
			run(insert, benchID(n), benchBody)
			n++
		}
		run("UPDATE progress SET next = $1 WHERE part = 0", n)
		run("COMMIT")
	}
	report(b, n)
}

func report(b *testing.B, steps int64) {
	b.StopTimer()
	b.ReportMetric(float64(steps)/b.Elapsed().Seconds(), "steps/s")
}

// BenchmarkGrowth tells how many bytes the ledger keeps for a million applied events, indexes included, without the
// effects.
func BenchmarkGrowth(b *testing.B) {
	for _, kind := range []string{"seen", "history", "positional"} {
		b.Run("ids="+kind, func(b *testing.B) {
			const events, size = 200_000, 1000
			for b.Loop() {
				r := newRoom(b)
				db := r.open(b)
				f := acquire(b, db, 0)
				for n := int64(0); n < events; {
					batch := &ledger.Batch{}
					for range size {
						s := benchStep(f, n, "", 0, kind == "history")
						s.Event.Positional = kind == "positional"
						batch.Steps = append(batch.Steps, s)
						n++
					}
					if _, err := db.Commit(b.Context(), batch); err != nil {
						b.Fatal(err)
					}
				}
				var bytes int64
				scan(b, db, "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "+
					"WHERE n.nspname = '"+r.schema+"' AND c.relkind = 'r'", &bytes)
				b.ReportMetric(float64(bytes)*1e6/events, "bytes/Mevent")
			}
		})
	}
}

// BenchmarkCalls is a model call's two transactions, by 64 steps at once.
func BenchmarkCalls(b *testing.B) {
	db := newRoom(b).open(b)
	f := acquire(b, db, 0)
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		id := fmt.Sprintf("%p", pb)
		for n := int64(0); pb.Next(); n++ {
			c := ledger.Call{Fence: f, Source: "s", EventID: fmt.Sprintf("%s-%d", id, n), Address: sha256.Sum256([]byte(id))}
			if _, _, err := db.Recall(b.Context(), c); err != nil {
				b.Error(err)
			}
			if err := db.Settle(b.Context(), c, ledger.Answer{Model: "m", Response: []byte(benchBody)}); err != nil {
				b.Error(err)
			}
		}
	})
}
