//go:build unix

package snapshot

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// checkOwner returns ErrNotOwned unless the directory belongs to the user of the process or to root, and others may not
// write to it. The group may write to it, because Kubernetes gives volumes to pods by group.
func checkOwner(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	const byOthers = 0o002
	if mode := info.Mode().Perm(); mode&byOthers != 0 {
		return fmt.Errorf("%w: its mode is %#o; use a new directory below it, or chmod o-w", ErrNotOwned, mode)
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
		return fmt.Errorf("%w: it belongs to user %d, and the process runs as %d", ErrNotOwned, s.Uid, os.Geteuid())
	}
	return nil
}

// flock locks a file until the file is closed or the process ends.
func flock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}
