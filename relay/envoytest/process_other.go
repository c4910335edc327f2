//go:build !linux

package envoytest

import "syscall"

// withParent does nothing where the kernel cannot kill a process when its parent dies.
func withParent() *syscall.SysProcAttr { return nil }
