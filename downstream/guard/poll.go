package guard

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

// http2Preface is the connection preface of HTTP/2. No request of HTTP/1 begins with its first http2Begins bytes.
const (
	http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	http2Begins  = len("PRI ")
)

// PollListener returns a listener for a server of polls, which bounds connections, and charges for the frames of HTTP/2
// and the bytes of HTTP/1, as [Guard.Credentials] does for gRPC (B.35). It must see plaintext, so a TLS listener must be
// below it, and the server must accept HTTP/2 without TLS. It needs [PollContext] too.
func (g *Guard) PollListener(l net.Listener) net.Listener { return pollListener{l, g} }

type pollListener struct {
	net.Listener
	guard *Guard
}

// Accept implements net.Listener. A connection that exceeds a limit is closed before a byte is exchanged.
func (l pollListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer := l.guard.cfg.connPeer(conn)
		leave, err := l.guard.enterConnection(peer)
		if err != nil {
			_ = conn.Close() // there is nobody to tell
			continue
		}
		a := newAccount(&l.guard.connections, peer)
		a.framesOnly = true
		return &pollConn{Conn: conn, account: a, guard: l.guard, leave: leave}, nil
	}
}

// pollConnKey is that of a context's *pollConn.
type pollConnKey struct{}

// PollContext is the [http.Server.ConnContext] of a server of polls.
func PollContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, pollConnKey{}, conn)
}

// AccountOfPoll returns the account of a poll's connection, nil if it has none.
func AccountOfPoll(r *http.Request) *Account {
	if c, _ := r.Context().Value(pollConnKey{}).(*pollConn); c != nil {
		return c.account
	}
	return nil
}

// A pollConn is a charged connection that a server of polls reads and writes.
type pollConn struct {
	net.Conn
	account *Account
	guard   *Guard
	leave   func()

	// Owned by the reader of the connection: how much of http2Begins has come, and whether it was something else.
	begun int
	http1 bool
}

// Read implements net.Conn.
func (c *pollConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:c.account.awaitRead(len(b))])
	if c.begun == 0 && !c.http1 && n == 0 && err != nil && !errors.Is(err, io.EOF) { // such as a failed TLS handshake
		c.guard.cfg.Logger.Debug("poll connection closed before a request", slog.String("peer", c.account.peer), slog.Any("err", err))
	}
	if c.isHTTP2(b[:n]) {
		_ = c.account.received(b[:n]) // never fails, as nothing is held
	} else {
		c.account.countBytes(n)
	}
	c.guard.throttled(c.account.peer, c.account.throttle())
	return n, err
}

// isHTTP2 reports whether the connection is HTTP/2, as far as is known after some more bytes.
func (c *pollConn) isHTTP2(more []byte) bool {
	if c.http1 || c.begun == http2Begins {
		return !c.http1
	}
	rest := http2Preface[c.begun:http2Begins]
	n := min(len(rest), len(more))
	c.http1 = !strings.HasPrefix(rest, string(more[:n]))
	c.begun += n
	return !c.http1
}

// Close implements net.Conn.
func (c *pollConn) Close() error {
	c.account.close()
	c.leave()
	return c.Conn.Close()
}

// certificate returns the certificate of the client, nil if it has none that was verified.
func (c *pollConn) certificate() *x509.Certificate {
	if conn, ok := c.Conn.(*tls.Conn); ok {
		return verifiedCertificate(conn.ConnectionState().VerifiedChains)
	}
	return nil
}

// PeerOfPoll returns the peer of a poll.
func PeerOfPoll(r *http.Request) (p Peer) {
	p.Host = hostIP(r.RemoteAddr)
	if c, _ := r.Context().Value(pollConnKey{}).(*pollConn); c != nil {
		p.Certificate = c.certificate()
	}
	return p
}
