package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// truncating is what kfake says, with topic, partition, segment and bytes, just before it cuts a segment off.
const truncating = "partition %s-%d segment %d: truncating %d corrupt bytes"

// hook is the broker's logger: some of its lines are the only sign of a loss.
type hook struct{ s *Server }

func (h hook) Logf(level kfake.LogLevel, format string, args ...any) {
	if format == truncating && len(args) == 4 {
		topic, ok1 := args[0].(string)
		partition, ok2 := args[1].(int32)
		base, ok3 := args[2].(int64)
		bytes, ok4 := args[3].(int)
		if ok1 && ok2 && ok3 && ok4 {
			h.s.truncated(cut{topic, partition, base, int64(bytes)})
			return
		}
	}
	at := slog.LevelDebug
	switch level {
	case kfake.LogLevelError:
		at = slog.LevelError
	case kfake.LogLevelWarn:
		at = slog.LevelWarn
	}
	if at == slog.LevelDebug && !h.s.log.Enabled(context.Background(), at) {
		return
	}
	text := fmt.Sprintf(format, args...)
	if level <= kfake.LogLevelWarn && isWriteError(text) {
		h.s.mu.Lock()
		h.s.noteWriteError(text)
		h.s.mu.Unlock()
	}
	h.s.log.Log(context.Background(), at, "embedded broker: "+text)
}

// isWriteError tells whether a warning says that state didn't reach the disk.
func isWriteError(text string) bool {
	for _, start := range []string{"persist ", "save session state", "compact groups.log", "compact pids.log"} {
		if strings.HasPrefix(text, start) {
			return true
		}
	}
	return strings.Contains(text, "truncate: ") || strings.Contains(text, "failed to persist")
}

// noteWriteError is called under mu.
func (s *Server) noteWriteError(text string) {
	s.writeErrors++
	s.writeError = text
}

// truncated is called before the broker cuts a segment off. Partitions are loaded side by side, so several may be.
func (s *Server) truncated(c cut) {
	torn, next, tail, err := c.examine(s.logDir)
	if err != nil {
		s.log.Error("can't read what is cut off a damaged segment", "path", c.path(s.logDir), "error", err)
	}
	if torn {
		s.log.Info("dropped a batch that was being written when the broker was killed; it wasn't acknowledged",
			"topic", c.topic, "partition", c.partition, "offset", next, "bytes", c.bytes)
		return
	}
	s.damage(c.topic, c.partition, next, tail, fmt.Sprintf(
		"%d bytes of partition %s/%d, in the segment of offset %d, can't be read from offset %d on and were cut off, with all that follows them in that segment",
		c.bytes, c.topic, c.partition, c.base, next))
}

// damage takes note of lost records, here and in the folder, where it outlives the process.
func (s *Server) damage(topic string, partition int32, offset int64, tail []byte, words string) {
	name := damageName(topic, partition, offset, time.Now())
	if err := keep(s.opts.Dir, name, words, tail); err != nil {
		s.log.Error("can't keep what was cut off a damaged segment", "topic", topic, "partition", partition, "error", err)
	}
	s.log.Error("the embedded broker's log is damaged", "topic", topic, "partition", partition, "offset", offset, "detail", words)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.damages = append(s.damages, words)
	s.damaged[place{topic, partition}] = true
}

func (s *Server) knows(topic string, partition int32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.damaged[place{topic, partition}]
}
