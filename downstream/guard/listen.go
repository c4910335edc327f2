package guard

import (
	"context"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Listener returns a listener that rate-limits the new connections of each host (B.35). It closes connections beyond
// the rate before it reads from them.
func (g *Guard) Listener(l net.Listener) net.Listener { return rateListener{l, g} }

type rateListener struct {
	net.Listener
	guard *Guard
}

// Accept implements net.Listener.
func (l rateListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer := connPeer(conn)
		began, allowed := l.guard.connections.admit(peer, time.Now())
		l.guard.reportThrottled(peer, began)
		if allowed {
			return conn, nil
		}
		_ = conn.Close() // the error concerns nobody
	}
}

// Credentials returns credentials that wrap c and charge the connections of a gRPC server. Without them, no limit of
// connections applies and [Expiry] never ends a stream. The server also needs [Guard.StreamInterceptor] and
// [Guard.UnaryInterceptor].
func (g *Guard) Credentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	return chargingCredentials{c, g}
}

type chargingCredentials struct {
	credentials.TransportCredentials
	guard *Guard
}

// ServerHandshake implements credentials.TransportCredentials. A connection that exceeds a limit is closed before a
// byte is exchanged.
func (c chargingCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	e, err := c.guard.Handshake(raw, c.TransportCredentials)
	if err != nil {
		return nil, nil, err
	}
	conn := &grpcConn{Conn: e.Conn, waiting: newWaitingReader(e.Conn), account: e.Account, guard: c.guard, end: e.End}
	return conn, e.Info, nil
}

// Clone implements credentials.TransportCredentials.
func (c chargingCredentials) Clone() credentials.TransportCredentials {
	return chargingCredentials{c.TransportCredentials.Clone(), c.guard}
}

// Grace returns how long streams may outlive the age at which a connection accepts no further streams.
func Grace(age time.Duration) time.Duration { return age / 2 }

// Expiry returns when a stream ends because of the age of its connection. gRPC sends GOAWAY at the age, with a jitter
// of 10 %. The stream ends at a random time after that, long before the end of the grace period (B.33). A zero time
// means never.
func Expiry(ctx context.Context, age time.Duration) time.Time {
	p, _ := peer.FromContext(ctx)
	if age == 0 || p == nil {
		return time.Time{}
	}
	c, ok := p.AuthInfo.(connInfo)
	if !ok {
		return time.Time{}
	}
	return c.began.Add(age + age/10 + rand.N(age/6+1))
}
