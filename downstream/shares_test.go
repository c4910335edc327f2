package downstream

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"testing"

	"google.golang.org/grpc"
)

// B.35: one peer has as many streams as there are places for while half of them are free, and leaves the other half to others.
func TestB35_OnePeerLeavesRoom(t *testing.T) {
	s := shares{most: 100, of: make(map[string]int)}
	var leave []func()
	enter := func(peer string) error {
		end, err := s.enter(peer)
		if err == nil {
			leave = append(leave, end)
		}
		return err
	}
	n := 0
	for ; enter("greedy") == nil; n++ {
	}
	if n != 50 {
		t.Errorf("one peer has %d of 100 streams, want half of them", n)
	}
	for peer := range 5 {
		for i := range 10 {
			if err := enter(fmt.Sprint(peer)); err != nil {
				t.Fatalf("peer %d, stream %d: %v", peer, i, err)
			}
		}
		if peer < 4 {
			if limit, is := LimitOf(enter(fmt.Sprint(peer))); !is || limit != LimitStreams {
				t.Errorf("peer %d has more than a tenth of all", peer)
			}
		}
	}
	if enter("") == nil {
		t.Error("there are more streams than allowed")
	}
	for _, end := range leave {
		end()
		end() // again
	}
	if s.open != 0 || len(s.of) != 0 {
		t.Errorf("%d are open, of %v, want none", s.open, s.of)
	}
}

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
		if got := (&Config{PeerIPv6Prefix: tt.bits}).peerName(tt.peer); got != tt.want {
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
	s := &Server{shares: shares{most: 1, of: make(map[string]int)}}
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
	if s.shares.open != 0 {
		t.Errorf("%d are open, want none", s.shares.open)
	}
}
