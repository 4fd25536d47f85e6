//go:build linux || darwin || freebsd

package embedded

import (
	"fmt"
	"syscall"
)

// freeBytes is what an ordinary user may still write to the disk that a folder is on.
func freeBytes(dir string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("read free space of %s: %w", dir, err)
	}
	return int64(uint64(s.Bavail) * uint64(s.Bsize)), nil //nolint:unconvert // the fields' types differ between systems
}
