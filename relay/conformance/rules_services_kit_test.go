package conformance_test

import (
	"maps"
	"slices"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/relaytest"
)

// stream opens a stream of one type of an Envoy.
func (w *world) stream(v relaytest.Variant, short string) *worldClient {
	return w.dial(relaytest.ClientOptions{Variant: v, TypeURL: typeURLs[short]})
}

// servicesEach runs a test in a world of its own for each stream of one type that
// the protocol has: most types have both variants.
func servicesEach(t *testing.T, f func(w *world, v relaytest.Variant, short string)) {
	t.Helper()
	for _, short := range slices.Sorted(maps.Keys(typeURLs)) {
		for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
			if v.Method(typeURLs[short]) == "" {
				continue
			}
			t.Run(short+"/"+v.String(), func(t *testing.T) {
				worldBubble(t, nil, func(w *world) { f(w, v, short) })
			})
		}
	}
}

// servicesCall calls a method, whatever its kind, and returns how that ends if
// nothing is asked.
func servicesCall(t testing.TB, conn *grpc.ClientConn, method string) error {
	t.Helper()
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	rpc, err := conn.NewStream(t.Context(), desc, method, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	return rpc.RecvMsg(new(discoverypb.DiscoveryResponse))
}
