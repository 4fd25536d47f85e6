package bench

import (
	"context"
	"database/sql/driver"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"modernc.org/sqlite"

	"github.com/swarmlog/swarmlog/event"
	"github.com/swarmlog/swarmlog/internal/broker"
	"github.com/swarmlog/swarmlog/internal/route"
	"github.com/swarmlog/swarmlog/ledger"
)

// batches reads n records from the topic's beginning and hands them over in batches; the clock runs since the first
// fetch arrived. Reading goes on while a batch is worked on, as it does in any
// good consumer: kgo fetches ahead.
func (p *pair) batches(b *testing.B, n, size int, work func([]broker.Record)) (c clock) {
	b.Helper()
	reader, err := p.broker.Reader("bench.loop")
	must(b, err)
	defer reader.Close()
	for part := range p.in.Partitions {
		reader.Add(p.in, part, 0)
	}
	batch := make([]broker.Record, 0, size)
	for got := 0; got < n; {
		fetches, err := reader.Poll(b.Context())
		must(b, err)
		if got == 0 {
			c = startClock(b)
		}
		for _, f := range fetches {
			must(b, f.Err)
			for _, r := range f.Records {
				batch = append(batch, r)
				if got++; len(batch) == size || got == n {
					work(batch)
					batch = batch[:0]
				}
			}
		}
	}
	return c
}

// hand is a loop over batches that commits through the ledger.
func (p *pair) hand(b *testing.B, e effect, n, emits, size int) run {
	db, _, remove := p.openLedger(b)
	defer remove()
	must(b, db.Setup(b.Context(), e.create))
	h := &handLoop{p: p, ledger: db}
	for part := range p.in.Partitions {
		key := ledger.Key{Group: agentName, TopicID: p.in.ID, Partition: part}
		lease, err := db.Acquire(b.Context(), key, topicIn, "local-1", 0, time.Minute)
		must(b, err)
		h.fences = append(h.fences, lease.Fence)
	}
	c := p.batches(b, n, size, func(records []broker.Record) { h.commit(b, e, records, emits) })
	for _, f := range h.flights {
		<-f.done
	}
	return c.stop(float64(size))
}

// handLoop decodes and commits, publishes what it committed while later batches commit, and deletes what was
// acknowledged in the next commit.
type handLoop struct {
	p       *pair
	ledger  ledger.Ledger
	fences  []ledger.Fence
	flights []*flight // in the order of commits
}

// flight is what one batch emitted and isn't deleted yet.
type flight struct {
	rows []ledger.Published
	left atomic.Int64
	done chan struct{} // closed once all is acknowledged
}

// landed takes the flights off that are acknowledged, and those before them.
func (h *handLoop) landed() (rows []ledger.Published) {
	for len(h.flights) > 0 && h.flights[0].left.Load() == 0 {
		rows = append(rows, h.flights[0].rows...)
		h.flights = h.flights[1:]
	}
	return rows
}

func (h *handLoop) commit(b *testing.B, e effect, records []broker.Record, emits int) {
	batch := &ledger.Batch{Steps: make([]*ledger.Step, len(records))}
	for i := range records {
		r := &records[i]
		ev, err := event.Decode(r.Message, r.Position)
		must(b, err)
		s := &ledger.Step{Fence: h.fences[r.Partition], From: r.Offset, Offset: r.Offset, LogTime: r.Time, Outcome: ledger.Applied,
			Event:   ledger.Identity{Source: ev.Source, ID: ev.ID, Subject: ev.Subject, Digest: ev.Digest()},
			Effects: []func(context.Context, ledger.Tx) error{e.write(ev)}}
		if emits > 0 {
			s.Emits = []ledger.Outgoing{{Topic: topicOut, Partition: -1, Message: h.encode(b, ev)}}
		}
		batch.Steps[i] = s
	}
	batch.Published = h.landed()
	results, err := h.ledger.Commit(b.Context(), batch)
	must(b, err)
	for i, r := range results {
		if r.Err != nil || r.Outcome != ledger.Applied {
			b.Fatalf("step of offset %d: %s, %v", records[i].Offset, r.Outcome, r.Err)
		}
	}
	if emits > 0 {
		h.publish(b, batch, results)
	}
}

func (h *handLoop) encode(b *testing.B, in event.Event) event.Message {
	out := emitted(in)
	out.ID, out.Source, out.Time = event.DeriveID(agentName, in.Source, in.ID, 0), "swarmlog://bench/"+agentName, time.Now().UTC()
	out.SetHops(in.Hops() + 1)
	out.SetRecordedTime(out.Time)
	m, err := out.Encode()
	must(b, err)
	return m
}

// publish starts to publish what a batch emitted.
func (h *handLoop) publish(b *testing.B, batch *ledger.Batch, results []ledger.Result) {
	f := &flight{done: make(chan struct{})}
	f.left.Store(int64(len(batch.Steps)))
	rows := map[int32]ledger.Published{}
	for i, s := range batch.Steps {
		m, seq := s.Emits[0].Message, results[i].FirstSeq
		h.p.broker.Publisher().Publish(broker.Record{Message: m, Position: event.Position{Topic: topicOut, Partition: route.Partition(m.Key, partitions)}},
			func(_ int64, err error) {
				if err != nil {
					b.Error(err)
				}
				if f.left.Add(-1) == 0 {
					close(f.done)
				}
			})
		row, ok := rows[s.Fence.Partition]
		if !ok {
			row = ledger.Published{Fence: s.Fence, From: seq}
		}
		row.To = seq
		rows[s.Fence.Partition] = row
	}
	for _, row := range rows {
		f.rows = append(f.rows, row)
	}
	h.flights = append(h.flights, f)
}

// bare is a loop over batches that writes effects and offsets in plain SQL, on the driver itself: database/sql would
// cost it a tenth.
func (p *pair) bare(b *testing.B, e effect, n, size int) run {
	dir, err := os.MkdirTemp(p.dir, "bare-")
	must(b, err)
	defer func() { must(b, os.RemoveAll(dir)) }()
	c := openBare(b, filepath.Join(dir, "bare.db"))
	defer c.close(b)
	c.exec(b, c.prepare(b, e.table))
	c.exec(b, c.prepare(b, "CREATE TABLE progress (part INTEGER PRIMARY KEY, next INTEGER NOT NULL)"))
	for part := range p.in.Partitions {
		c.exec(b, c.prepare(b, fmt.Sprintf("INSERT INTO progress VALUES (%d, 0)", part)))
	}
	begin, commit := c.prepare(b, "BEGIN IMMEDIATE"), c.prepare(b, "COMMIT")
	insert, progress := c.prepare(b, e.insert), c.prepare(b, "UPDATE progress SET next = $1 WHERE part = $2")
	next := make([]int64, partitions)
	return p.batches(b, n, size, func(records []broker.Record) {
		clear(next)
		c.exec(b, begin)
		for i := range records {
			r := &records[i]
			ev, err := event.Decode(r.Message, r.Position)
			must(b, err)
			c.exec(b, insert, ev.ID, ev.Subject, string(ev.Data))
			next[r.Partition] = r.Offset + 1
		}
		for part, offset := range next {
			if offset > 0 {
				c.exec(b, progress, offset, int64(part))
			}
		}
		c.exec(b, commit)
	}).stop(float64(size))
}

// bareConn is a connection of SQLite's driver, with the pragmas of the ledger's.
type bareConn struct {
	driver     driver.Conn
	statements []driver.Stmt
	args       []driver.NamedValue
}

func openBare(b *testing.B, path string) *bareConn {
	b.Helper()
	connector, err := sqlite.NewConnector("file:" + path + "?_pragma=journal_mode(wal)&_pragma=synchronous(full)" +
		"&_pragma=wal_autocheckpoint(16384)&_pragma=cache_size(-65536)")
	must(b, err)
	c, err := connector.Connect(b.Context())
	must(b, err)
	return &bareConn{driver: c}
}

func (c *bareConn) prepare(b *testing.B, query string) driver.Stmt {
	b.Helper()
	s, err := c.driver.(driver.ConnPrepareContext).PrepareContext(context.Background(), query)
	must(b, err)
	c.statements = append(c.statements, s)
	return s
}

func (c *bareConn) exec(b *testing.B, s driver.Stmt, values ...driver.Value) {
	c.args = c.args[:0]
	for i, v := range values {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	_, err := s.(driver.StmtExecContext).ExecContext(context.Background(), c.args)
	must(b, err)
}

func (c *bareConn) close(b *testing.B) {
	b.Helper()
	for _, s := range c.statements {
		must(b, s.Close())
	}
	must(b, c.driver.Close())
}
