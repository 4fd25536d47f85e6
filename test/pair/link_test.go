package pair

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

// link is a way to a server that can be cut: connections break, and new ones are refused until it's mended.
type link struct {
	t       *testing.T
	target  string
	address string

	mu      sync.Mutex
	down    bool
	open    map[net.Conn]bool
	running sync.WaitGroup
}

func newLink(t *testing.T, target string) *link {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{t: t, target: target, address: l.Addr().String(), open: map[net.Conn]bool{}}
	k.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			k.running.Go(func() { k.carry(c) })
		}
	})
	t.Cleanup(func() {
		err := l.Close()
		k.cut()
		k.running.Wait()
		if err != nil {
			t.Error(err)
		}
	})
	return k
}

func (k *link) carry(c net.Conn) {
	there, err := net.Dial("tcp", k.target)
	if err != nil {
		_ = c.Close()
		return
	}
	if !k.keep(c, there) {
		return
	}
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{c, there}, {there, c}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			_ = errors.Join(c.Close(), there.Close())
		})
	}
	both.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.open, c)
	delete(k.open, there)
}

// keep notes connections, or closes them where the link is cut.
func (k *link) keep(all ...net.Conn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range all {
		if k.down {
			_ = c.Close()
			continue
		}
		k.open[c] = true
	}
	return !k.down
}

func (k *link) cut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = true
	for c := range k.open {
		_ = c.Close()
	}
}

func (k *link) mend() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = false
}
