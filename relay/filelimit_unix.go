//go:build unix

package relay

import "syscall"

// fileLimit returns the limit of open files of the process; ok is false if it is unknown. The Go runtime has raised the
// soft limit to the hard limit at the start (package os).
func fileLimit() (limit uint64, ok bool) {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return 0, false
	}
	return uint64(r.Cur), true //nolint:unconvert // signed on some systems
}
