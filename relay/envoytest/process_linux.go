package envoytest

import "syscall"

// withParent makes the kernel kill a process when the test process dies, because its cleanups do not run then.
func withParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
