package conformance_test

import (
	"fmt"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/relay/relaytest"
)

// Each response of a stream has a new nonce, across all types.
func TestR022_NoncesAreUniqueOnAStream(t *testing.T) {
	t.Parallel()
	const changes = 50
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Put(domainRoute("r", "0"), relaytest.Endpoints("e", "127.0.0.1:1"))
		c := start(t, o).Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(typeRDS, "r")
		recvAndAck(t, c, typeRDS, "r")
		c.Subscribe(typeEDS, "e")
		recvAndAck(t, c, typeEDS, "e")
		for i := range changes {
			o.Put(domainRoute("r", fmt.Sprint(i+1)))
			recvAndAck(t, c, typeRDS, "r")
			o.Put(relaytest.Endpoints("e", fmt.Sprint("127.0.0.1:", i+2)))
			recvAndAck(t, c, typeEDS, "e")
		}
		seen := make(map[string]bool)
		for _, r := range c.Responses() {
			if r.Nonce == "" || seen[r.Nonce] {
				t.Errorf("nonce %q of %v is empty or was used before", r.Nonce, r)
			}
			seen[r.Nonce] = true
		}
		if len(seen) != 2*changes+2 {
			t.Errorf("got %d nonces, want %d", len(seen), 2*changes+2)
		}
	})
}

// newAnswer returns an ACK, or a NACK if message is not empty. In SotW it has the version and the names.
func newAnswer(v relaytest.Variant, r *relaytest.Response, version, message string, names ...string) proto.Message {
	detail := status.New(codes.Internal, message).Proto()
	if message == "" {
		detail = nil
	}
	if v == relaytest.Delta {
		return &discoverypb.DeltaDiscoveryRequest{TypeUrl: r.TypeURL, ResponseNonce: r.Nonce, ErrorDetail: detail}
	}
	return &discoverypb.DiscoveryRequest{TypeUrl: r.TypeURL, ResponseNonce: r.Nonce, VersionInfo: version,
		ResourceNames: names, ErrorDetail: detail}
}
