package upstream_test

import (
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/relay/relaytest"
	"github.com/xdstender/tender/relay/relaytest/check"
)

// variants returns a SotW response with variants of a listener, one for each value of the parameter env. The version of
// a variant is its value.
func variants(t *testing.T, name string, envs ...string) *discoverypb.DiscoveryResponse {
	t.Helper()
	resp := &discoverypb.DiscoveryResponse{TypeUrl: listeners}
	for _, env := range envs {
		body, err := anypb.New(relaytest.Listener(name, env))
		check.OK(t, err)
		wrapped, err := anypb.New(&discoverypb.Resource{
			ResourceName: &discoverypb.ResourceName{Name: name, DynamicParameterConstraints: &discoverypb.DynamicParameterConstraints{
				Type: &discoverypb.DynamicParameterConstraints_Constraint{
					Constraint: &discoverypb.DynamicParameterConstraints_SingleConstraint{
						Key:            "env",
						ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Value{Value: env},
					},
				},
			}},
			Version: env, Resource: body,
		})
		check.OK(t, err)
		resp.Resources = append(resp.Resources, wrapped)
	}
	return resp
}

// TestR121_SotWOmittedVariantIsRemoved: for a full-state type, a variant that a SotW response omits is removed. Other
// variants of the name stay.
func TestR121_SotWOmittedVariantIsRemoved(t *testing.T) {
	inBubble(t, relaytest.Behaviour{SotW: true, Manual: true}, forced, func(t *testing.T, r *rig) {
		prod, test := wire.WithParameters("a", map[string]string{"env": "prod"}), wire.WithParameters("a", map[string]string{"env": "test"})
		r.watch.Subscribe(listeners, []string{prod, test})
		s := r.Accept(t.Context())
		r.pass(soon)
		s.SendSotW(variants(t, "a", "prod", "test"))
		r.namedAfter(soon, "both variants", listeners, prod+"@prod "+test+"@test")
		s.SendSotW(variants(t, "a", "test"))
		r.namedAfter(soon, "after a response without prod", listeners, test+"@test")
		s.SendSotW(variants(t, "a"))
		r.pass(soon)
		r.expect("after a response without both", present(r.named(listeners)), "")
	})
}
