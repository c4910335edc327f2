package guard

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
)

// An Entry is a connection that was admitted and has completed its handshake.
type Entry struct {
	Conn    net.Conn // above TLS
	Info    credentials.AuthInfo
	Account *Account

	leave func()
}

// Handshake admits a connection or refuses it, and performs its handshake with credentials. The caller must call
// [Entry.End] when the connection ends, and charge for what it reads: see [Account.Count], [Guard.Throttle],
// [Account.AwaitRead] and [Account.HoldData]. After an error the caller must close the connection, which was logged.
func (g *Guard) Handshake(raw net.Conn, c credentials.TransportCredentials) (Entry, error) {
	peer := connPeer(raw)
	leave, err := g.enterConnection(peer)
	if err != nil {
		return Entry{}, err
	}
	g.pause(context.Background(), g.connections.delay(peer, time.Now()))
	conn, info, err := g.handshake(raw, c)
	if err != nil {
		leave()
		g.HandshakeFailed(raw.RemoteAddr(), err)
		return Entry{}, err
	}
	a := newAccount(&g.connections, peer)
	return Entry{conn, connInfo{info, time.Now(), a, new(nodeCache)}, a, leave}, nil
}

// handshake completes the handshake. A plaintext handshake takes no turn, since it computes nothing.
func (g *Guard) handshake(raw net.Conn, c credentials.TransportCredentials) (net.Conn, credentials.AuthInfo, error) {
	if c.Info().SecurityProtocol != "tls" {
		return c.ServerHandshake(raw)
	}
	below := &handshakeConn{Conn: raw, turns: &g.handshakes}
	defer below.end()
	return c.ServerHandshake(below)
}

// End releases everything. It may be called more than once.
func (e Entry) End() {
	e.Account.Close()
	e.leave()
}

// Count counts a received frame of HTTP/2 with a payload of so many bytes. Only the goroutine that reads the connection
// may call it.
func (a *Account) Count(kind byte, length int) { a.countFrame(kind, length) }

// HoldData charges for the content of a DATA frame as [Account.Hold] does, with the minimum of a frame.
func (a *Account) HoldData(length int) error {
	if length == 0 {
		return nil
	}
	return a.Hold(max(length, minFrameBytes))
}

// Throttle charges for the counted frames. The next [Account.AwaitRead] waits if they exceed a budget. Only the
// goroutine that reads the connection may call it.
func (g *Guard) Throttle(a *Account) { g.reportThrottled(a.peer, a.throttle()) }

// RefuseConnection counts and logs that a connection ends because of an error of [Account.HoldData].
func (g *Guard) RefuseConnection(a *Account, err error) {
	a.refused.Store(true)
	g.connectionRefused(a.peer, err)
}

// TLSInfo returns the TLS state in the AuthInfo of a connection. It has none in plaintext.
func TLSInfo(info credentials.AuthInfo) (credentials.TLSInfo, bool) {
	if c, is := info.(connInfo); is {
		info = c.AuthInfo
	}
	t, is := info.(credentials.TLSInfo)
	return t, is
}
