//go:build unix

package guard

import (
	"errors"
	"io"
	"net"
	"syscall"

	"google.golang.org/grpc/mem"
)

// A waitingReader waits until a socket is readable, and takes a buffer only then. gRPC does the same, but only for
// connection types that it knows.
type waitingReader struct {
	raw syscall.RawConn

	// The state of the current read. As fields, they need no allocation.
	try  func(fd uintptr) (done bool)
	size int
	pool mem.BufferPool
	b    *[]byte
	n    int
	err  error
}

// newWaitingReader returns nil for a connection whose bytes differ from those on its socket, such as TLS.
func newWaitingReader(conn net.Conn) *waitingReader {
	switch conn.(type) {
	case *net.TCPConn, *net.UnixConn:
	default:
		return nil
	}
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil
	}
	r := &waitingReader{raw: raw}
	r.try = func(fd uintptr) bool {
		r.b = r.pool.Get(r.size)
		if r.n, r.err = syscall.Read(int(fd), *r.b); r.n <= 0 {
			r.pool.Put(r.b)
			r.b, r.n = nil, 0
		}
		return !errors.Is(r.err, syscall.EAGAIN)
	}
	return r
}

// read returns a buffer from the pool and the number of bytes read into it.
func (r *waitingReader) read(size int, pool mem.BufferPool) (b *[]byte, n int, err error) {
	r.size, r.pool = size, pool
	if err := r.raw.Read(r.try); err != nil {
		return nil, 0, err
	}
	b, n, err = r.b, r.n, r.err
	r.pool, r.b, r.err = nil, nil, nil
	if b == nil && err == nil {
		err = io.EOF
	}
	return b, n, err
}
