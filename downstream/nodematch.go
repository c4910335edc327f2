package downstream

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	matcherpb "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// A NodeMatch reports whether a node matches.
type NodeMatch func(*node) bool

// MatchNodes returns a match of the nodes that any of the matchers matches; without matchers, of all nodes.
//
// Errors: an invalid matcher, or one of an unknown kind.
//
// Source: envoy.type.matcher.v3.
func MatchNodes(matchers []*matcherpb.NodeMatcher) (NodeMatch, error) {
	var matches []NodeMatch
	for i, m := range matchers {
		match, err := matchNode(m)
		if err != nil {
			return nil, fmt.Errorf("node_matchers[%d].%w", i, err)
		}
		matches = append(matches, match)
	}
	return func(n *node) bool {
		return len(matches) == 0 || slices.ContainsFunc(matches, func(match NodeMatch) bool { return match(n) })
	}, nil
}

// matchNode returns a match of nodes whose id and metadata all match.
func matchNode(m *matcherpb.NodeMatcher) (NodeMatch, error) {
	var all []NodeMatch
	if m.GetNodeId() != nil {
		match, err := matchString(m.GetNodeId())
		if err != nil {
			return nil, fmt.Errorf("node_id: %w", err)
		}
		all = append(all, func(n *node) bool { return match(n.GetId()) })
	}
	for i, s := range m.GetNodeMetadatas() {
		match, err := matchValue(s.GetValue())
		if err != nil {
			return nil, fmt.Errorf("node_metadatas[%d].value: %w", i, err)
		}
		all = append(all, func(n *node) bool { return match(valueAt(n.GetMetadata(), s.GetPath())) })
	}
	return func(n *node) bool {
		return !slices.ContainsFunc(all, func(match NodeMatch) bool { return !match(n) })
	}, nil
}

// valueAt returns the value at a path, nil if there is none.
func valueAt(s *structpb.Struct, path []*matcherpb.StructMatcher_PathSegment) (v *structpb.Value) {
	for i, segment := range path {
		if i > 0 {
			s = v.GetStructValue()
		}
		if v = s.GetFields()[segment.GetKey()]; v == nil {
			return nil
		}
	}
	return v
}

// matchString returns the match of a StringMatcher. Regular expressions match the whole text, in the syntax of RE2, as
// Envoy's do.
func matchString(m *matcherpb.StringMatcher) (func(string) bool, error) {
	fold := func(s string) string { return s }
	if m.GetIgnoreCase() {
		fold = strings.ToLower
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherpb.StringMatcher_Exact:
		return func(s string) bool { return fold(s) == fold(p.Exact) }, nil
	case *matcherpb.StringMatcher_Prefix:
		return func(s string) bool { return strings.HasPrefix(fold(s), fold(p.Prefix)) }, nil
	case *matcherpb.StringMatcher_Suffix:
		return func(s string) bool { return strings.HasSuffix(fold(s), fold(p.Suffix)) }, nil
	case *matcherpb.StringMatcher_Contains:
		return func(s string) bool { return strings.Contains(fold(s), fold(p.Contains)) }, nil
	case *matcherpb.StringMatcher_SafeRegex:
		re, err := regexp.Compile(`\A(?:` + p.SafeRegex.GetRegex() + `)\z`)
		if err != nil {
			return nil, fmt.Errorf("safe_regex.regex: %w", err)
		}
		return re.MatchString, nil
	default:
		return nil, fmt.Errorf("match_pattern is %T: want exact, prefix, suffix, contains or safe_regex", p)
	}
}

// matchValue returns the match of a ValueMatcher; a missing value is nil.
func matchValue(m *matcherpb.ValueMatcher) (func(*structpb.Value) bool, error) {
	switch p := m.GetMatchPattern().(type) {
	case *matcherpb.ValueMatcher_NullMatch_:
		return func(v *structpb.Value) bool { _, is := v.GetKind().(*structpb.Value_NullValue); return is }, nil
	case *matcherpb.ValueMatcher_PresentMatch:
		return func(v *structpb.Value) bool { return (v != nil) == p.PresentMatch }, nil
	case *matcherpb.ValueMatcher_BoolMatch:
		return func(v *structpb.Value) bool {
			b, is := v.GetKind().(*structpb.Value_BoolValue)
			return is && b.BoolValue == p.BoolMatch
		}, nil
	case *matcherpb.ValueMatcher_DoubleMatch:
		return func(v *structpb.Value) bool {
			n, is := v.GetKind().(*structpb.Value_NumberValue)
			return is && matchDouble(p.DoubleMatch, n.NumberValue)
		}, nil
	case *matcherpb.ValueMatcher_StringMatch:
		match, err := matchString(p.StringMatch)
		return func(v *structpb.Value) bool {
			s, is := v.GetKind().(*structpb.Value_StringValue)
			return is && match(s.StringValue)
		}, err
	case *matcherpb.ValueMatcher_ListMatch:
		match, err := matchValue(p.ListMatch.GetOneOf())
		return func(v *structpb.Value) bool { return slices.ContainsFunc(v.GetListValue().GetValues(), match) }, err
	case *matcherpb.ValueMatcher_OrMatch:
		return matchOr(p.OrMatch)
	default:
		return nil, fmt.Errorf("match_pattern is %T: want null_match, present_match, bool_match, double_match, string_match, list_match or or_match", p)
	}
}

func matchOr(m *matcherpb.OrMatcher) (func(*structpb.Value) bool, error) {
	var matches []func(*structpb.Value) bool
	for i, of := range m.GetValueMatchers() {
		match, err := matchValue(of)
		if err != nil {
			return nil, fmt.Errorf("or_match.value_matchers[%d]: %w", i, err)
		}
		matches = append(matches, match)
	}
	return func(v *structpb.Value) bool {
		return slices.ContainsFunc(matches, func(match func(*structpb.Value) bool) bool { return match(v) })
	}, nil
}

// matchDouble reports whether a number is the exact one, or in the range, which excludes its end.
func matchDouble(m *matcherpb.DoubleMatcher, n float64) bool {
	if r := m.GetRange(); r != nil {
		return r.GetStart() <= n && n < r.GetEnd()
	}
	exact, is := m.GetMatchPattern().(*matcherpb.DoubleMatcher_Exact)
	return is && exact.Exact == n
}
