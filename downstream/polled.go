package downstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
)

// http2Preface is what a connection of HTTP/2 begins with, and how much of that no request of
// HTTP/1 does.
const (
	http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	http2Begins  = len("PRI ")
)

// PollListener returns a listener of connections from l for a server of polls, on which the frames of HTTP/2, and
// the bytes of HTTP/1, are bounded as they are for gRPC (B.35). If l encrypts, what is inside is counted: so the server must not encrypt
// itself, and must take HTTP/2 without TLS. It needs [Server.PollContext] too.
func (s *Server) PollListener(l net.Listener) net.Listener { return pollListener{l, s} }

type pollListener struct {
	net.Listener
	server *Server
}

// Accept implements net.Listener.
func (l pollListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	b := newAccount(&l.server.connections, l.server.cfg.peerAt(conn))
	b.framesOnly = true
	return &pollConn{Conn: conn, account: b, server: l.server}, nil
}

// polledKey is that of a context's *polled.
type pollConnKey struct{}

// PollContext is the [http.Server.ConnContext] of a server of polls.
func (s *Server) PollContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, pollConnKey{}, conn)
}

// polledOf returns the connection of a poll, nil if it is none of [Server.PollListener].
func pollConnOf(r *http.Request) *pollConn {
	c, _ := r.Context().Value(pollConnKey{}).(*pollConn)
	return c
}

// chargeOf returns who is charged for the memory of a poll.
func ChargeOf(r *http.Request) *Charge {
	if c := pollConnOf(r); c != nil {
		return &Charge{account: c.account}
	}
	return new(Charge)
}

// A polled connection is one that a server of polls reads and writes.
type pollConn struct {
	net.Conn
	account *Account
	server  *Server

	// Of the one who reads the connection: how much of what HTTP/2 begins with has come, and whether
	// it was something else.
	begun int
	http1 bool
}

// Read implements net.Conn.
func (c *pollConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:c.account.awaitRead(len(b))])
	if c.begun == 0 && !c.http1 && n == 0 && err != nil && !errors.Is(err, io.EOF) { // such as a handshake of TLS that failed
		c.server.cfg.Logger.Debug("connection for polls has ended before a poll", slog.String("peer", c.account.peer), slog.Any("err", err))
	}
	if c.isHTTP2(b[:n]) {
		_ = c.account.received(b[:n]) // it holds nothing
	} else {
		c.account.countBytes(n)
	}
	if c.account.throttle() {
		c.server.throttled(c.account.peer)
	}
	return n, err
}

// isHTTP2 reports whether what came is of HTTP/2, as far as one can tell.
func (c *pollConn) isHTTP2(came []byte) bool {
	if c.http1 || c.begun == http2Begins {
		return !c.http1
	}
	rest := http2Preface[c.begun:http2Begins]
	n := min(len(rest), len(came))
	c.http1 = !strings.HasPrefix(rest, string(came[:n]))
	c.begun += n
	return !c.http1
}

// Close implements net.Conn.
func (c *pollConn) Close() error {
	c.account.close()
	return c.Conn.Close()
}

// certificate returns the certificate that the client was verified by, nil if there is none.
func (c *pollConn) certificate() *x509.Certificate {
	if conn, ok := c.Conn.(*tls.Conn); ok {
		return verifiedCertificate(conn.ConnectionState().VerifiedChains)
	}
	return nil
}
