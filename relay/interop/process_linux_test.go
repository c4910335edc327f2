package interop_test

import "syscall"

// withParent has a process end when the test process does.
func withParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
