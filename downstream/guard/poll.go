package guard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"strings"
)

// PollListener returns a listener for an HTTP server of polls. It limits connections and charges for HTTP/2 frames and
// HTTP/1 bytes, as [Guard.Credentials] does for gRPC (B.35). It must see plaintext: wrap a TLS listener, and let the
// server accept HTTP/2 without TLS. The server also needs [PollContext].
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
		peer := connPeer(conn)
		leave, err := l.guard.enterConnection(peer)
		if err != nil {
			_ = conn.Close() // the error concerns nobody
			continue
		}
		a := newAccount(&l.guard.connections, peer)
		a.framesOnly = true
		return &pollConn{Conn: conn, account: a, guard: l.guard, leave: leave}, nil
	}
}

// pollConnKey is the context key of a *pollConn.
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

	// Owned by the reader of the connection.
	prefixLen int  // received bytes of the HTTP/2 preface, at most http2PrefixLen
	http1     bool // the first bytes were not the preface
	failed    bool // the TLS handshake has failed
}

// Read implements net.Conn.
func (c *pollConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:c.account.AwaitRead(len(b))])
	if err != nil && !c.failed && c.handshakeFailed() {
		c.failed = true
		c.guard.HandshakeFailed(c.RemoteAddr(), err)
	}
	if c.isHTTP2(b[:n]) {
		_ = c.account.received(b[:n]) // cannot fail, since framesOnly is set
	} else {
		c.account.countBytes(n)
	}
	c.guard.reportThrottled(c.account.peer, c.account.throttle())
	return n, err
}

// handshakeFailed reports whether a read has failed because of the TLS handshake.
func (c *pollConn) handshakeFailed() bool {
	conn, secure := c.Conn.(*tls.Conn)
	return secure && !conn.ConnectionState().HandshakeComplete
}

// isHTTP2 reports whether the connection may be HTTP/2, after it has received more bytes.
func (c *pollConn) isHTTP2(more []byte) bool {
	if c.http1 || c.prefixLen == http2PrefixLen {
		return !c.http1
	}
	rest := http2Preface[c.prefixLen:http2PrefixLen]
	n := min(len(rest), len(more))
	c.http1 = !strings.HasPrefix(rest, string(more[:n]))
	c.prefixLen += n
	return !c.http1
}

// Close implements net.Conn.
func (c *pollConn) Close() error {
	c.account.Close()
	c.leave()
	return c.Conn.Close()
}

// certificate returns the verified certificate of the client, nil if there is none.
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
