package memnet

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
)

// A Listener accepts connections in memory. A connection buffers a fixed number of bytes each way, takes memory only for
// bytes that are written and not read yet, supports deadlines, and has no timer without a deadline.
//
// Connections of gRPC's bufconn have timers that fire when they are made. Two goroutines of a testing/synctest bubble
// whose timers fire at the same time crash the race detector (Go 1.26).
type Listener struct {
	most   int
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

// Listen returns a network whose connections hold so many bytes each way.
func Listen(most int) *Listener {
	l := &Listener{most: most, conns: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// Dial connects, once the connection is accepted. It is refused when the listener is closed.
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case <-l.closed: // first of all: somebody may still be about to accept
		return nil, refused()
	default:
	}
	there, back := newDirection(l.most), newDirection(l.most)
	select {
	case l.conns <- &pipeConn{in: there, out: back}:
		return &pipeConn{in: back, out: there}, nil
	case <-l.closed:
		return nil, refused()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func refused() error {
	return &net.OpError{Op: "dial", Net: "pipe", Addr: pipeAddr{}, Err: syscall.ECONNREFUSED}
}

// DialOption has a gRPC client dial this network, whatever the address.
func (l *Listener) DialOption() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.Dial(ctx) })
}

// Accept waits for the next connection. It returns net.ErrClosed after Close.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and refuses new connections. Open connections stay.
func (l *Listener) Close() error { l.close(); return nil }

// Addr returns a placeholder address.
func (l *Listener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

// A pipeConn is one end of a connection.
type pipeConn struct{ in, out *direction }

func (c *pipeConn) Read(b []byte) (int, error)  { return c.in.read(b) }
func (c *pipeConn) Write(b []byte) (int, error) { return c.out.write(b) }
func (c *pipeConn) LocalAddr() net.Addr         { return pipeAddr{} }
func (c *pipeConn) RemoteAddr() net.Addr        { return pipeAddr{} }

func (c *pipeConn) Close() error {
	c.in.end(&c.in.left)
	c.out.end(&c.out.ended)
	return nil
}

func (c *pipeConn) SetReadDeadline(t time.Time) error {
	c.in.set(&c.in.readBy, t)
	return nil
}

func (c *pipeConn) SetWriteDeadline(t time.Time) error {
	c.out.set(&c.out.writeBy, t)
	return nil
}

func (c *pipeConn) SetDeadline(t time.Time) error {
	c.in.set(&c.in.readBy, t)
	c.out.set(&c.out.writeBy, t)
	return nil
}

// A direction is one way of a connection.
type direction struct {
	most int

	mu      sync.Mutex
	changed *sync.Cond // what is below, all guarded by mu
	unread  []byte
	buffer  []byte // the largest that unread was in
	left    bool   // the reader has closed
	ended   bool   // the writer has closed
	readBy  deadline
	writeBy deadline
}

func newDirection(most int) *direction {
	d := &direction{most: most}
	d.changed = sync.NewCond(&d.mu)
	return d
}

func (d *direction) read(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		switch {
		case d.left:
			return 0, net.ErrClosed
		case d.readBy.passed:
			return 0, os.ErrDeadlineExceeded
		case len(b) == 0:
			return 0, nil
		case len(d.unread) > 0:
			n := copy(b, d.unread)
			d.unread = d.unread[n:]
			d.changed.Broadcast()
			return n, nil
		case d.ended:
			return 0, io.EOF
		}
		d.changed.Wait()
	}
}

func (d *direction) write(b []byte) (written int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		room := d.most - len(d.unread)
		switch {
		case d.ended:
			return written, net.ErrClosed
		case d.left:
			return written, syscall.EPIPE
		case d.writeBy.passed:
			return written, os.ErrDeadlineExceeded
		case written == len(b):
			return written, nil
		case room > 0:
			n := min(room, len(b)-written)
			d.add(b[written : written+n])
			written += n
			continue
		}
		d.changed.Wait()
	}
}

func (d *direction) add(b []byte) {
	if len(d.unread) == 0 {
		d.unread = d.buffer[:0]
	}
	d.unread = append(d.unread, b...)
	if cap(d.unread) > cap(d.buffer) {
		d.buffer = d.unread
	}
	d.changed.Broadcast()
}

// end notes that an end was closed.
func (d *direction) end(which *bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*which = true
	d.readBy.stop()
	d.writeBy.stop()
	d.changed.Broadcast()
}

// A deadline is a read or write deadline.
type deadline struct {
	timer  *time.Timer // nil if none is set, or it has passed
	passed bool
}

func (l *deadline) stop() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}

// set sets a deadline; the zero time is none.
func (d *direction) set(l *deadline, t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l.stop()
	wait := time.Until(t)
	if l.passed = !t.IsZero() && wait <= 0; l.passed {
		d.changed.Broadcast()
	}
	if t.IsZero() || l.passed || d.left || d.ended {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if l.timer == timer { // else it was taken back as it fired
			l.timer, l.passed = nil, true
			d.changed.Broadcast()
		}
	})
	l.timer = timer
}
