package postgres

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/swarmlog/swarmlog/internal/devservices/given"
	"github.com/swarmlog/swarmlog/internal/ledger/ledgertest"
	"github.com/swarmlog/swarmlog/ledger"
)

// pooler does what PgBouncer does in transaction mode: each transaction of a client runs on another session of the
// server's, parameters that it doesn't know are refused, and a client's process number is made up.
type pooler struct {
	t        testing.TB
	listener net.Listener
	server   string
	sessions chan *pgconn.HijackedConn // in turn, so that no two transactions have the same one
	pids     atomic.Uint32
	wg       sync.WaitGroup

	mu      sync.Mutex
	clients map[uint32]*pooled
	conns   map[net.Conn]bool
}

// pooled is one client.
type pooled struct {
	pool   *pooler
	client net.Conn

	mu      sync.Mutex
	session *pgconn.HijackedConn // while it's in a transaction
	asked   int                  // answers that the session owes
	open    bool                 // it has been told something since it was last asked for one
}

func newPooler(t testing.TB, dsn string, sessions int) (*pooler, string) {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the server's address isn't a URL")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &pooler{t: t, listener: l, server: u.Host, sessions: make(chan *pgconn.HijackedConn, sessions), clients: map[uint32]*pooled{}, conns: map[net.Conn]bool{}}
	for range sessions {
		c, err := pgconn.Connect(t.Context(), with(t, dsn, "timezone", "UTC"))
		if err != nil {
			t.Fatal(err)
		}
		h, err := c.Hijack()
		if err != nil {
			t.Fatal(err)
		}
		p.sessions <- h
		p.conns[h.Conn] = true
	}
	t.Cleanup(p.close)
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	u.Host = l.Addr().String()
	q := u.Query()
	q.Del("search_path") // its sessions have it
	u.RawQuery = q.Encode()
	return p, u.String()
}

func (p *pooler) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// message reads one message with its head.
func message(r io.Reader, head int) ([]byte, error) {
	b := make([]byte, head)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(b[head-4:])) - 4
	b = append(b, make([]byte, n)...)
	_, err := io.ReadFull(r, b[head:])
	return b, err
}

func reply(kind byte, body []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(body)+4)), body...)
}

func (p *pooler) serve(client net.Conn) {
	defer client.Close()
	p.mu.Lock()
	p.conns[client] = true
	p.mu.Unlock()
	hello, err := message(client, 4)
	if err != nil {
		return
	}
	if binary.BigEndian.Uint32(hello[4:]) == 80877102 {
		p.cancel(binary.BigEndian.Uint32(hello[8:]))
		return
	}
	for i, s := range strings.Split(string(hello[8:]), "\x00") {
		if i%2 == 0 && s != "" && !slices.Contains([]string{"user", "database", "application_name", "timezone", "client_encoding"}, s) {
			_, _ = client.Write(reply('E', fmt.Appendf(nil, "SFATAL\x00C08P01\x00Munsupported startup parameter: %s\x00\x00", s)))
			return
		}
	}
	pid := p.pids.Add(1) + 1<<30
	c := &pooled{pool: p, client: client}
	p.mu.Lock()
	p.clients[pid] = c
	p.mu.Unlock()
	answer := reply('R', make([]byte, 4))
	for _, s := range []string{"server_version\x0015", "client_encoding\x00UTF8", "standard_conforming_strings\x00on", "TimeZone\x00UTC"} {
		answer = append(answer, reply('S', []byte(s+"\x00"))...)
	}
	answer = append(answer, reply('K', binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, pid), 7))...)
	if _, err := client.Write(append(answer, reply('Z', []byte{'I'})...)); err != nil {
		return
	}
	c.forward()
}

// cancel passes a cancel request on to the session that the client has now.
func (p *pooler) cancel(pid uint32) {
	p.mu.Lock()
	c := p.clients[pid]
	p.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == nil {
		return
	}
	conn, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer conn.Close()
	b := binary.BigEndian.AppendUint32(nil, uint32(12+len(c.session.SecretKey)))
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, 80877102), c.session.PID)
	_, _ = conn.Write(append(b, c.session.SecretKey...))
	_, _ = conn.Read(make([]byte, 1)) // closed when it's done
}

// forward passes the client's messages to its session, and gives it one at the beginning of a transaction.
func (c *pooled) forward() {
	for {
		m, err := message(c.client, 5)
		if err != nil || m[0] == 'X' {
			break
		}
		c.mu.Lock()
		if c.session == nil {
			c.mu.Unlock()
			s := <-c.pool.sessions
			c.mu.Lock()
			c.session = s
			c.pool.wg.Go(func() { c.answer(s) })
		}
		if c.open = m[0] != 'Q' && m[0] != 'S'; !c.open {
			c.asked++
		}
		to := c.session.Conn
		c.mu.Unlock()
		if _, err = to.Write(m); err != nil {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil { // it left in the middle of a transaction
		_ = c.session.Conn.Close()
	}
}

// answer passes what a session says to the client, until the transaction is over.
func (c *pooled) answer(s *pgconn.HijackedConn) {
	for {
		said, err := s.Frontend.Receive() // pgx may have read ahead, so the bare connection hasn't all
		var m []byte
		if err == nil {
			m, err = said.Encode(nil)
		}
		if err != nil {
			_ = c.client.Close()
			return
		}
		over := false
		if z, ok := said.(*pgproto3.ReadyForQuery); ok {
			c.mu.Lock()
			c.asked--
			if over = c.asked == 0 && !c.open && z.TxStatus == 'I'; over {
				c.session = nil
				c.pool.sessions <- s
			}
			c.mu.Unlock()
		}
		if _, err := c.client.Write(m); err != nil || over {
			return
		}
	}
}

// The whole suite passes behind a pooler in transaction mode, though no two transactions have the same session.
func TestConformanceBehindAPooler(t *testing.T) {
	given.Postgres(t)
	ledgertest.Run(t, func(t *testing.T) ledger.Ledger {
		r := newRoom(t)
		_, dsn := newPooler(t, r.dsn, 8)
		db := room{dsn, r.schema}.open(t)
		if mode := db.pool.Config().ConnConfig.DefaultQueryExecMode; mode != pgx.QueryExecModeCacheDescribe {
			t.Fatalf("the pooler wasn't noticed: statements go by mode %v", mode)
		}
		return db
	}, ledgertest.Features{FailCommit: failCommit, Hang: hang, Bytes: "BYTEA"})
}

// What a pooler refuses is told with what to do about it.
func TestParameterThatAPoolerRefuses(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	_, dsn := newPooler(t, r.dsn, 1)
	_, err := Open(context.Background(), Options{DSN: with(t, dsn, "statement_timeout", "7"), Schema: r.schema})
	if err == nil || !strings.Contains(err.Error(), "leave parameters that a pooler refuses out") {
		t.Errorf("open: %v", err)
	}
}
