package guard

import (
	"net"

	"google.golang.org/grpc/mem"
)

// A grpcConn is a charged connection that gRPC reads and writes.
type grpcConn struct {
	net.Conn
	waiting *waitingReader // nil: a read holds a buffer while it waits
	account *Account
	guard   *Guard
	end     func()
}

// Read implements net.Conn.
func (c *grpcConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:c.account.awaitRead(len(b))])
	if rejected := c.received(b[:n]); rejected != nil {
		return 0, rejected
	}
	return n, err
}

// received charges for bytes that were read. The error means that they exceed a limit, and ends the connection.
func (c *grpcConn) received(b []byte) error {
	err := c.account.received(b)
	if err != nil {
		c.account.rejected.Store(true)
		c.guard.connectionRejected(c.account.peer, err)
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

// ReadOnReady reads into a buffer from pool, which gRPC then owns. An idle plaintext connection holds no buffer, which
// would be most of its memory.
func (c *grpcConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	size = c.account.awaitRead(size)
	var b *[]byte
	var n int
	var err error
	if c.waiting != nil {
		b, n, err = c.waiting.read(size, pool)
	} else {
		b = pool.Get(size)
		n, err = c.Conn.Read(*b)
	}
	if b == nil {
		return nil, n, err
	}
	if rejected := c.received((*b)[:n]); rejected != nil {
		n, err = 0, rejected
	}
	if n == 0 {
		pool.Put(b)
		return nil, 0, err
	}
	return b, n, err // both, since TLS may return the last bytes with io.EOF
}

// Close implements net.Conn.
func (c *grpcConn) Close() error {
	c.end()
	return c.Conn.Close()
}
