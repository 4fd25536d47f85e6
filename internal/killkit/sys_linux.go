package killkit

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes make the child the head of a group, and make it die with the thread that starts it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit returns when the process has ended, and leaves it to be waited for: till then its id stays its own. It
// answers whether it could.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
