package bench

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/ledger"
)

// BenchmarkGrowth tells what the ledger keeps of applied events, table by table with its indexes, in bytes an event
// (so in MB a million): each event emits one, which is published and deleted again two commits later. Ids of events
// from outside are kept in `seen` for a horizon; events of a history need none.
func BenchmarkGrowth(b *testing.B) {
	for _, kind := range []string{"seen", "history"} {
		b.Run("ids="+kind, func(b *testing.B) { benchGrowth(b, kind == "history") })
	}
}

func benchGrowth(b *testing.B, history bool) {
	n := 100_000
	if testing.Short() {
		n = 20_000
	}
	tables := map[string]int64{}
	for b.Loop() {
		tables = grow(b, n, history)
	}
	b.ReportMetric(0, "ns/op")
	for name, bytes := range tables {
		b.ReportMetric(float64(bytes)/float64(n), name+"-B/event")
	}
}

func grow(b *testing.B, n int, history bool) map[string]int64 {
	p := &pair{dir: b.TempDir()}
	db, path, remove := p.openLedger(b)
	defer remove()
	var fences []ledger.Fence
	for part := range int32(partitions) {
		lease, err := db.Acquire(b.Context(), ledger.Key{Group: agentName, TopicID: [16]byte{1}, Partition: part}, topicIn, "local-1", 0, time.Minute)
		must(b, err)
		fences = append(fences, lease.Fence)
	}
	const size = 512
	var published, next []ledger.Published
	for i := 0; i < n; {
		batch := &ledger.Batch{Published: published}
		for ; len(batch.Steps) < size && i < n; i++ {
			e := newEvent(i, i%aggregates)
			m, err := e.Encode()
			must(b, err)
			offset := int64(i / partitions)
			s := &ledger.Step{Fence: fences[i%partitions], From: offset, Offset: offset, LogTime: e.Time, Outcome: ledger.Applied,
				Event: ledger.Identity{Source: e.Source, ID: e.ID, Subject: e.Subject, Digest: e.Digest()},
				Emits: []ledger.Outgoing{{Topic: topicOut, Partition: -1, Message: m}}}
			if history {
				s.Event.Sequence = int64(i/aggregates + 1)
				s.Wait = &ledger.Wait{Subject: e.Subject, Sequence: s.Event.Sequence, Message: event.Message{Key: m.Key}}
			}
			batch.Steps = append(batch.Steps, s)
		}
		results, err := db.Commit(b.Context(), batch)
		must(b, err)
		published, next = next, nil
		for j, r := range results {
			if r.Err != nil || r.Outcome != ledger.Applied {
				b.Fatalf("step %d: %s, %v", j, r.Outcome, r.Err)
			}
			next = append(next, ledger.Published{Fence: batch.Steps[j].Fence, From: r.FirstSeq, To: r.FirstSeq})
		}
	}
	for _, rows := range [][]ledger.Published{published, next} {
		_, err := db.Commit(b.Context(), &ledger.Batch{Published: rows})
		must(b, err)
	}
	return tableSizes(b, path)
}

// tableSizes is what each of the ledger's tables takes with its indexes, by a name of its own; free pages apart.
func tableSizes(b *testing.B, path string) map[string]int64 {
	b.Helper()
	c := openBare(b, path)
	defer c.close(b)
	sizes := map[string]int64{"others": 0}
	add := func(name string, bytes int64) {
		for _, table := range []string{"seen", "cursor", "lease", "outbox", "free"} {
			if strings.Contains(name, table) {
				sizes[table] += bytes
				return
			}
		}
		sizes["others"] += bytes
	}
	c.query(b, "SELECT name, sum(pgsize) FROM dbstat GROUP BY name", func(row []driver.Value) { add(row[0].(string), row[1].(int64)) })
	c.query(b, "SELECT 'free', f.freelist_count * p.page_size FROM pragma_freelist_count f, pragma_page_size p",
		func(row []driver.Value) { add(row[0].(string), row[1].(int64)) })
	return sizes
}

func (c *bareConn) query(b *testing.B, query string, f func([]driver.Value)) {
	b.Helper()
	rows, err := c.driver.(driver.QueryerContext).QueryContext(context.Background(), query, nil)
	must(b, err)
	row := make([]driver.Value, len(rows.Columns()))
	for {
		err := rows.Next(row)
		if errors.Is(err, io.EOF) {
			break
		}
		must(b, err)
		f(row)
	}
	if err := rows.Close(); err != nil {
		b.Fatal(fmt.Errorf("%s: %w", query, err))
	}
}
