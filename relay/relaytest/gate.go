package relaytest

import (
	"context"
	"net"
	"sync"
)

// A gate is the listener of one gRPC server. The origin's listener stays open behind it, so that a server can drain
// while another accepts connections.
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

// pass hands a connection to the server, or closes it if the gate is closed.
func (g *gate) pass(c net.Conn) {
	select {
	case g.conns <- c:
	case <-g.closed:
		_ = c.Close() // the peer receives the end of the connection
	}
}

// A connection is an accepted connection of the origin. It is counted, and can be frozen.
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

// awaitThaw blocks while the origin is frozen.
func (c *connection) awaitThaw() {
	// Not bounded by Patience: Close ends the wait.
	_ = c.origin.mon.Wait(context.Background(), func() bool { return !c.origin.frozen || c.closed })
}

func (c *connection) Close() error {
	o := c.origin
	o.mon.Lock()
	if !c.closed {
		c.closed = true
		o.record.OpenConnections--
		o.mon.Changed()
	}
	o.mon.Unlock()
	return c.Conn.Close()
}
