package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// peak follows the most memory that a process has held. The kernel keeps it, so only what happens between the last
// look and the end is missed.
type peak struct {
	once  sync.Once
	stopc chan struct{}
	done  chan struct{}
	bytes int64
}

func watchPeak(pid int) *peak {
	p := &peak{stopc: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			if n := residentPeak(pid); n > p.bytes {
				p.bytes = n
			}
			select {
			case <-tick.C:
			case <-p.stopc:
				return
			}
		}
	}()
	return p
}

func (p *peak) stop() int64 {
	p.once.Do(func() { close(p.stopc) })
	<-p.done
	return p.bytes
}

// residentPeak is VmHWM, unlike ru_maxrss free of what the starting process held.
func residentPeak(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			return kb << 10
		}
	}
	return 0
}

// ticks is how long a process has been running on processors, in hundredths of a second.
func ticks(t testing.TB, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err1 != nil || err2 != nil {
		t.Fatalf("read /proc/%d/stat: %v, %v", pid, err1, err2)
	}
	return user + system
}
