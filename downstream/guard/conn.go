package guard

import (
	"net"

	"google.golang.org/grpc/mem"
)

// A grpcConn is a charged connection that gRPC reads and writes.
type grpcConn struct {
	net.Conn
	waiting *waitingReader // nil: a buffer is held while nothing comes
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

// received charges for what was read. The error says that it exceeds a limit, and ends the connection.
func (c *grpcConn) received(b []byte) error {
	err := c.account.received(b)
	if err != nil {
		c.account.rejected.Store(true)
		c.guard.connectionRejected(c.account.peer, err)
	}
	c.guard.throttled(c.account.peer, c.account.throttle())
	return err
}

// Write implements net.Conn. A failed write ends the connection: before gRPC has taken the connection over, it closes
// the raw one, and not this one.
func (c *grpcConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		c.end()
	}
	return n, err
}

// ReadOnReady reads into a buffer from pool, which gRPC then owns. Idle connections in plaintext hold no buffer, which
// would be most of their memory.
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
	return b, n, err // both: over TLS the last bytes come with the end
}

// Close implements net.Conn.
func (c *grpcConn) Close() error {
	c.end()
	return c.Conn.Close()
}
