//go:build unix

package snapshot

import (
	"errors"
	"os"
	"syscall"
)

// flock locks a file until it is closed, also by the end of the process.
func flock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}
