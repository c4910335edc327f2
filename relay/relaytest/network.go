package relaytest

import (
	"context"
	"net"
	"sync"
	"syscall"

	"google.golang.org/grpc/test/bufconn"
)

// memoryBuffer is how many bytes an in-memory connection holds each way.
const memoryBuffer = 256 << 10

// A memory is a network of one address that outlives the listeners on it.
type memory struct {
	mu       sync.Mutex
	listener *memoryListener // guarded by mu; the last one
}

// A memoryListener says when it is closed. To dial a closed listener of bufconn costs the
// buffers of a connection, and relays that have lost an origin dial for hours.
type memoryListener struct {
	*bufconn.Listener
	closed chan struct{}
	close  func() error
}

func (l *memoryListener) Close() error { return l.close() }

func (m *memory) listen() net.Listener {
	l := &memoryListener{Listener: bufconn.Listen(memoryBuffer), closed: make(chan struct{})}
	l.close = sync.OnceValue(func() error {
		close(l.closed)
		return l.Listener.Close()
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listener = l
	return l
}

func (m *memory) dial(ctx context.Context) (net.Conn, error) {
	m.mu.Lock()
	l := m.listener
	m.mu.Unlock()
	select {
	case <-l.closed:
	default:
		if c, err := l.DialContext(ctx); err == nil {
			return c, nil
		}
	}
	return nil, &net.OpError{Op: "dial", Net: "bufconn", Addr: l.Addr(), Err: syscall.ECONNREFUSED}
}

// A gate is the listener of one gRPC server. The origin's own listener stays
// open behind it, so that a server can drain while another takes over.
type gate struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newGate(addr net.Addr) *gate {
	return &gate{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (g *gate) Addr() net.Addr { return g.addr }

func (g *gate) Close() error {
	g.once.Do(func() { close(g.closed) })
	return nil
}

func (g *gate) Accept() (net.Conn, error) {
	select {
	case c := <-g.conns:
		return c, nil
	case <-g.closed:
		return nil, net.ErrClosed
	}
}

func (g *gate) pass(c net.Conn) {
	select {
	case g.conns <- c:
	case <-g.closed:
		_ = c.Close() // the peer sees it; there is nobody else to tell
	}
}

// A connection is one that the origin accepted: counted, and it can be frozen.
type connection struct {
	net.Conn
	origin *Origin
	closed bool // guarded by origin.mon
}

func (c *connection) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.awaitThaw()
	return n, err
}

func (c *connection) Write(b []byte) (int, error) {
	c.awaitThaw()
	return c.Conn.Write(b)
}

func (c *connection) awaitThaw() {
	// Not bounded by Patience: Close ends the wait.
	_ = c.origin.mon.wait(context.Background(), func() bool { return !c.origin.frozen || c.closed })
}

func (c *connection) Close() error {
	o := c.origin
	o.mon.Lock()
	if !c.closed {
		c.closed = true
		o.record.OpenConnections--
		o.mon.changed()
	}
	o.mon.Unlock()
	return c.Conn.Close()
}
