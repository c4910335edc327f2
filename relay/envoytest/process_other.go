//go:build !linux

package envoytest

import "syscall"

// withParent does nothing on systems that cannot kill a process when its parent dies.
func withParent() *syscall.SysProcAttr { return nil }
