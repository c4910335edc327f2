package load

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xdstender/tender/bench/h2"
)

// shakeTimeout bounds a handshake: the server may have thousands to do.
const shakeTimeout = 2 * time.Minute

// A wire is the socket below a TLS connection. Its reads wait until the handshake is done. After that they do not, and
// writes append records to out, so that the poll serves the socket like one in plaintext.
type wire struct {
	net.Conn        // until the handshake is done
	socket   int    // after that; -1 before
	out      []byte // records that wait for the socket
}

// errNothing is returned by a read that would have to wait. [tls.Conn] goes on after an error that is temporary.
var errNothing net.Error = nothing{}

type nothing struct{}

func (nothing) Error() string   { return "nothing to read" }
func (nothing) Timeout() bool   { return true }
func (nothing) Temporary() bool { return true }

// Read implements net.Conn.
func (w *wire) Read(b []byte) (int, error) {
	if w.socket < 0 {
		return w.Conn.Read(b)
	}
	switch n, err := h2.Read(w.socket, b); {
	case errors.Is(err, h2.ErrClosed):
		return 0, io.EOF
	case err == nil && n == 0:
		return 0, errNothing
	default:
		return n, err
	}
}

// Write implements net.Conn.
func (w *wire) Write(b []byte) (int, error) {
	if w.socket < 0 {
		return w.Conn.Write(b)
	}
	w.out = append(w.out, b...)
	return len(b), nil
}

// detach takes the socket from the runtime, whose own poll would be woken by it too.
func (w *wire) detach() error {
	raw, err := w.Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return fmt.Errorf("take the socket: %w", err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) { w.socket, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("take the socket: %w", err)
	}
	return w.Close() // the connection is open: the other descriptor has it
}

// A session keeps the last session of a connection, which the next handshake resumes if the server lets it.
type session struct{ state *tls.ClientSessionState }

// Get implements tls.ClientSessionCache.
func (s *session) Get(string) (*tls.ClientSessionState, bool) { return s.state, s.state != nil }

// Put implements tls.ClientSessionCache.
func (s *session) Put(_ string, state *tls.ClientSessionState) { s.state = state }

// connectTLS opens a connection with TLS, in its own goroutine until the handshake is done.
func (l *Load) connectTLS(c *conn, returning bool) {
	tlsConn, w, err := shake(c)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		if tlsConn.ConnectionState().DidResume {
			l.progress.Resumed++
		}
		c.tls, c.wire = tlsConn, w
		err = l.begin(c, w.socket, returning)
	}
	if err == nil {
		err = l.serve(c, unix.EPOLLIN|unix.EPOLLOUT) // what came with the handshake: the poll does not see that
	}
	if err != nil {
		l.fail(fmt.Errorf("connection of client %d: %w", c.clients[0].number, err))
	}
}

// shake connects and completes a handshake.
func shake(c *conn) (*tls.Conn, *wire, error) {
	ctx, cancel := context.WithTimeout(context.Background(), shakeTimeout)
	defer cancel()
	var d net.Dialer
	plain, err := d.DialContext(ctx, "tcp", c.address.String())
	if err != nil {
		return nil, nil, err
	}
	w := &wire{Conn: plain, socket: -1}
	config := c.config.Clone()
	config.ClientSessionCache = &c.session
	secure := tls.Client(w, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("handshake: %w", err), plain.Close())
	}
	return secure, w, w.detach()
}
