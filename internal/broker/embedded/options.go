package embedded

import (
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"time"
)

const (
	defaultMinFree = 256 << 20
	defaultMaxLog  = 1 << 30
	watchEvery     = 5 * time.Second
	closeWait      = 30 * time.Second
)

// Options say where the broker keeps its log and listens. The zero value is a broker in memory on a free port.
type Options struct {
	// Dir is the folder of the log; it's made where it doesn't exist. "" keeps the log in memory, for tests.
	Dir string
	// Addr is the loopback address to listen on, such as 127.0.0.1:9092; default 127.0.0.1:0, a free port. Where its
	// port is taken by another process, a free one is taken instead: Server.Addr says which.
	Addr   string
	Logger *slog.Logger // default: nothing is logged

	MinFree int64 // bytes that should stay free on the folder's disk; default 256 MiB
	MaxLog  int64 // bytes of log from which on Health warns; default 1 GiB. After a kill the whole log is read into memory.

	free func(dir string) (int64, error) // free bytes; tests put their own
}

func (o Options) withDefaults() (Options, error) {
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	host, port, err := net.SplitHostPort(o.Addr)
	if err != nil {
		return o, fmt.Errorf("start the embedded broker: address %q: %w: write it as 127.0.0.1:9092", o.Addr, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return o, fmt.Errorf("start the embedded broker: address %q: port %q is no number from 0 to 65535", o.Addr, port)
	}
	if host != "localhost" {
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			return o, fmt.Errorf("start the embedded broker: address %q isn't a loopback address: it has no authentication, so it listens on 127.0.0.1 only", o.Addr)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MinFree <= 0 {
		o.MinFree = defaultMinFree
	}
	if o.MaxLog <= 0 {
		o.MaxLog = defaultMaxLog
	}
	if o.free == nil {
		o.free = freeBytes
	}
	return o, nil
}
