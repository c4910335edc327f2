package envoytest

import "syscall"

// withParent has the kernel kill a process when the test process dies, whose clean-up then never runs.
func withParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
