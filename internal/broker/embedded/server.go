package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/gofrs/flock"
	"github.com/twmb/franz-go/pkg/kfake"
)

const (
	clusterID = "swarmlog-embedded"
	bigStart  = 32 << 20 // bytes of log from which on a start leaves much memory to give back
)

// Server is a running broker.
type Server struct {
	opts    Options
	logDir  string // kfake's own folder, inside Dir
	log     *slog.Logger
	addr    string
	lock    *flock.Flock
	cluster *kfake.Cluster
	policy  *policy
	stop    chan struct{}
	watched sync.WaitGroup

	closing  sync.Once
	closeErr error

	mu          sync.Mutex
	damages     []string
	damaged     map[place]bool
	writeErrors int
	writeError  string
	low         error
	logBytes    int64
}

type place struct {
	topic     string
	partition int32
}

// Start starts the broker and returns once it answers, which takes about a second for each GiB of log. ctx bounds
// nothing but the beginning: a start isn't broken off halfway. A folder that another process has is an error that
// wraps broker.ErrInUse and names that process. A damaged log starts: ask Health.
func Start(ctx context.Context, opts Options) (*Server, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	s := &Server{opts: opts, log: opts.Logger, stop: make(chan struct{}), damaged: map[place]bool{}}
	var before []snapshot
	if opts.Dir != "" {
		if before, err = s.openDir(); err != nil {
			return nil, fmt.Errorf("start the embedded broker: %w", err)
		}
	}
	if err := s.run(); err != nil {
		s.unlock()
		return nil, fmt.Errorf("start the embedded broker: %w", err)
	}
	s.verify(before, s.cluster)
	s.look()
	if s.logBytes > bigStart {
		debug.FreeOSMemory() // what was read to start isn't needed again, and an idle process wouldn't give it back for minutes
	}
	if opts.Dir != "" {
		s.watched.Go(s.watch)
	}
	return s, nil
}

// openDir takes the folder and reads what is to be known before the broker changes it.
func (s *Server) openDir() ([]snapshot, error) {
	s.logDir = filepath.Join(s.opts.Dir, "log")
	if err := os.MkdirAll(s.logDir, 0o755); err != nil {
		return nil, fmt.Errorf("make the broker's folder: %w", err)
	}
	var err error
	if s.lock, err = lock(s.opts.Dir); err != nil {
		return nil, err
	}
	var before []snapshot
	if s.damages, err = kept(s.opts.Dir); err == nil {
		before, err = snapshots(s.logDir)
	}
	if err != nil {
		s.unlock()
		return nil, err
	}
	return before, nil
}

// run listens and starts kfake.
func (s *Server) run() error {
	listener, err := listen(s.opts.Addr, s.log)
	if err != nil {
		return err
	}
	s.addr = listener.Addr().String()
	kopts := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.ClusterID(clusterID),
		kfake.ListenFn(func(string, string) (net.Listener, error) { return guarded{listener}, nil }),
		kfake.MaxVersions(offered()),
		kfake.BrokerConfigs(settings()),
		kfake.WithLogger(hook{s}),
	}
	if s.opts.Dir != "" {
		kopts = append(kopts, kfake.DataDir(s.logDir), kfake.SyncWrites())
	}
	if s.cluster, err = kfake.NewCluster(kopts...); err != nil {
		return errors.Join(err, ignoreClosed(listener.Close()))
	}
	s.policy = &policy{cluster: s.cluster, room: s.room}
	s.policy.install()
	return nil
}

// listen takes the address, or a free port of its host where the port is taken.
func listen(addr string, log *slog.Logger) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err == nil {
		return l, nil
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	if l, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
		return nil, fmt.Errorf("listen on a free port of %s: %w", host, err)
	}
	log.Warn("the broker's port is taken by another process, listening on a free one",
		"wanted", addr, "addr", l.Addr().String())
	return l, nil
}

// Addr is the address that clients connect to, host:port.
func (s *Server) Addr() string { return s.addr }

// Close stops the broker cleanly, so that the next start makes no copies, and gives its folder back. It is idempotent,
// and waits for at most half a minute: what then isn't written stays as a kill would leave it, and the folder stays
// locked until this process ends.
func (s *Server) Close() error {
	s.closing.Do(func() {
		close(s.stop)
		s.watched.Wait()
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.cluster.Close()
		}()
		select {
		case <-done:
			s.unlock()
		case <-time.After(closeWait):
			s.closeErr = fmt.Errorf("stop the embedded broker: it didn't write its state within %s: check the disk of %s", closeWait, s.opts.Dir)
		}
	})
	return s.closeErr
}

func (s *Server) unlock() {
	if s.lock == nil {
		return
	}
	if err := s.lock.Unlock(); err != nil {
		s.log.Error("can't unlock the broker's folder", "path", s.lock.Path(), "error", err)
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
