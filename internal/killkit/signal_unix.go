//go:build unix

package killkit

import "syscall"

const (
	killSignal     = syscall.SIGKILL
	termSignal     = syscall.SIGTERM
	stopSignal     = syscall.SIGSTOP
	continueSignal = syscall.SIGCONT
)

// signalGroup signals all of a group.
func signalGroup(pid int, s syscall.Signal) error { return syscall.Kill(-pid, s) }
