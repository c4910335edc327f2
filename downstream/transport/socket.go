package transport

import (
	"net"
	"syscall"
)

// A socket is an accepted connection below TLS.
type socket struct {
	net.Conn
	raw syscall.RawConn // nil if the connection is not a socket: then each write blocks in a goroutine

	// The state of tryWrite, of which only one call runs at a time. As fields, they need no allocation.
	try func(fd uintptr) bool // the method value write; nil before the first call
	out output
}

// An output is what tryWrite writes.
type output struct {
	rest     [][]byte
	wait     bool // block until the socket accepts something
	progress bool // the socket has accepted something
	err      error
}

func newSocket(conn net.Conn) socket {
	s := socket{Conn: conn}
	switch conn := conn.(type) {
	case *net.TCPConn:
		s.raw = rawOf(conn)
	case *net.UnixConn:
		s.raw = rawOf(conn)
	}
	return s
}

// closeWrite closes the sending side, and reports whether the connection can do that.
func (s *socket) closeWrite() bool {
	half, is := s.Conn.(interface{ CloseWrite() error })
	return is && half.CloseWrite() == nil
}

// shutdown makes pending and later reads and writes fail. It does not wait for them, as Close of a socket does.
func (s *socket) shutdown() {
	half, is := s.Conn.(interface {
		CloseRead() error
		CloseWrite() error
	})
	if !is || s.raw == nil {
		_ = s.Close() // the error concerns nobody
		return
	}
	_ = half.CloseRead()
	_ = half.CloseWrite() // both fail if the client has disconnected
}
