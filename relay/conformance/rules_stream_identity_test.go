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

// Each relay has an identifier of its own; it stands on the first response of each type of a stream, and nowhere
// else. Who is above the relay is nobody's business (B.38).
func TestR126_B38_TheIdentifierTellsWhoServes(t *testing.T) {
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
					t.Errorf("the second type says %q, the first %q", id, first)
				}
				if !strings.HasPrefix(first, "tender/test#") || strings.Contains(first, "the-origin") {
					t.Errorf("identifier %q", first)
				}
				o.Put(domainRoute("r", fmt.Sprint(len(seen))))
				if id := recvAndAck(t, c, typeRDS, "r").ControlPlane; id != "" {
					t.Errorf("a later response says %q", id)
				}
				seen = append(seen, first)
				c.Close()
			}
		}
		if seen[0] != seen[1] || seen[2] != seen[3] || seen[0] == seen[2] {
			t.Errorf("two relays say %q", seen)
		}
	})
}

// Fields of a Resource that nobody knows yet reach Delta clients, and SotW ones
// that understand wrapped resources, where the type is unknown (B.19).
func TestR127_UnknownFieldsOfAResourceSurvive(t *testing.T) {
	t.Parallel()
	unknown := protowire.AppendTag(nil, 4242, protowire.BytesType)
	unknown = protowire.AppendString(unknown, "what the future brings")
	resource := &discoverypb.Resource{Name: "a", Version: "1", Resource: relaytest.Opaque(streamAcmeType, "a", nil)}
	resource.ProtoReflect().SetUnknown(unknown)
	originBubbles(t, func(t *testing.T, o *relaytest.Origin, v relaytest.Variant) {
		o.SetRaw(streamAcmeType, resource)
		o.Put(relaytest.Cluster("a"))
		r := start(t, o, "TENDER_NODE_GROUP_BY=none")
		for _, feature := range []string{"xds.config.resource-in-sotw", "xds.config.supports-resource-in-sotw", "envoy.config.resource-in-sotw", ""} {
			node := relaytest.EnvoyNode("n")
			node.ClientFeatures = []string{feature}
			c := r.Client(relaytest.ClientOptions{Variant: v, Node: node})
			c.Subscribe(streamAcmeType)
			got := firstResource(t, recvAndAck(t, c, streamAcmeType, "a"))
			if wants := v == relaytest.Delta || feature != ""; wants && !slices.Equal(got.ProtoReflect().GetUnknown(), unknown) || wants != (got != nil) {
				t.Errorf("feature %q: got %v", feature, got)
			}
			c.Subscribe(typeCDS) // a known type is never wrapped without need
			if got := firstResource(t, recvAndAck(t, c, typeCDS, "a")); v == relaytest.SotW && got != nil {
				t.Errorf("feature %q: a cluster came wrapped: %v", feature, got)
			}
			c.Close()
		}
	})
}

// firstResource returns the message of the first resource of a response; of a SotW response, nil if it is not wrapped.
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
