package conformance_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/codec"
)

// Short names of type URLs.
const (
	typeCDS = relaytest.ClusterType
	typeEDS = relaytest.EndpointType
	typeLDS = relaytest.ListenerType
	typeRDS = relaytest.RouteType
)

// originBubble runs a test with an origin in a synctest bubble.
func originBubble(t *testing.T, f func(t *testing.T, o *relaytest.Origin)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, relaytest.NewOrigin(t, relaytest.OriginOptions{Memory: true})) })
}

// originBubbles runs a test for each variant, with an origin in a synctest bubble.
func originBubbles(t *testing.T, f func(t *testing.T, o *relaytest.Origin, v relaytest.Variant)) {
	t.Helper()
	for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
		t.Run(v.String(), func(t *testing.T) {
			originBubble(t, func(t *testing.T, o *relaytest.Origin) { f(t, o, v) })
		})
	}
}

// expectQuiet fails the test if the client gets a response within virtual time d, or its stream ends.
func expectQuiet(t testing.TB, c *relaytest.Client, d time.Duration) {
	t.Helper()
	sleep(d)
	if r := c.TryRecv(); r != nil {
		t.Fatalf("%v got %v, want no response for %v", c, r, d)
	}
	if c.Ended() {
		t.Fatalf("%v: stream ended, want it open for %v", c, d)
	}
}

// nextResponse returns a response that is due at once, in a bubble.
func nextResponse(t *testing.T, c *relaytest.Client) *relaytest.Response {
	t.Helper()
	synctest.Wait()
	r := c.TryRecv()
	if r == nil {
		t.Fatalf("%v got no response, want one at once", c)
	}
	return r
}

// recvAndAck receives a response, checks its type and names, and ACKs it.
func recvAndAck(t testing.TB, c *relaytest.Client, typeURL string, names ...string) *relaytest.Response {
	t.Helper()
	r := c.Recv(t.Context())
	expectNames(t, r, typeURL, names...)
	c.Ack(r)
	return r
}

// expectNames fails the test unless a response has the type and exactly these names. "-name" is a removal.
func expectNames(t testing.TB, r *relaytest.Response, typeURL string, want ...string) {
	t.Helper()
	got := r.Names()
	for _, name := range r.Removed {
		got = append(got, "-"+name)
	}
	if slices.Sort(got); r.TypeURL != typeURL || !slices.Equal(got, slices.Sorted(slices.Values(want))) {
		t.Fatalf("got %v, want %q of %s", r, want, typeURL)
	}
}

// expectStatus waits until the client's stream ends, and checks its status.
func expectStatus(t *testing.T, c *relaytest.Client, want codes.Code) {
	t.Helper()
	if err := c.WaitEnd(t.Context()); status.Code(err) != want {
		t.Fatalf("%v ended: %v, want %v", c, err, want)
	}
}

// domainRoute returns a route whose content depends only on its domain.
func domainRoute(name, domain string) proto.Message {
	return relaytest.Route(name, []string{domain}, "cluster")
}

// newRequest returns a request for names: resource_names in SotW, resource_names_subscribe in Delta.
func newRequest(v relaytest.Variant, typeURL, nonce string, names ...string) proto.Message {
	if v == relaytest.SotW {
		return &discoverypb.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ResourceNames: names}
	}
	return &discoverypb.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: nonce, ResourceNamesSubscribe: names}
}

// withNode adds a Node to a SotW request.
func withNode(r *discoverypb.DiscoveryRequest) *discoverypb.DiscoveryRequest {
	r.Node = relaytest.EnvoyNode("client")
	return r
}

// encodeField encodes a length-delimited field.
func encodeField[T string | []byte](num protowire.Number, value T) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, num, protowire.BytesType), string(value))
}

// rawStream opens a stream that sends and receives encoded messages. It ends after relaytest.Patience.
func rawStream(t *testing.T, conn *grpc.ClientConn, method string) grpc.ClientStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), relaytest.Patience)
	t.Cleanup(cancel)
	rpc, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method,
		grpc.ForceCodecV2(codec.Bytes{}), grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	return rpc
}
