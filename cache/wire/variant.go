package wire

import (
	"net/url"
	"slices"
	"strings"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// A Variant names one of the resources that share a name.
//
// Source: xDS proposal TP2.
type Variant struct {
	Name        string
	Constraints []byte // see Resource.Constraints
}

// Key is that of the resource, see Resource.Key.
func (v Variant) Key() string {
	if v.Constraints == nil {
		return v.Name
	}
	return v.Name + "\x00" + string(v.Constraints)
}

// Matches reports whether clients with these parameters receive the variant. One
// without constraints is for everybody.
func (v Variant) Matches(parameters map[string]string) bool {
	if v.Constraints == nil {
		return true
	}
	c := new(discoverypb.DynamicParameterConstraints)
	// What cannot be read was never taken for constraints.
	return proto.Unmarshal(v.Constraints, c) == nil && satisfied(c, parameters)
}

func satisfied(c *discoverypb.DynamicParameterConstraints, parameters map[string]string) bool {
	satisfies := func(c *discoverypb.DynamicParameterConstraints) bool { return satisfied(c, parameters) }
	switch t := c.GetType().(type) {
	case *discoverypb.DynamicParameterConstraints_Constraint:
		return satisfiedOne(t.Constraint, parameters)
	case *discoverypb.DynamicParameterConstraints_OrConstraints:
		return slices.ContainsFunc(t.OrConstraints.GetConstraints(), satisfies)
	case *discoverypb.DynamicParameterConstraints_AndConstraints:
		return !slices.ContainsFunc(t.AndConstraints.GetConstraints(), func(c *discoverypb.DynamicParameterConstraints) bool { return !satisfies(c) })
	case *discoverypb.DynamicParameterConstraints_NotConstraints:
		return !satisfied(t.NotConstraints, parameters)
	default:
		return true // no constraint
	}
}

func satisfiedOne(c *discoverypb.DynamicParameterConstraints_SingleConstraint, parameters map[string]string) bool {
	value, has := parameters[c.GetKey()]
	switch c.GetConstraintType().(type) {
	case *discoverypb.DynamicParameterConstraints_SingleConstraint_Value:
		return has && value == c.GetValue()
	case *discoverypb.DynamicParameterConstraints_SingleConstraint_Exists_:
		return has
	default:
		return false // an unknown kind of constraint
	}
}

// Separator parts a name from what is put behind it within the relay. It is in no
// name: those are UTF-8.
const Separator = "\xff"

// WithParameters returns the text by which the relay calls a name that is asked for
// with dynamic parameters: other parameters, other text, since the answer may be
// another.
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

// SplitParameters undoes WithParameters.
func SplitParameters(text string) (name string, parameters map[string]string) {
	name, encoded, has := strings.Cut(text, Separator)
	if !has {
		return name, nil
	}
	values, _ := url.ParseQuery(encoded) // it was made by WithParameters
	parameters = make(map[string]string, len(values))
	for k := range values {
		parameters[k] = values.Get(k)
	}
	return name, parameters
}

// PlainName returns the name that WithParameters was given.
func PlainName(text string) string {
	name, _, _ := strings.Cut(text, Separator)
	return name
}

// constraintBytes returns constraints in the one form that equal ones have in
// common; nil if there are none.
func constraintBytes(c *discoverypb.DynamicParameterConstraints) []byte {
	// It was decoded, so it can be encoded.
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(c)
	if len(b) == 0 {
		return nil
	}
	return b
}

// withOwn is WithParameters for names that can have any.
func withOwn(name string, parameters map[string]string) string {
	if name == Wildcard || Glob(name) {
		return name
	}
	return WithParameters(name, parameters)
}
