package postgres

import (
	"syscall"
	"time"
)

const tcpUserTimeout = 0x12 // TCP_USER_TIMEOUT, which package syscall has no name for

// unanswered ends connections whose peer acknowledges nothing for some time. Keep-alives tell of idle connections
// alone: on a lost way, data that was sent would be sent again for a quarter of an hour.
func unanswered(limit time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) (err error) {
		if network == "unix" {
			return nil
		}
		if failed := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(limit.Milliseconds()))
		}); failed != nil {
			return failed
		}
		return err
	}
}
