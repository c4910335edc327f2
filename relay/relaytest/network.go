package relaytest

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
)

// memoryBuffer is how many bytes an in-memory connection holds each way.
const memoryBuffer = 256 << 10

// refusesFor is how long a [Memory] without a listener refuses every connection at once.
const refusesFor = time.Minute

// A Memory is an in-memory network with one address, which outlives its listeners. The zero value has no listener.
//
// Without a listener, connections are refused at once. After a minute, Dial instead waits for a listener or the end of its
// context: gRPC dials every second, which would dominate the cost of a test with a virtual hour without an origin.
type Memory struct {
	mu       sync.Mutex
	listener *PipeListener // guarded by mu; the last one
	refusing time.Time     // guarded by mu; the first refusal since the last Listen, zero if none
	listens  chan struct{} // guarded by mu; closed by the next Listen, nil if no Dial waits
}

// Listen replaces the listener, if there is one, which the caller closes.
func (m *Memory) Listen() *PipeListener {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listener, m.refusing = ListenPipe(memoryBuffer), time.Time{}
	if m.listens != nil {
		close(m.listens)
		m.listens = nil
	}
	return m.listener
}

// Dial connects to the last listener, and is refused if there is none.
func (m *Memory) Dial(ctx context.Context) (net.Conn, error) {
	for {
		m.mu.Lock()
		l := m.listener
		m.mu.Unlock()
		if l != nil {
			if conn, err := l.Dial(ctx); !errors.Is(err, syscall.ECONNREFUSED) {
				return conn, err
			}
		}
		listens := m.refuse(l)
		if listens == nil {
			return nil, refused()
		}
		select {
		case <-listens:
		case <-ctx.Done():
			return nil, refused()
		}
	}
}

// refuse notes that there was no connection from a listener, nil if there is none. It
// returns a channel to wait on for the next listener, or nil to refuse at once.
func (m *Memory) refuse(l *PipeListener) <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.listener != l {
		return nil // a new one, which the next attempt finds
	}
	if m.refusing.IsZero() {
		m.refusing = time.Now()
	}
	if time.Since(m.refusing) < refusesFor {
		return nil
	}
	if m.listens == nil {
		m.listens = make(chan struct{})
	}
	return m.listens
}

// DialOption has a gRPC client dial this network, whatever the address.
func (m *Memory) DialOption() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return m.Dial(ctx) })
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
		_ = c.Close() // the peer receives the end of the connection
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
