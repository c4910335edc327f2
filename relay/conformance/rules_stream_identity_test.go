package conformance_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xdstender/tender/relay/relaytest"
)

// Each relay has its own control_plane identifier. It is in the first response of each type on a stream, and only
// there. Identifiers of origins are not passed on (B.38).
func TestR126_B38_ControlPlaneIdentifier(t *testing.T) {
	t.Parallel()
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.SetControlPlane("the-origin")
		o.Put(relaytest.Cluster("a"), domainRoute("r", "1"))
		var seen []string
		for _, r := range []*running{start(t, o), start(t, o)} {
			for range 2 {
				c := r.Client(relaytest.ClientOptions{Variant: v})
				c.Subscribe(typeCDS, "*")
				first := recvAndAck(t, c, typeCDS, "a").ControlPlane
				c.Subscribe(typeRDS, "r")
				if id := recvAndAck(t, c, typeRDS, "r").ControlPlane; id != first {
					t.Errorf("the second type has the identifier %q, the first %q", id, first)
				}
				if !strings.HasPrefix(first, "tender/test#") || strings.Contains(first, "the-origin") {
					t.Errorf("got the identifier %q", first)
				}
				o.Put(domainRoute("r", fmt.Sprint(len(seen))))
				if id := recvAndAck(t, c, typeRDS, "r").ControlPlane; id != "" {
					t.Errorf("a later response has the identifier %q", id)
				}
				seen = append(seen, first)
				c.Close()
			}
		}
		if seen[0] != seen[1] || seen[2] != seen[3] || seen[0] == seen[2] {
			t.Errorf("two relays have the identifiers %q", seen)
		}
	})
}

// Unknown fields of a Resource reach Delta clients, and SotW clients with wrapper support if the type is unknown
// (B.19).
func TestR127_UnknownFieldsOfAResourceSurvive(t *testing.T) {
	t.Parallel()
	unknown := protowire.AppendTag(nil, 4242, protowire.BytesType)
	unknown = protowire.AppendString(unknown, "what the future brings")
	resource := &discoverypb.Resource{Name: "a", Version: "1", Resource: relaytest.Opaque(acmeType, "a", nil)}
	resource.ProtoReflect().SetUnknown(unknown)
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.SetRaw(acmeType, resource)
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_NODE_GROUP_BY=none")
		for _, feature := range []string{"xds.config.resource-in-sotw", "xds.config.supports-resource-in-sotw",
			"envoy.config.resource-in-sotw", ""} {
			node := relaytest.EnvoyNode("n")
			node.ClientFeatures = []string{feature}
			c := r.Client(relaytest.ClientOptions{Variant: v, Node: node})
			c.Subscribe(acmeType)
			got := firstResource(t, recvAndAck(t, c, acmeType, "a"))
			if wants := v == relaytest.Delta ||
				feature != ""; wants && !slices.Equal(got.ProtoReflect().GetUnknown(), unknown) || wants != (got != nil) {
				t.Errorf("feature %q: got %v", feature, got)
			}
			c.Subscribe(typeCDS) // a known type is only wrapped if necessary
			if got := firstResource(t, recvAndAck(t, c, typeCDS, "a")); v == relaytest.SotW && got != nil {
				t.Errorf("feature %q: got a wrapped cluster: %v", feature, got)
			}
			c.Close()
		}
	})
}

// firstResource returns the Resource message of a response's first resource, or nil if it is not wrapped.
func firstResource(t *testing.T, r *relaytest.Response) *discoverypb.Resource {
	t.Helper()
	if m, ok := r.Message.(*discoverypb.DeltaDiscoveryResponse); ok {
		return m.GetResources()[0]
	}
	got := new(discoverypb.Resource)
	body := r.Message.(*discoverypb.DiscoveryResponse).GetResources()[0]
	if !body.MessageIs(got) {
		return nil
	}
	if err := body.UnmarshalTo(got); err != nil {
		t.Error(err)
	}
	return got
}
