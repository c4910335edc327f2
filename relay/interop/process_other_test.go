//go:build !linux

package interop_test

import "syscall"

// withParent has nothing to set: only Linux ends processes with their parent.
func withParent() *syscall.SysProcAttr { return nil }
