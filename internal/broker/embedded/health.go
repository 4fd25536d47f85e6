package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"
)

var (
	// ErrDamaged says that acknowledged records are gone from the log.
	ErrDamaged = errors.New("the broker's log is damaged")
	// ErrLowSpace says that the disk is nearly full: new topics, and at last records, are refused.
	ErrLowSpace = errors.New("the broker's disk is nearly full")
	// ErrWrite says that the broker couldn't write to its folder.
	ErrWrite = errors.New("the broker couldn't write to its folder")
	// ErrLargeLog is a warning: the log has grown so large that a start after a kill takes much memory.
	ErrLargeLog = errors.New("the broker's log is large")
)

// Health lists what is wrong now; nil is well. Each error wraps one of ErrDamaged, ErrLowSpace, ErrWrite and
// ErrLargeLog, and ends with what to do. Only ErrLargeLog is no more than a warning.
func (s *Server) Health() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []error
	for _, words := range s.damages {
		all = append(all, fmt.Errorf("%w: %s: restore the folder from a backup, or, to go on without these records, move the files in %s away and start again",
			ErrDamaged, words, filepath.Join(s.opts.Dir, damagedName)))
	}
	if s.writeErrors > 0 {
		all = append(all, fmt.Errorf("%w %d times, at last: %s: check the disk, and start again", ErrWrite, s.writeErrors, s.writeError))
	}
	if s.low != nil {
		all = append(all, s.low)
	}
	if s.logBytes >= s.opts.MaxLog {
		all = append(all, fmt.Errorf("%w: %s, and all of it is read into memory by a start after a kill: stop cleanly, and begin a new data folder when this one's work is done, or use a Kafka or Redpanda cluster",
			ErrLargeLog, size(s.logBytes)))
	}
	return all
}

// LogBytes is how much the log has on disk; 0 for a log in memory.
func (s *Server) LogBytes() int64 {
	s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logBytes
}

// watch looks at the disk until the server is closed.
func (s *Server) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
			s.look()
		}
	}
}

// look measures free space and log, and says in the log when either crosses its bound.
func (s *Server) look() {
	if s.opts.Dir == "" {
		return
	}
	free, err := s.opts.free(s.opts.Dir)
	var bytes int64
	if err == nil {
		bytes, err = treeBytes(filepath.Join(s.logDir, "partitions"))
	}

	if err == nil {
		s.policy.setFull(free < s.opts.MinFree/4) // not under mu: the broker logs, which takes mu, under locks of its own
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.noteWriteError(err.Error())
		return
	}
	wasLow, wasLarge := s.low != nil, s.logBytes >= s.opts.MaxLog
	s.low, s.logBytes = s.lowSpace(free), bytes
	if s.low != nil && !wasLow {
		s.log.Error("the embedded broker's disk is nearly full", "free", free, "error", s.low)
	}
	if s.low == nil && wasLow {
		s.log.Info("the embedded broker's disk has room again", "free", free)
	}
	if bytes >= s.opts.MaxLog && !wasLarge {
		s.log.Warn("the embedded broker's log is large: a start after a kill reads all of it into memory", "bytes", bytes)
	}
}

// lowSpace is the error for so many free bytes, or nil where they're enough.
func (s *Server) lowSpace(free int64) error {
	switch {
	case free < s.opts.MinFree/4:
		return fmt.Errorf("%w: %s are free on the disk of %s: records are refused until it's %s: make room",
			ErrLowSpace, size(free), s.opts.Dir, size(s.opts.MinFree/4))
	case free < s.opts.MinFree:
		return fmt.Errorf("%w: %s are free on the disk of %s where %s should be: new topics are refused, records will be: make room",
			ErrLowSpace, size(free), s.opts.Dir, size(s.opts.MinFree))
	}
	return nil
}

// room is asked before topics are created: on a full disk the broker would call a topic created that isn't.
func (s *Server) room() error {
	if s.opts.Dir == "" {
		return nil
	}
	free, err := s.opts.free(s.opts.Dir)
	if err != nil {
		return err
	}
	return s.lowSpace(free)
}

// treeBytes adds up the files under a folder, passing over those that go meanwhile.
func treeBytes(dir string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				sum += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measure the broker's log: %w", err)
	}
	return sum, nil
}

func size(n int64) string {
	const mib = 1 << 20
	switch {
	case n >= 1024*mib:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1024*mib))
	case n >= mib:
		return fmt.Sprintf("%.1f MiB", float64(n)/mib)
	}
	return fmt.Sprintf("%d bytes", n)
}
