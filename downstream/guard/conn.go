package guard

import (
	"net"

	"google.golang.org/grpc/mem"
)

// A grpcConn is a charged connection that gRPC reads and writes.
type grpcConn struct {
	net.Conn
	waiting *waitingReader // nil: a read holds a buffer while it waits
	first   []byte         // receives the first bytes that arrive, if waiting is nil
	full    bool           // the last read filled its buffer, so that more bytes may follow
	account *Account
	guard   *Guard
	end     func()
}

// firstBytes is the size of the buffer in which a connection waits that cannot wait without one. An ACK fits; what follows
// in a larger request is read into a buffer of the size that gRPC asks for.
const firstBytes = 256

// Read implements net.Conn.
func (c *grpcConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:c.account.AwaitRead(len(b))])
	if refused := c.received(b[:n]); refused != nil {
		return 0, refused
	}
	return n, err
}

// received charges for bytes that were read. The error means that they exceed a limit, and ends the connection.
func (c *grpcConn) received(b []byte) error {
	err := c.account.received(b)
	if err != nil {
		c.account.refused.Store(true)
		c.guard.connectionRefused(c.account.peer, err)
	}
	c.guard.reportThrottled(c.account.peer, c.account.throttle())
	return err
}

// Write implements net.Conn. A failed write ends the connection, since gRPC closes the raw connection instead of this
// one until it has taken this one over.
func (c *grpcConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.end()
	}
	return n, err
}

// ReadOnReady reads into a buffer from pool, which gRPC then owns. An idle connection holds no such buffer, which would be
// most of its memory.
func (c *grpcConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	size = c.account.AwaitRead(size)
	var b *[]byte
	var n int
	var err error
	switch {
	case c.waiting != nil:
		b, n, err = c.waiting.read(size, pool)
	case c.full:
		b = pool.Get(size)
		n, err = c.Conn.Read(*b)
		c.full = n == size
	default:
		b, n, err = c.readFirst(size, pool)
	}
	if b == nil {
		return nil, n, err
	}
	if refused := c.received((*b)[:n]); refused != nil {
		n, err = 0, refused
	}
	if n == 0 {
		pool.Put(b)
		return nil, 0, err
	}
	return b, n, err // both, since TLS may return the last bytes with io.EOF
}

// readFirst reads the first bytes that arrive. The pool cannot provide the buffer in which to wait: it returns buffers of the
// size that gRPC asks for, whatever size is requested.
func (c *grpcConn) readFirst(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if c.first == nil {
		c.first = make([]byte, firstBytes)
	}
	first := c.first[:min(size, firstBytes)]
	n, err := c.Conn.Read(first)
	if n == 0 {
		return nil, 0, err
	}
	b := pool.Get(size)
	copy(*b, first[:n])
	c.full = n == len(first)
	return b, n, err
}

// Close implements net.Conn.
func (c *grpcConn) Close() error {
	c.end()
	return c.Conn.Close()
}
