package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
)

// oddNext returns the next response, and how long it took on the bubble's clock;
// nil if there was none within that time.
func oddNext(c *relaytest.Client, within time.Duration) (*relaytest.Response, time.Duration) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		synctest.Wait()
		if r := c.TryRecv(); r != nil || time.Since(began) >= within {
			return r, time.Since(began)
		}
	}
}

// oddSoon is how soon an answer comes that waits for nothing.
const oddSoon = 100 * time.Millisecond

// oddWant fails the test unless the next response comes at once with these names.
func oddWant(t *testing.T, c *relaytest.Client, what string, names ...string) *relaytest.Response {
	t.Helper()
	r, took := oddNext(c, time.Minute)
	if r == nil || took > oddSoon || fmt.Sprint(r.Names()) != fmt.Sprint(names) {
		t.Fatalf("%s: got %v after %v, want %v at once", what, r, took, names)
	}
	return r
}

// B.22: some clients give up all names of a type by listing only an empty one. It
// is no name of a known type, and a list that holds it is still a list.
func TestB22_EmptyNameGivesUpAll(t *testing.T) {
	for _, typ := range []string{typeCDS, typeRDS} {
		originBubble(t, func(t *testing.T, o *relaytest.Origin) {
			put := func(v string) { o.Put(relaytest.StaticCluster("a", "127.0.0.1:"+v), domainRoute("a", v)) }
			put("1")
			c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW})
			c.Subscribe(typ, "a")
			r := recvAndAck(t, c, typ, "a")
			c.Send(&discoverypb.DiscoveryRequest{TypeUrl: typ, ResponseNonce: r.Nonce, ResourceNames: []string{""}})
			synctest.Wait()
			put("2")
			if r, _ := oddNext(c, time.Minute); r != nil {
				t.Errorf("gave up all, got %v", r)
			}
			c.Send(&discoverypb.DiscoveryRequest{TypeUrl: typ, ResponseNonce: r.Nonce, ResourceNames: []string{"a"}})
			oddWant(t, c, "asked again", "a")
		})
	}
}

// B.13: a request without a nonce is spontaneous: what it newly asks for does not
// wait for the answer to an earlier response.
func TestB13_SpontaneousRequestIsAnsweredAtOnce(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(domainRoute("a", "1"), domainRoute("b", "1"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeRDS, "a")
		oddWant(t, c, "first, not ACKed", "a")
		names := []string{"b"}
		if v == relaytest.SotW {
			names = []string{"a", "b"}
		}
		c.Send(newRequest(v, typeRDS, "", names...))
		oddWant(t, c, "asked for before the ACK", "b")
	})
}

// R028: a SotW client that ACKs by the version alone has ACKed.
func TestR028_VersionAloneIsAnAck(t *testing.T) {
	originBubble(t, func(t *testing.T, o *relaytest.Origin) {
		o.Put(domainRoute("a", "1"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: relaytest.SotW})
		c.Subscribe(typeRDS, "a")
		r := oddWant(t, c, "first", "a")
		for i := range 3 {
			c.Send(&discoverypb.DiscoveryRequest{TypeUrl: typeRDS, VersionInfo: r.Version, ResourceNames: []string{"a"}})
			synctest.Wait()
			o.Put(domainRoute("a", fmt.Sprint("changed ", i)))
			r = oddWant(t, c, "changed", "a")
		}
	})
}

// A client that closes its side is answered before the stream ends with OK, even
// by a relay that has yet to ask the origin: tools that send one request do that.
func TestHalfClosedStreamsAreAnswered(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o)
		for _, relay := range []string{"cold", "warm"} {
			c := r.Client(relaytest.ClientOptions{Variant: v})
			c.Subscribe(typeCDS, "*")
			c.CloseSend()
			if err := c.WaitEnd(t.Context()); !errors.Is(err, io.EOF) || len(c.Responses()) != 1 {
				t.Errorf("%s: ended with %v after %v, want one response and OK", relay, err, c.Responses())
			}
		}
	})
}

// B.32: requests that are compressed are refused before anything is decompressed, on streams with what is accepted instead.
func TestB32_CompressedRequestsAreRefused(t *testing.T) {
	r := start(t, relaytest.NewOrigin(t, relaytest.OriginOptions{}))
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	s, err := discoverypb.NewAggregatedDiscoveryServiceClient(r.Conn()).DeltaAggregatedResources(ctx, grpc.UseCompressor(gzip.Name))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType}); err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	_, err = s.Recv()
	header, _ := s.Header()
	if accepts := append(header.Get("grpc-accept-encoding"), s.Trailer().Get("grpc-accept-encoding")...); status.Code(err) != codes.Unimplemented || !slices.Equal(accepts, []string{"identity"}) {
		t.Errorf("a stream was answered %v, with grpc-accept-encoding %q; want UNIMPLEMENTED, and identity", err, accepts)
	}
	_, err = healthpb.NewHealthClient(r.Conn()).Check(ctx, &healthpb.HealthCheckRequest{Service: "x"}, grpc.UseCompressor(gzip.Name))
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "TENDER_REQUEST_COMPRESSION=off") {
		t.Errorf("a unary call was answered %v, want INTERNAL and the name of the variable", err)
	}
}

// B.32: with TENDER_REQUEST_COMPRESSION=gzip, who compresses is understood, and answered likewise.
func TestB32_Gzip(t *testing.T) {
	o := relaytest.NewOrigin(t, relaytest.OriginOptions{})
	o.Put(relaytest.Cluster("a"))
	r := start(t, o, "TENDER_REQUEST_COMPRESSION=gzip")
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	s, err := discoverypb.NewAggregatedDiscoveryServiceClient(r.Conn()).DeltaAggregatedResources(ctx, grpc.UseCompressor(gzip.Name))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&discoverypb.DeltaDiscoveryRequest{TypeUrl: relaytest.ClusterType}); err != nil {
		t.Fatal(err)
	}
	resp, err := s.Recv()
	if err != nil || len(resp.GetResources()) != 1 {
		t.Errorf("got %v, %v; want one cluster", resp, err)
	}
}
