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

// shakeTimeout bounds a TLS handshake. It is long because thousands of handshakes may be pending on the server.
const shakeTimeout = 2 * time.Minute

// A wire is the socket below a TLS connection. During the handshake it blocks. Afterwards reads do not block, and
// writes append records to out, so that the poll serves the socket like a plaintext one.
type wire struct {
	net.Conn        // used during the handshake
	socket   int    // used after the handshake; -1 before
	out      []byte // records that wait for the socket
}

// errNothing is the error of a read that would block. [tls.Conn] can be read again after an error that is temporary.
var errNothing net.Error = nothing{}

// nothing is the type of errNothing: a temporary timeout.
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

// detach duplicates the socket and closes the original, so that the runtime's network poller no longer watches it.
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
	return w.Close() // the connection stays open through the duplicate
}

// A session keeps the last TLS session of a connection. The next handshake resumes it if the server allows that.
type session struct{ state *tls.ClientSessionState }

// Get implements tls.ClientSessionCache.
func (s *session) Get(string) (*tls.ClientSessionState, bool) { return s.state, s.state != nil }

// Put implements tls.ClientSessionCache.
func (s *session) Put(_ string, state *tls.ClientSessionState) { s.state = state }

// connectTLS opens a connection with TLS. It blocks until the handshake is done, so it must have its own goroutine.
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
		err = l.serve(c, unix.EPOLLIN|unix.EPOLLOUT) // data that arrived with the handshake is already buffered, so the poll reports no event
	}
	if err != nil {
		l.fail(fmt.Errorf("connection of client %d: %w", c.clients[0].number, err))
	}
}

// shake connects and completes the handshake.
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
