//go:build !linux

package main

import "runtime/debug"

// releaseMemory returns memory to the operating system.
func releaseMemory() { debug.FreeOSMemory() }
