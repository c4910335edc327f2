package conformance_test

import (
	"testing"

	xdscorepb "github.com/cncf/xds/go/xds/core/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/relay/relaytest"
)

// Collections, redirects and locality endpoints are passed on unchanged, by name and as members of a glob. The
// relay does not resolve the names in them.
func TestR133_CollectionsAndRedirectsAreOpaque(t *testing.T) {
	t.Parallel()
	const listeners = relaytest.ListenerType
	locator := func(name string) *xdscorepb.ResourceLocator {
		return &xdscorepb.ResourceLocator{Scheme: xdscorepb.ResourceLocator_XDSTP, Authority: "one",
			ResourceType: "envoy.config.listener.v3.Listener", Id: name}
	}
	entry := relaytest.Pack(&xdscorepb.CollectionEntry{
		ResourceSpecifier: &xdscorepb.CollectionEntry_Locator{Locator: locator("a")},
	})
	inline := relaytest.Pack(&xdscorepb.CollectionEntry{ResourceSpecifier: &xdscorepb.CollectionEntry_InlineEntry_{
		InlineEntry: &xdscorepb.CollectionEntry_InlineEntry{Name: "b", Version: "1",
			Resource: relaytest.Pack(relaytest.Listener("b", "r"))}}})
	list := append(encodeField(1, entry.GetValue()), encodeField(1, inline.GetValue())...)
	list = append(list, encodeField(4242, "what the future brings")...)
	redirect := relaytest.Pack(locator("elsewhere"))
	redirect.Value = append(redirect.Value, encodeField(4242, "and more")...)

	for _, tt := range []struct {
		name, typeURL, resource, subscribe string
		body                               *anypb.Any
	}{
		{"list", listeners + "Collection", "xdstp://one/envoy.config.listener.v3.ListenerCollection/list", "",
			&anypb.Any{TypeUrl: listeners + "Collection", Value: list}},
		{"list, subscribed to as its element type", listeners,
			"xdstp://one/envoy.config.listener.v3.ListenerCollection/list", "",
			&anypb.Any{TypeUrl: listeners + "Collection", Value: list}},
		{"redirect", listeners, "xdstp://one/envoy.config.listener.v3.Listener/moved", "", redirect},
		{"redirect of a member", listeners, "xdstp://one/envoy.config.listener.v3.Listener/shop/moved",
			"xdstp://one/envoy.config.listener.v3.Listener/shop/*", redirect},
		{"redirected list", listeners + "Collection", "xdstp://one/envoy.config.listener.v3.ListenerCollection/list", "",
			redirect},
		{"endpoint", relaytest.LocalityEndpointType, "xdstp://one/envoy.config.endpoint.v3.LbEndpoint/z/1",
			"xdstp://one/envoy.config.endpoint.v3.LbEndpoint/z/*",
			&anypb.Any{TypeUrl: relaytest.LocalityEndpointType, Value: encodeField(4242, "unknown")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			eachVariant(t, func(t *testing.T, v relaytest.Variant) {
				if v == relaytest.SotW && tt.typeURL == relaytest.LocalityEndpointType {
					t.Skip("locality endpoints exist only in Delta")
				}
				worldBubble(t, nil, func(w *world) {
					w.origin.Set(tt.typeURL, tt.resource, tt.body, "1")
					c := xdstpClient(w, v)
					if tt.subscribe == "" {
						tt.subscribe = tt.resource
					}
					c.Subscribe(tt.typeURL, tt.subscribe)
					w.settle()
					responses := c.received()
					if len(responses) != 1 || len(c.batch[0].Resources) != 1 {
						t.Fatalf("got %q, want 1 resource", responses)
					}
					if got := c.batch[0].Resources[0].Body; got.GetTypeUrl() != tt.body.GetTypeUrl() ||
						string(got.GetValue()) != string(tt.body.GetValue()) {
						t.Errorf("got %v, want %v", got, tt.body)
					}
					if !w.origin.State().Subscribed(tt.typeURL, tt.subscribe) {
						t.Errorf("the origin got further subscriptions:\n%v", w.origin.State())
					}
					if s := w.origin.State().Type(tt.typeURL); s.NACKs != 0 {
						t.Errorf("the relay sent %d NACKs", s.NACKs)
					}
				})
			})
		})
	}
}

// A resource of a type other than the response's makes the response malformed, unless it is a redirect of the same
// name.
func TestR063_OtherTypesAreNoRedirects(t *testing.T) {
	t.Parallel()
	redirect := relaytest.Pack(&xdscorepb.ResourceLocator{Id: "x"})
	for name, body := range map[string]*anypb.Any{
		"plain":    redirect,
		shop + "x": {TypeUrl: relaytest.ClusterType, Value: redirect.GetValue()},
	} {
		worldBubble(t, nil, func(w *world) {
			w.origin.Set(relaytest.ListenerType, name, body, "1")
			w.manualClient(relaytest.Delta).subscribe("lds", name)
			w.settle()
			if s := w.origin.State().Type(relaytest.ListenerType); s.NACKs != 1 {
				t.Errorf("%s of type %s: the relay sent %d NACKs, want 1", name, body.GetTypeUrl(), s.NACKs)
			}
		})
	}
}
