package downstream

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Credentials returns credentials that note when a connection began, beside what c finds
// out about the peer. Without them, streams do not know how old their connection is.
func Credentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	return dating{c}
}

type dating struct {
	credentials.TransportCredentials
}

func (d dating) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := d.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, err
	}
	return conn, connection{info, time.Now()}, nil
}

func (d dating) Clone() credentials.TransportCredentials {
	return dating{d.TransportCredentials.Clone()}
}

// A connection is what is known of the connection of a stream.
type connection struct {
	credentials.AuthInfo
	begun time.Time
}

// peerOf returns the host that a stream comes from, as Views.Join has it.
func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		return hostOf(p.Addr.String())
	}
	return ""
}

// hostOf returns the IP address in an address, empty if there is none.
func hostOf(address string) string {
	from, err := netip.ParseAddrPort(address)
	if err != nil {
		return ""
	}
	return from.Addr().Unmap().WithZone("").String()
}

// Grace returns for how long streams may outlive the age at which a connection takes no
// more of them.
func Grace(age time.Duration) time.Duration { return age / 2 }

// outlives returns when a stream ends itself, since its connection is old then: at a
// moment of its own, after the connection was told to take no more streams, which gRPC
// does at the age give or take a tenth, and long before the grace is over (B.33). A zero
// time is never.
func outlives(ctx context.Context, age time.Duration) time.Time {
	p, _ := peer.FromContext(ctx)
	if age == 0 || p == nil {
		return time.Time{}
	}
	c, ok := p.AuthInfo.(connection)
	if !ok {
		return time.Time{}
	}
	return c.begun.Add(age + age/10 + rand.N(age/6+1))
}
