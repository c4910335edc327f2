package conformance_test

import (
	"maps"
	"slices"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/xdstender/tender/relay/relaytest"
)

// stream connects an Envoy to the service of one type.
func (w *world) stream(v relaytest.Variant, short string) *worldClient {
	return w.dial(relaytest.ClientOptions{Variant: v, TypeURL: typeURLs[short]})
}

// servicesEach runs a test for each single-type stream of the protocol, each in a new world.
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

// servicesCall calls a method of any kind without a request, and returns the resulting error.
func servicesCall(t testing.TB, conn *grpc.ClientConn, method string) error {
	t.Helper()
	desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
	rpc, err := conn.NewStream(t.Context(), desc, method, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	return rpc.RecvMsg(new(discoverypb.DiscoveryResponse))
}
