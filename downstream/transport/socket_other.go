//go:build !unix

package transport

import (
	"errors"
	"syscall"
)

// rawOf returns nil: reads and writes are those of package net.
func rawOf(syscall.Conn) syscall.RawConn { return nil }

var errNoSocket = errors.New("not a socket")

// readRaw is not called.
func (c *Conn) readRaw() error { return errNoSocket }

// tryWrite is not called.
func (s *socket) tryWrite(pieces [][]byte, _ bool) (rest [][]byte, err error) {
	return pieces, errNoSocket
}
