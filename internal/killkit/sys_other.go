//go:build !unix

package killkit

import (
	"errors"
	"os"
	"syscall"
)

const (
	killSignal     = syscall.SIGKILL
	termSignal     = syscall.SIGTERM
	stopSignal     = syscall.Signal(-1)
	continueSignal = syscall.Signal(-2)
)

func attributes() *syscall.SysProcAttr { return nil }

func awaitExit(int) bool { return false }

// signalGroup can only kill the process itself here.
func signalGroup(pid int, s syscall.Signal) error {
	if s != killSignal {
		return errors.ErrUnsupported
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}
