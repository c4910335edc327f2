//go:build !unix

package snapshot

import (
	"errors"
	"os"
)

// flock returns an error: without a lock, two processes could use the same directory.
func flock(*os.File) error { return errors.ErrUnsupported }

// checkOwner accepts every directory, because file modes have no meaning on this platform.
func checkOwner(string) error { return nil }
