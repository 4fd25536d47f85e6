//go:build unix && !linux

package killkit

import "syscall"

// attributes make the child the head of a group.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit can't look without taking, here: what a process leaves of its group when it ends by itself stays.
func awaitExit(int) bool { return false }
