package wire

import (
	"net/url"
	"slices"
	"strings"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// A Variant identifies one of several resources with the same name.
//
// Source: xDS proposal TP2.
type Variant struct {
	Name        string
	Constraints []byte // see Resource.Constraints
}

// Key returns the key of the resource; see [Resource.Key].
func (v Variant) Key() string {
	if v.Constraints == nil {
		return v.Name
	}
	return v.Name + "\x00" + string(v.Constraints)
}

// Matches reports whether clients with these parameters receive the variant. A variant
// without constraints matches every client.
func (v Variant) Matches(parameters map[string]string) bool {
	if v.Constraints == nil {
		return true
	}
	c := new(discoverypb.DynamicParameterConstraints)
	// Constraints were decoded once already, so Unmarshal does not fail.
	return proto.Unmarshal(v.Constraints, c) == nil && satisfied(c, parameters)
}

func satisfied(c *discoverypb.DynamicParameterConstraints, parameters map[string]string) bool {
	satisfies := func(c *discoverypb.DynamicParameterConstraints) bool { return satisfied(c, parameters) }
	violates := func(c *discoverypb.DynamicParameterConstraints) bool { return !satisfied(c, parameters) }
	switch t := c.GetType().(type) {
	case *discoverypb.DynamicParameterConstraints_Constraint:
		return satisfiedOne(t.Constraint, parameters)
	case *discoverypb.DynamicParameterConstraints_OrConstraints:
		return slices.ContainsFunc(t.OrConstraints.GetConstraints(), satisfies)
	case *discoverypb.DynamicParameterConstraints_AndConstraints:
		return !slices.ContainsFunc(t.AndConstraints.GetConstraints(), violates)
	case *discoverypb.DynamicParameterConstraints_NotConstraints:
		return !satisfied(t.NotConstraints, parameters)
	default:
		return true // no constraint
	}
}

func satisfiedOne(c *discoverypb.DynamicParameterConstraints_SingleConstraint, parameters map[string]string) bool {
	value, ok := parameters[c.GetKey()]
	switch c.GetConstraintType().(type) {
	case *discoverypb.DynamicParameterConstraints_SingleConstraint_Value:
		return ok && value == c.GetValue()
	case *discoverypb.DynamicParameterConstraints_SingleConstraint_Exists_:
		return ok
	default:
		return false // an unknown kind of constraint
	}
}

// Separator separates a name from the text that the relay appends to it internally. It
// cannot be part of a name, since names are UTF-8.
const Separator = "\xff"

// WithParameters returns the relay's internal name of a subscription with dynamic
// parameters. Different parameters give different names, since the origin may send
// different resources.
func WithParameters(name string, parameters map[string]string) string {
	if len(parameters) == 0 {
		return name
	}
	values := make(url.Values, len(parameters))
	for k, v := range parameters {
		values.Set(k, v)
	}
	return name + Separator + values.Encode()
}

// SplitParameters returns the arguments from which WithParameters made the text.
func SplitParameters(text string) (name string, parameters map[string]string) {
	name, encoded, found := strings.Cut(text, Separator)
	if !found {
		return name, nil
	}
	values, _ := url.ParseQuery(encoded) // encoded by WithParameters
	parameters = make(map[string]string, len(values))
	for k := range values {
		parameters[k] = values.Get(k)
	}
	return name, parameters
}

// PlainName returns a name without the parameters that WithParameters added.
func PlainName(text string) string {
	name, _, _ := strings.Cut(text, Separator)
	return name
}

// constraintBytes returns the deterministic encoding of constraints, so that equal
// constraints have equal bytes; nil if there are none.
func constraintBytes(c *discoverypb.DynamicParameterConstraints) []byte {
	// A message that was decoded can be encoded.
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if len(b) == 0 {
		return nil
	}
	return b
}

// parameterised is WithParameters, except that wildcards and collections, which cannot
// have parameters, are returned unchanged.
func parameterised(name string, parameters map[string]string) string {
	if name == Wildcard || Glob(name) {
		return name
	}
	return WithParameters(name, parameters)
}
