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

	clusterpb "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// oddNext returns the next response and its virtual latency, or nil if none arrives in time.
func oddNext(c *relaytest.Client, within time.Duration) (*relaytest.Response, time.Duration) {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		synctest.Wait()
		if r := c.TryRecv(); r != nil || time.Since(began) >= within {
			return r, time.Since(began)
		}
	}
}

// oddSoon is the latency of a response that waits for nothing.
const oddSoon = 100 * time.Millisecond

// oddWant fails the test unless the next response arrives at once with these names.
func oddWant(t *testing.T, c *relaytest.Client, what string, names ...string) *relaytest.Response {
	t.Helper()
	r, took := oddNext(c, time.Minute)
	if r == nil || took > oddSoon || fmt.Sprint(r.Names()) != fmt.Sprint(names) {
		t.Fatalf("%s: got %v after %v, want %v at once", what, r, took, names)
	}
	return r
}

// B.22: some SotW clients unsubscribe from all names of a type by a list with only an empty name. For known types
// it is not a name, and the list is no wildcard.
func TestB22_EmptyNameUnsubscribesAll(t *testing.T) {
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
				t.Errorf("after unsubscribing from all names, got %v", r)
			}
			c.Send(&discoverypb.DiscoveryRequest{TypeUrl: typ, ResponseNonce: r.Nonce, ResourceNames: []string{"a"}})
			oddWant(t, c, "after a new subscription", "a")
		})
	}
}

// A client that half-closes its stream gets a response before the stream ends with OK, even if the relay has to
// fetch it from the origin, for tools that send one request.
func TestHalfClosedStreamsAreAnswered(t *testing.T) {
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(relaytest.Cluster("a"))
		r := start(t, o)
		for _, relay := range []string{"cold", "warm"} {
			c := r.Client(relaytest.ClientOptions{Variant: v})
			c.Subscribe(typeCDS, "*")
			c.CloseSend()
			if err := c.WaitEnd(t.Context()); !errors.Is(err, io.EOF) || len(c.Responses()) != 1 {
				t.Errorf("%s: the stream ended with %v after %v, want OK after 1 response", relay, err, c.Responses())
			}
		}
	})
}

// B.32: compressed requests are refused without decompression, in each service. The status of a stream lists the
// accepted encodings.
func TestB32_CompressedRequestsAreRefused(t *testing.T) {
	r := start(t, relaytest.NewOrigin(t, relaytest.OriginOptions{}), "TENDER_LRS=aggregate")
	conn := r.Conn()
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	defer cancel()
	both := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	for method, request := range map[string]proto.Message{
		discoverypb.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName: &discoverypb.DiscoveryRequest{},
		discoverypb.AggregatedDiscoveryService_DeltaAggregatedResources_FullMethodName:  &discoverypb.DeltaDiscoveryRequest{},
		clusterpb.ClusterDiscoveryService_StreamClusters_FullMethodName:                 &discoverypb.DiscoveryRequest{},
		clusterpb.ClusterDiscoveryService_DeltaClusters_FullMethodName:                  &discoverypb.DeltaDiscoveryRequest{},
		lrspb.LoadReportingService_StreamLoadStats_FullMethodName:                       &lrspb.LoadStatsRequest{},
	} {
		s, err := conn.NewStream(ctx, both, method, grpc.UseCompressor(gzip.Name))
		check.OK(t, err)
		if err := s.SendMsg(request); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		err = s.RecvMsg(new(discoverypb.DiscoveryResponse))
		header, _ := s.Header()
		if accepts := append(header.Get("grpc-accept-encoding"),
			s.Trailer().Get("grpc-accept-encoding")...); status.Code(err) != codes.Unimplemented ||
			!slices.Equal(accepts, []string{"identity"}) {
			t.Errorf("%s ended with %v and grpc-accept-encoding %q, want UNIMPLEMENTED and identity", method, err, accepts)
		}
	}
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "x"},
		grpc.UseCompressor(gzip.Name))
	if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "compressed requests are not accepted") {
		t.Errorf("a unary call ended with %v, want INTERNAL with the reason", err)
	}
}
