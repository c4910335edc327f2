package downstream

import (
	"context"
	"crypto/x509"
	"net/url"
	"testing"

	"google.golang.org/grpc"

	"github.com/xdstender/tender/cache"
)

// B.35: a peer is what its certificate says; without one it is its address, of IPv6 a prefix of that.
func TestB35_WhoAPeerIs(t *testing.T) {
	spiffe := &x509.Certificate{URIs: []*url.URL{{Scheme: "spiffe", Host: "a", Path: "/b"}}, DNSNames: []string{"c"}}
	for _, tt := range []struct {
		peer Peer
		bits int
		want string
	}{
		{Peer{Host: "192.0.2.1"}, 64, "192.0.2.1"},
		{Peer{Host: "2001:db8:1:2:3::4"}, 64, "2001:db8:1:2::/64"},
		{Peer{Host: "2001:db8:1:2:3::4"}, 48, "2001:db8:1::/48"},
		{Peer{Host: "::1"}, 64, "::1"},
		{Peer{}, 64, ""},
		{Peer{Host: "192.0.2.1", Certificate: spiffe}, 64, "spiffe://a/b"},
		{Peer{Host: "192.0.2.1", Certificate: &x509.Certificate{DNSNames: []string{"c"}}}, 64, "c"},
		{Peer{Host: "192.0.2.1", Certificate: new(x509.Certificate)}, 64, "key e3b0c44298fc1c14"},
	} {
		if got := (&Config{PeerIPv6Prefix: tt.bits}).PeerName(tt.peer); got != tt.want {
			t.Errorf("%+v is the peer %q, want %q", tt.peer, got, tt.want)
		}
	}
}

// A streamOf is a stream of nobody in particular.
type streamOf struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamOf) Context() context.Context { return s.ctx }

// B.35: streams of services that are not the server's own count with those that are, and only once.
func TestB35_StreamsOfAllServicesCount(t *testing.T) {
	s := &Server{shares: cache.NewShares(1, 1)}
	rpc := streamOf{ctx: t.Context()}
	inner := func(any, grpc.ServerStream) error { return nil }
	outer := func(any, grpc.ServerStream) error {
		if err := s.CountOthers("health", rpc, nil, inner); err == nil {
			t.Error("a second stream was served where one is allowed")
		}
		return s.CountOthers(s, rpc, nil, inner) // which counts by itself
	}
	if err := s.CountOthers("health", rpc, nil, outer); err != nil {
		t.Errorf("the first stream: %v", err)
	}
	if open := s.shares.Used(); open != 0 {
		t.Errorf("%d are open, want none", open)
	}
}
