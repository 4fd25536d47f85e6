package sqlite

import (
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/ledger"
)

// The benchmarks compare the ledger's whole book-keeping with a bare loop that does the same effect and writes one
// offset per batch, on the same kind of connection, for the same user's tables. Run them with
//
//	go test -run '^$' -bench Steps -count 6 ./internal/ledger/sqlite | tee steps.txt && benchstat -col /path steps.txt
//
// "keyed" effects insert into a table with a text key, as most do; "append" ones into a table without any.

var effects = []struct{ name, table, insert string }{
	{"keyed", "CREATE TABLE notes (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID", "INSERT INTO notes (id, body) VALUES ($1, $2)"},
	{"append", "CREATE TABLE notes (id TEXT, body TEXT NOT NULL)", "INSERT INTO notes (id, body) VALUES ($1, $2)"},
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
}

func benchLedger(b *testing.B, table, insert string, size, emits int, history bool) {
	p := filepath.Join(b.TempDir(), "ledger.db")
	db, err := Open(b.Context(), p, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	setup(b, db, table)
	f := acquire(b, db)
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
		Event: ledger.Identity{Source: "swarmlog://papers/splitter", ID: id, Subject: id, Digest: [16]byte{1}},
		Effects: []func(context.Context, ledger.Tx) error{func(ctx context.Context, tx ledger.Tx) error {
			_, err := tx.Exec(ctx, insert, id, benchBody)
			return err
		}}}
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
	p := filepath.Join(b.TempDir(), "bare.db")
	db, err := Open(b.Context(), p, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	setup(b, db, table, "CREATE TABLE progress (part INTEGER PRIMARY KEY, next INTEGER NOT NULL)", "INSERT INTO progress VALUES (0, 0)")
	w := <-db.writer
	defer func() { db.writer <- w }()
	effect, err := w.prepare(insert)
	if err != nil {
		b.Fatal(err)
	}
	offset, err := w.prepare("UPDATE progress SET next = $1 WHERE part = 0")
	if err != nil {
		b.Fatal(err)
	}
	run := func(st prepared, values ...driver.Value) {
		if _, err := st.ExecContext(background, w.bind(values)); err != nil {
			b.Fatal(err)
		}
	}
	n := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		if err := w.begin(qBeginWrite); err != nil {
			b.Fatal(err)
		}
		for range size {
			run(effect, benchID(n), benchBody)
			n++
		}
		run(offset, n)
		if err := w.commit(); err != nil {
			b.Fatal(err)
		}
	}
	report(b, n)
	_ = effect.Close()
	_ = offset.Close()
}

func report(b *testing.B, steps int64) {
	b.StopTimer()
	b.ReportMetric(float64(steps)/b.Elapsed().Seconds(), "steps/s")
}

// BenchmarkGrowth tells how many bytes the ledger keeps for a million applied events, without the effects.
func BenchmarkGrowth(b *testing.B) {
	for _, kind := range []string{"seen", "history", "positional"} {
		b.Run("ids="+kind, func(b *testing.B) {
			const events, size = 200_000, 1000
			for b.Loop() {
				p := filepath.Join(b.TempDir(), "ledger.db")
				db, err := Open(b.Context(), p, Options{})
				if err != nil {
					b.Fatal(err)
				}
				f := acquire(b, db)
				for n := int64(0); n < events; {
					batch := &ledger.Batch{}
					for range size {
						s := benchStep(f, n, "", 0, kind == "history")
						s.Effects, s.Event.Positional = nil, kind == "positional"
						batch.Steps = append(batch.Steps, s)
						n++
					}
					if _, err := db.Commit(b.Context(), batch); err != nil {
						b.Fatal(err)
					}
				}
				if err := db.Close(); err != nil { // copies the log into the file
					b.Fatal(err)
				}
				info, err := os.Stat(p)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(info.Size())*1e6/events, "bytes/Mevent")
			}
		})
	}
}

// BenchmarkCalls is a model call's two writes, by 64 steps at once, which share commits.
func BenchmarkCalls(b *testing.B) {
	db, err := Open(b.Context(), filepath.Join(b.TempDir(), "ledger.db"), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	f := acquire(b, db)
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
