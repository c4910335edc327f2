//go:build unix

package transport

import (
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// rawOf returns the raw connection of a socket, nil if it has none.
func rawOf(conn syscall.Conn) syscall.RawConn {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// readRaw reads and handles input from the socket until the connection ends. It handles input in the callback: a
// callback that returns false waits without another read, which would only return EAGAIN after a short read.
func (c *Conn) readRaw() (err error) {
	read := func(fd uintptr) (done bool) {
		done, err = c.readAll(int(fd))
		return done
	}
	if waitErr := c.socket.raw.Read(read); err == nil {
		err = waitErr
	}
	return err
}

// readAll reads and handles what the socket has. It reports whether the connection has ended.
func (c *Conn) readAll(fd int) (done bool, err error) {
	for {
		space := c.in.space()
		space = space[:c.entry.Account.AwaitRead(len(space))]
		n, err := unix.Read(fd, space)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			c.in.drop()
			return false, nil
		case err == nil && n == 0:
			err = io.EOF
		}
		if err == nil {
			err = c.took(n)
		}
		if err != nil {
			return true, err
		}
		if n < len(space) {
			return false, nil
		}
	}
}

// tryWrite writes pieces without blocking, and returns what the socket does not accept. With wait it blocks until the
// socket accepts something.
func (s *socket) tryWrite(pieces [][]byte, wait bool) (rest [][]byte, err error) {
	if s.try == nil {
		s.try = s.write
	}
	s.out = output{rest: pieces, wait: wait}
	failed := s.raw.Write(s.try)
	rest, err = s.out.rest, s.out.err
	s.out = output{}
	if err == nil {
		err = failed
	}
	return rest, err
}

// write is the callback of RawConn.Write for out. It returns false to wait until the socket is writable.
func (s *socket) write(fd uintptr) bool {
	out := &s.out
	for len(out.rest) > 0 {
		n, err := writev(int(fd), out.rest)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return !out.wait || out.progress
		case err != nil:
			out.err = err
			return true
		default:
			out.rest, out.progress = skip(out.rest, n), true
		}
	}
	return true
}

// writev writes pieces with one system call, and returns the number of written bytes.
func writev(fd int, pieces [][]byte) (int, error) {
	if len(pieces) == 1 {
		return unix.Write(fd, pieces[0])
	}
	return unix.Writev(fd, pieces)
}
