package httpapi_test

import (
	"net"
	"strings"
	"testing"

	"github.com/swarmlog/swarmlog/internal/httpapi"
)

func TestCheckListen(t *testing.T) {
	for _, good := range []string{"127.0.0.1:0", "127.0.0.1:7070", "localhost:7070", "[::1]:7070", "127.1.2.3:65535"} {
		if err := httpapi.CheckListen(good); err != nil {
			t.Errorf("%s is refused: %v", good, err)
		}
	}
	for _, bad := range []string{":7070", "0.0.0.0:7070", "[::]:7070", "192.168.1.4:7070", "example.com:80", "10.0.0.1:0"} {
		if err := httpapi.CheckListen(bad); err == nil || !strings.Contains(err.Error(), "write 127.0.0.1:") || !strings.Contains(err.Error(), "nobody is asked who they are") {
			t.Errorf("%s: %v, want a refusal that says why and what to write", bad, err)
		}
	}
	for _, bad := range []string{"", "7070", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", "127.0.0.1:"} {
		if err := httpapi.CheckListen(bad); err == nil || !strings.Contains(err.Error(), "write it like 127.0.0.1:7070") {
			t.Errorf("%q: %v, want what to write", bad, err)
		}
	}
}

func TestListenSaysWhoHasThePort(t *testing.T) {
	l, err := httpapi.Listen(t.Context(), "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if ip := l.Addr().(*net.TCPAddr).IP; !ip.IsLoopback() {
		t.Fatalf("listens on %s", ip)
	}
	if _, err := httpapi.Listen(t.Context(), l.Addr().String()); err == nil || !strings.Contains(err.Error(), "another program has the port") {
		t.Fatalf("a port in use gives %v", err)
	}
}

func FuzzCheckListen(f *testing.F) {
	for _, s := range []string{"127.0.0.1:0", ":1", "[::1]:2", "[::ffff:127.0.0.1]:3", "localhost:4", "[fe80::1%lo]:5", "0177.0.0.1:6"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, addr string) {
		if httpapi.CheckListen(addr) != nil {
			return
		}
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatalf("%q was taken, but isn't an address", addr)
		}
		if !strings.EqualFold(host, "localhost") {
			if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
				t.Fatalf("%q was taken, but isn't a loopback address", addr)
			}
		}
	})
}
