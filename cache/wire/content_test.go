package wire_test

import (
	"testing"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache/wire"
)

func TestHasEndpoints(t *testing.T) {
	locality := func(fields ...[]byte) []byte { return join(bytesField(1, "c"), bytesField(2, join(fields...))) }
	for name, tt := range map[string]struct {
		value []byte
		want  bool
	}{
		"none":                       {bytesField(1, "c"), false},
		"a locality without any":     {locality(bytesField(1, "")), false},
		"an endpoint":                {locality(bytesField(1, ""), bytesField(2, "")), true},
		"a load balancer's":          {locality(bytesField(7, "")), true},
		"a collection":               {locality(bytesField(8, "")), true},
		"a locality that is garbage": {locality([]byte{0xff}), true},
		"garbage":                    {[]byte{0xff}, true},
	} {
		r := decodeOne(t, wire.EndpointType, resourceOf("1", "c", anyOf(wire.EndpointType, tt.value)))
		if got := r.HasEndpoints(); got != tt.want {
			t.Errorf("%s: got %t, want %t", name, got, tt.want)
		}
	}
	if decodeOne(t, acme, resourceOf("1", "c", anyOf(acme, locality(bytesField(2, ""))))).HasEndpoints() {
		t.Error("another type has endpoints")
	}
}

func TestR122_ConstraintsSelectAVariant(t *testing.T) {
	type constraints = discoverypb.DynamicParameterConstraints
	single := func(c *discoverypb.DynamicParameterConstraints_SingleConstraint) *constraints {
		return &constraints{Type: &discoverypb.DynamicParameterConstraints_Constraint{Constraint: c}}
	}
	prod := envConstraints("prod")
	zone := single(&discoverypb.DynamicParameterConstraints_SingleConstraint{
		Key:            "zone",
		ConstraintType: &discoverypb.DynamicParameterConstraints_SingleConstraint_Exists_{},
	})
	both := &discoverypb.DynamicParameterConstraints_ConstraintList{Constraints: []*constraints{prod, zone}}
	names := []string{wire.WithParameters("a", nil), wire.WithParameters("a", map[string]string{"env": "prod"}),
		wire.WithParameters("a", map[string]string{"env": "prod", "zone": "z"})}
	for what, tt := range map[string]struct {
		c    *constraints
		want [3]bool // of names
	}{
		"none":    {nil, [3]bool{true, true, true}},
		"a value": {prod, [3]bool{false, true, true}},
		"a key":   {zone, [3]bool{false, false, true}},
		"either": {&constraints{Type: &discoverypb.DynamicParameterConstraints_OrConstraints{OrConstraints: both}},
			[3]bool{false, true, true}},
		"both": {&constraints{Type: &discoverypb.DynamicParameterConstraints_AndConstraints{AndConstraints: both}},
			[3]bool{false, false, true}},
		"not": {&constraints{Type: &discoverypb.DynamicParameterConstraints_NotConstraints{NotConstraints: zone}},
			[3]bool{true, true, false}},
		"unknown kind": {single(&discoverypb.DynamicParameterConstraints_SingleConstraint{Key: "env"}), [3]bool{}},
	} {
		full := marshal(t, &discoverypb.ResourceName{Name: "a", DynamicParameterConstraints: tt.c})
		r := decodeOne(t, acme, join(resourceOf("1", "", anyOf(acme, nil)), bytesField(8, full)))
		for i, text := range names {
			if name, parameters := wire.SplitParameters(text); name != "a" || r.Variant().Matches(parameters) != tt.want[i] {
				t.Errorf("%s: %q with %v matches: %t, want %t", what, name, parameters, r.Variant().Matches(parameters), tt.want[i])
			}
		}
	}
}
