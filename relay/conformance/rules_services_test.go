package conformance_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/xdstender/tender/relay/relaytest"
)

// Delta and SotW streams, aggregated and of one type, serve the same resources. Within a variant, versions are
// equal, too (R026).
func TestR006_TheFourVariantsServeTheSameContent(t *testing.T) {
	t.Parallel()
	worldBubble(t, nil, func(w *world) {
		var changes []string
		for i := range 10 {
			changes = append(changes, fmt.Sprintf("cds c%d@1", i), fmt.Sprintf("eds c%d@1", i))
		}
		w.change(changes...)
		clusters, endpoints := typeURLs["cds"], typeURLs["eds"]
		for _, v := range []relaytest.Variant{relaytest.SotW, relaytest.Delta} {
			both := w.autoClient(v).subscribe("cds", "").subscribe("eds", "c3 c4")
			cds := w.dial(relaytest.ClientOptions{Variant: v, TypeURL: clusters, AutoAck: true}).subscribe("cds", "")
			eds := w.dial(relaytest.ClientOptions{Variant: v, TypeURL: endpoints, AutoAck: true}).subscribe("eds", "c3 c4")
			w.settle()
			if got, want := cds.State()[clusters], both.State()[clusters]; len(want) != 10 || !maps.Equal(got, want) {
				t.Errorf("%v: a stream of clusters has %v, want %v as on an aggregated stream", v, got, want)
			}
			if got, want := eds.State()[endpoints], both.State()[endpoints]; len(want) != 2 || !maps.Equal(got, want) {
				t.Errorf("%v: a stream of endpoints has %v, want %v as on an aggregated stream", v, got, want)
			}
			if !cds.State().SameContent(w.origin.Resources(), clusters) {
				t.Errorf("%v: clusters differ from the origin's: %v", v, cds.State()[clusters])
			}
		}
	})
}

// Each single-type streaming method of the protocol serves its type's resources and changes.
func TestR007_EachServiceStreamsItsType(t *testing.T) {
	t.Parallel()
	servicesEach(t, func(w *world, v relaytest.Variant, short string) {
		w.change("cds a@1", "acme a@1", short+" a@2")
		c := w.stream(v, short).subscribe(short, "a")
		w.settle()
		c.expectAndAck(formatFor(v, short+" a@2"))
		w.change(short + " a@3")
		c.expectAndAck(formatFor(v, short+" a@3"))
	})
}

// Methods that a service lacks return UNIMPLEMENTED: missing variants, the Fetch methods, which are for REST, and
// the misspelled name of SRDS in the documentation.
func TestR007_WhatAServiceLacksIsUnimplemented(t *testing.T) {
	t.Parallel()
	worldBubble(t, nil, func(w *world) {
		conn := w.relay.Conn()
		for _, method := range []string{
			"/envoy.service.route.v3.VirtualHostDiscoveryService/StreamVirtualHosts",
			"/envoy.service.endpoint.v3.LocalityEndpointDiscoveryService/StreamLocalityEndpoints",
			"/envoy.service.route.v3.ScopedRouteDiscoveryService/StreamScopedRoutes",
			"/envoy.service.listener.v3.ListenerDiscoveryService/FetchListeners",
			"/envoy.service.route.v3.RouteDiscoveryService/FetchRoutes",
			"/envoy.service.route.v3.ScopedRoutesDiscoveryService/FetchScopedRoutes",
			"/envoy.service.cluster.v3.ClusterDiscoveryService/FetchClusters",
			"/envoy.service.endpoint.v3.EndpointDiscoveryService/FetchEndpoints",
			"/envoy.service.secret.v3.SecretDiscoveryService/FetchSecrets",
			"/envoy.service.runtime.v3.RuntimeDiscoveryService/FetchRuntime",
			"/envoy.service.extension.v3.ExtensionConfigDiscoveryService/FetchExtensionConfigs",
		} {
			if err := servicesCall(w.t, conn, method); status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: got %v, want %v", method, err, codes.Unimplemented)
			}
		}
	})
}

// On a stream of one type, requests may omit the type URL: the first request, ACKs, NACKs and changes of names.
// Responses have it.
func TestR009_RequestsMayOmitTheType(t *testing.T) {
	t.Parallel()
	servicesEach(t, func(w *world, v relaytest.Variant, short string) {
		w.change(short+" a@1", short+" b@1")
		c := w.dial(relaytest.ClientOptions{Variant: v, TypeURL: typeURLs[short], ImplicitType: true})
		c.subscribe(short, "a")
		w.settle()
		c.expectAndAck(formatFor(v, short+" a@1"))
		w.change(short + " a@2")
		c.expect(formatFor(v, short+" a@2"))
		c.nack(short)
		c.expect()
		w.change(short + " a@3") // the NACK counted as an answer
		c.expectAndAck(formatFor(v, short+" a@3"))
		c.Unsubscribe(typeURLs[short], "a")
		c.subscribe(short, "b")
		w.settle()
		if !slices.Contains(c.received(), formatFor(v, short+" b@1")) {
			w.t.Errorf("%v: got no response to a later subscription", c)
		}
	})
	t.Run("wildcard", func(t *testing.T) {
		eachVariant(t, func(t *testing.T, v relaytest.Variant) {
			worldBubble(t, nil, func(w *world) {
				w.change("cds a@1", "cds b@1")
				c := w.dial(relaytest.ClientOptions{Variant: v, TypeURL: typeURLs["cds"], ImplicitType: true})
				c.subscribe("cds", "")
				w.settle()
				c.expectAndAck(formatFor(v, "cds a@1 b@1"))
			})
		})
	})
}

// A request for another type ends a stream of one type, with an error that names both types. Other streams of the
// connection are not affected.
func TestR009_AnotherTypeEndsTheStream(t *testing.T) {
	t.Parallel()
	servicesEach(t, func(w *world, v relaytest.Variant, short string) {
		t := w.t
		w.change(short+" a@1", "acme a@1")
		conn := w.relay.Conn()
		open := func() *relaytest.Client {
			return relaytest.NewClient(t, conn, relaytest.ClientOptions{Variant: v, TypeURL: typeURLs[short]})
		}
		other := open()
		other.Subscribe(typeURLs[short], "a")
		recvAndAck(t, other, typeURLs[short], "a")
		for _, served := range []bool{false, true} {
			c := open()
			if served {
				c.Subscribe(typeURLs[short], "a")
				recvAndAck(t, c, typeURLs[short], "a")
			}
			c.Subscribe(typeURLs["acme"], "a")
			err := c.WaitEnd(t.Context())
			text := status.Convert(err).Message()
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(text, typeURLs[short]) ||
				!strings.Contains(text, typeURLs["acme"]) {
				t.Errorf("served=%v: the stream ended with %v, want %v with both types", served, err, codes.InvalidArgument)
			}
		}
		w.change(short + " a@2")
		recvAndAck(t, other, typeURLs[short], "a")
	})
}

// Methods of the v2 transport are unimplemented.
func TestR013_B44_TheV2TransportIsUnimplemented(t *testing.T) {
	t.Parallel()
	worldBubble(t, nil, func(w *world) {
		conn := w.relay.Conn()
		for _, method := range []string{
			"/envoy.service.discovery.v2.AggregatedDiscoveryService/StreamAggregatedResources",
			"/envoy.service.discovery.v2.AggregatedDiscoveryService/DeltaAggregatedResources",
			"/envoy.service.discovery.v2.SecretDiscoveryService/StreamSecrets",
			"/envoy.service.discovery.v2.RuntimeDiscoveryService/StreamRuntime",
			"/envoy.api.v2.ListenerDiscoveryService/StreamListeners",
			"/envoy.api.v2.RouteDiscoveryService/StreamRoutes",
			"/envoy.api.v2.ScopedRoutesDiscoveryService/StreamScopedRoutes",
			"/envoy.api.v2.VirtualHostDiscoveryService/DeltaVirtualHosts",
			"/envoy.api.v2.ClusterDiscoveryService/StreamClusters",
			"/envoy.api.v2.ClusterDiscoveryService/DeltaClusters",
			"/envoy.api.v2.EndpointDiscoveryService/StreamEndpoints",
		} {
			if err := servicesCall(w.t, conn, method); status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: got %v, want %v", method, err, codes.Unimplemented)
			}
		}
	})
}

// On an aggregated v3 stream, a v2 type is an unknown type. A v3 service of one type refuses it.
func TestR013_V2TypesAreUnknownTypes(t *testing.T) {
	t.Parallel()
	const v2 = "type.googleapis.com/envoy.api.v2.Cluster"
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.Set(v2, "a", relaytest.Opaque(v2, "a", []byte{0, 255}), "1")
		o.Set(v2, "b", relaytest.Opaque(v2, "b", nil), "1")
		r := start(t, o)
		c := r.Client(relaytest.ClientOptions{Variant: v})
		c.Subscribe(v2, "a", "b")
		recvAndAck(t, c, v2, "a", "b")
		if !c.State().SameContent(o.Resources(), v2) {
			t.Errorf("the client has %v, want the origin's resources", c.State()[v2])
		}
		o.Set(v2, "b", relaytest.Opaque(v2, "b", []byte("new")), "2")
		recvAndAck(t, c, v2, "b") // a complete set would contain a, too

		clusters := r.Client(relaytest.ClientOptions{Variant: v, TypeURL: typeCDS})
		clusters.Subscribe(v2)
		expectStatus(t, clusters, codes.InvalidArgument)
	})
}
