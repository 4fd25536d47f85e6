package httpapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	headerLimit   = 5 * time.Second  // for the head of a request
	requestLimit  = 30 * time.Second // for a whole answer; streams extend it as they go on
	idleLimit     = 60 * time.Second // for a kept connection
	shutdownLimit = 3 * time.Second  // for running requests once the run ends
	headerBytes   = 32 << 10
)

// CheckListen tells whether an address may be listened on: host:port with a
// loopback host. There are no identities yet, so whoever reaches the address
// reads every document.
func CheckListen(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("listen address %q isn't host:port: write it like 127.0.0.1:7070", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("listen address %q has no port between 0 and 65535: write it like 127.0.0.1:7070, or with 0 for any free port", addr)
	} else if isLoopback(host) {
		return nil
	} else if host == "" || strings.Trim(host, "0.:") == "" {
		return fmt.Errorf("listen address %q would serve every network of this machine, and nobody is asked who they are yet: "+
			"write 127.0.0.1:%d, and reach it from elsewhere through an SSH tunnel (ssh -L %d:127.0.0.1:%d HOST)", addr, n, n, n)
	}
	n := port
	return fmt.Errorf("listen address %q isn't a loopback address, and nobody is asked who they are yet: "+
		"write 127.0.0.1:%s, and reach it from elsewhere through an SSH tunnel (ssh -L %s:127.0.0.1:%s HOST)", addr, n, n, n)
}

// ErrPortTaken is wrapped where another program listens on an address already.
var ErrPortTaken = errors.New("another program has the port")

// Listen opens an address that CheckListen takes. The name localhost means
// 127.0.0.1, whatever the machine resolves it to.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	if err := CheckListen(addr); err != nil {
		return nil, err
	}
	return ListenPublic(ctx, addr)
}

// ListenPublic is Listen on any address. Serve nothing there but what Options.Public leaves.
func ListenPublic(ctx context.Context, addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen address %q isn't host:port: write it like 0.0.0.0:7070", addr)
	}
	if strings.EqualFold(host, "localhost") {
		host = "127.0.0.1"
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: %w: choose another one, or 0 for any free port (--listen 127.0.0.1:0)", addr, ErrPortTaken)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("listen on %s: this user may not take that port: choose one above 1023, or 0 for any free port", addr)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w: choose another address with --listen", addr, err)
	}
	return l, nil
}

// closingKey is where a request's context holds the channel that closes when the server shuts down.
type closingKey struct{}

// Serve answers requests until ctx ends, then lets running ones finish for a
// few seconds; streams end at once. It closes the listener. Nil: it ended since
// ctx did.
func Serve(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) error {
	closing := make(chan struct{})
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerLimit,
		ReadTimeout:       requestLimit,
		WriteTimeout:      requestLimit,
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    headerBytes,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context {
			return context.WithValue(context.Background(), closingKey{}, (<-chan struct{})(closing))
		},
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	select {
	case err := <-ended:
		close(closing)
		_ = s.Close() // the error of serving says more
		return fmt.Errorf("serve http on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	close(closing)
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownLimit)
	defer cancel()
	err := s.Shutdown(bounded)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close() // what is still running is cut: the promise is to end
	}
	<-ended //nolint:errcheck // it says that it was shut down
	if err != nil {
		return fmt.Errorf("shut down http on %s: %w", l.Addr(), err)
	}
	return nil
}

// untilClosing is ctx, ended also when the server shuts down.
func untilClosing(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	closing, ok := ctx.Value(closingKey{}).(<-chan struct{})
	if !ok {
		return ctx, cancel
	}
	go func() {
		select {
		case <-closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
