package guard

import (
	"context"
	"crypto/x509"
	"log/slog"
	"net/url"
	"testing"

	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/relaytest/check"
)

// TestB35_PeerName: the name of a peer is the identity in its certificate. Without a certificate, it is the IPv4
// address or the IPv6 prefix.
func TestB35_PeerName(t *testing.T) {
	spiffe := &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "a", Path: "/b"}}, DNSNames: []string{"c"}}
	for _, tt := range []struct {
		peer Peer
		want string
	}{
		{Peer{Host: "192.0.2.1"}, "192.0.2.1"},
		{Peer{Host: "2001:db8:1:2:3::4"}, "2001:db8:1:2::/64"},
		{Peer{Host: "::1"}, "::1"},
		{Peer{}, ""},
		{Peer{Host: "192.0.2.1", Certificate: spiffe}, "spiffe://a/b"},
		{Peer{Host: "192.0.2.1", Certificate: &x509.Certificate{DNSNames: []string{"c"}}}, "c"},
		{Peer{Host: "192.0.2.1", Certificate: new(x509.Certificate)}, "key e3b0c44298fc1c14"},
	} {
		if got := PeerName(tt.peer); got != tt.want {
			t.Errorf("PeerName(%+v) = %q, want %q", tt.peer, got, tt.want)
		}
	}
}

// An ownService is a service that counts its streams itself, see Config.Own.
type ownService struct{}

// newGuard returns a guard with defaults for limits that are zero. It keeps no Nodes and logs nothing.
func newGuard(l Limits) *Guard {
	return New(Config{
		Limits: WithDefaults(l), Own: func(service any) bool { return service == ownService{} }, KeepNodes: func() bool { return false },
		Logger: slog.New(slog.DiscardHandler),
	})
}

// A streamOf is a stream without an RPC.
type streamOf struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s streamOf) Context() context.Context { return s.ctx }

// TestB35_StreamsOfAllServicesCount: streams of all services count against the same limit, and each stream counts once.
func TestB35_StreamsOfAllServicesCount(t *testing.T) {
	g := newGuard(Limits{MaxStreams: 1})
	rpc := streamOf{ctx: t.Context()}
	inner := func(any, grpc.ServerStream) error { return nil }
	outer := func(any, grpc.ServerStream) error {
		if err := g.StreamInterceptor("health", rpc, nil, inner); err == nil {
			t.Error("a second stream was served although the limit is 1")
		}
		return g.StreamInterceptor(ownService{}, rpc, nil, inner) // inner counts the stream
	}
	if err := g.StreamInterceptor("health", rpc, nil, outer); err != nil {
		t.Errorf("first stream: %v", err)
	}
	check.Equal(t, "streams in use after all have ended", g.streams.Used(), 0)
}

// TestB35_PeersAreHosts: peers are distinguished by IP address, regardless of its notation. A client without an address
// has no peer name, so groups are not counted for it.
func TestB35_PeersAreHosts(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.1:1234":        "10.0.0.1",
		"[::ffff:10.0.0.1]:9":  "10.0.0.1",
		"[2001:db8::1]:1234":   "2001:db8::1",
		"[fe80::1%eth0]:1234":  "fe80::1",
		"@":                    "",
		"":                     "",
		"/run/tender.sock":     "",
		"bufconn":              "",
		"not-an-address:12345": "",
	} {
		if got := hostIP(address); got != want {
			t.Errorf("hostIP(%q) = %q, want %q", address, got, want)
		}
	}
}
