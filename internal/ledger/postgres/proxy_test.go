package postgres

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// way is what the proxy does to the next COMMIT.
type way int32

const (
	straight     way = iota
	loseCommit       // the connection breaks before the COMMIT gets through
	loseAnswer       // the COMMIT gets through, the connection breaks before its answer comes back
	swallow          // the COMMIT is lost and the connection stays: the server still has the transaction open
	holdAnswer       // the COMMIT gets through, and no answer ever comes
	stopTheOwner     // nothing gets through from the client any more, as if its process had been stopped
)

// proxy stands between a ledger and PostgreSQL, and reads what the client says, message by message.
type proxy struct {
	t        testing.TB
	listener net.Listener
	server   string
	next     atomic.Int32 // the way of the next COMMIT
	thawed   chan struct{}
	wg       sync.WaitGroup

	silent atomic.Bool  // nothing gets through in either direction
	refuse atomic.Bool  // nobody is let in
	broken atomic.Int32 // COMMITs that were lost on the way there or back

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// newProxy starts one, and returns the address of a server behind it.
func newProxy(t testing.TB, dsn string) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal("the server's address isn't a URL")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{t: t, listener: l, server: u.Host, thawed: make(chan struct{}), conns: map[net.Conn]bool{}}
	t.Cleanup(p.close)
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if p.refuse.Load() {
				_ = c.Close()
				continue
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	u.Host = l.Addr().String()
	return p, u.String()
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.thaw()
	p.wg.Wait()
}

// cut breaks all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// thaw lets a stopped client go on.
func (p *proxy) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.thawed:
	default:
		close(p.thawed)
	}
}

func (p *proxy) keep(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns[c] = true
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	p.keep(client)
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	defer server.Close()
	p.keep(server)
	var mute atomic.Int32 // a way: what becomes of answers
	p.wg.Go(func() {
		defer client.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := server.Read(buf)
			if err != nil {
				return
			}
			if p.silent.Load() {
				continue
			}
			switch way(mute.Load()) {
			case loseAnswer:
				p.broken.Add(1)
				return
			case holdAnswer:
				continue
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	p.forward(client, server, &mute)
}

// forward passes the client's messages on: one without a type first, then type, length and body.
func (p *proxy) forward(client, server net.Conn, mute *atomic.Int32) {
	for first := true; ; first = false {
		head := make([]byte, 5)
		if first {
			head = head[:4]
		}
		if _, err := io.ReadFull(client, head); err != nil {
			return
		}
		body := make([]byte, int(binary.BigEndian.Uint32(head[len(head)-4:]))-4)
		if _, err := io.ReadFull(client, body); err != nil {
			return
		}
		if p.silent.Load() {
			continue
		}
		if !first && head[0] == 'Q' && string(body) == "COMMIT\x00" {
			w := way(p.next.Load())
			if w != stopTheOwner && !p.next.CompareAndSwap(int32(w), int32(straight)) {
				w = straight // another connection's COMMIT goes that way
			}
			switch w {
			case loseCommit:
				p.broken.Add(1)
				return
			case swallow:
				<-p.thawed
				continue
			case loseAnswer, holdAnswer:
				mute.Store(int32(w))
			case stopTheOwner:
				<-p.thawed
			}
		}
		if _, err := server.Write(append(head, body...)); err != nil {
			return
		}
	}
}
