//go:build !linux

package postgres

import (
	"syscall"
	"time"
)

// unanswered leaves the system's own limits as they are: only Linux lets a program set them for a connection.
func unanswered(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
