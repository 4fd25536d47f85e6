package embedded

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gofrs/flock"

	"github.com/swarmlog/swarmlog/internal/broker"
)

const lockName = "lock"

// lock takes the folder for this process; the system gives it back when the process ends, however it ends. The file
// names the process, for people.
func lock(dir string) (*flock.Flock, error) {
	path := filepath.Join(dir, lockName)
	l := flock.New(path)
	ok, err := l.TryLock()
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if !ok {
		return nil, fmt.Errorf("the broker's folder %s is %w%s: end it, or use another folder", dir, broker.ErrInUse, holder(path))
	}
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil {
		_ = l.Unlock()
		return nil, fmt.Errorf("write the process id to %s: %w", path, err)
	}
	return l, nil
}

// holder names the process in a lock file, as far as it does.
func holder(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (process %d)", pid)
}
