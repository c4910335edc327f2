package downstream

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	adminpb "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	lrspb "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	statuspb "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherpb "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/downstream/guard"
	"github.com/xdstender/tender/downstream/loadreport"
)

// loadService serves load reports (R139).
type loadService struct{ *Server }

// StreamLoadStats implements the gRPC service.
func (s loadService) StreamLoadStats(rpc lrspb.LoadReportingService_StreamLoadStatsServer) error {
	leave, err := s.enterStream(guard.PeerName(guard.PeerOf(rpc.Context())))
	if err != nil {
		return s.streamEnded(rpc.Context(), "", err)
	}
	defer leave()
	return s.streamEnded(rpc.Context(), "", s.serve(rpc))
}

// serve serves a stream of load reports that was counted against the limits.
func (s loadService) serve(rpc grpc.ServerStream) error {
	ctx, end := context.WithCancelCause(rpc.Context())
	defer end(nil)
	leave, err := s.enterChain(grpcCall{rpc}, false, end)
	if err != nil {
		return err
	}
	defer leave()
	for _, token := range relayTokens(ctx) {
		// The stream to the origin has the same header, unless reports are summed.
		ctx = metadata.AppendToOutgoingContext(ctx, wire.RelayHeader, token)
	}
	return s.loads.Serve(ctx, rpc, guard.Expiry(ctx, s.cfg.ConnectionAge))
}

// identifyReporter returns the client that a Node in a stream of load reports identifies. It joins the group of the
// Node if reports are summed.
func (s loadService) identifyReporter(ctx context.Context, raw guard.RawNode) (*loadreport.Client, error) {
	from := guard.PeerOf(ctx)
	ident, err := s.identify(ctx, from, raw, func() bool { return s.cfg.SumLoads })
	if err != nil {
		return nil, err
	}
	client := &loadreport.Client{
		Label: ident.label, SendAllClusters: ident.allClusters,
		Group: ident.group.Key, Node: ident.group.Node, Leave: ident.release,
	}
	if ident.grantsChanged != nil {
		client.Revoked = func(ctx context.Context) error { return s.awaitRevocation(ctx, from, ident) }
	}
	return client, nil
}

// awaitRevocation waits until the client is no longer authorized to use its Node, and returns the error. It returns nil
// if ctx ends first.
func (s loadService) awaitRevocation(ctx context.Context, from guard.Peer, ident *identity) (err error) {
	for rules := ident.grantsChanged; err == nil; {
		select {
		case <-rules:
			rules = s.cfg.grantsChanged()
			_, err = s.reauthorize(ctx, from, ident.keptNode)
		case <-ctx.Done():
			return nil
		}
	}
	return err
}

// Contents caches the bodies of resources in the form that CSDS shows: without sensitive fields, and without bodies of
// Secrets (B.36). It is used for one request, in which many clients may have the same resources. A nil Contents shows
// no bodies.
type Contents map[*wire.Resource]*anypb.Any

// Of returns the body of a resource, or nil if it is not shown. If the body cannot be decoded, its value is empty.
func (c Contents) Of(typeURL string, r *wire.Resource) *anypb.Any {
	if c == nil || wire.IsSecret(typeURL) || wire.IsSecret(r.TypeURL) || !r.HasBody() || r.ContentDropped() {
		return nil
	}
	if shown, ok := c[r]; ok {
		return shown
	}
	shown := &anypb.Any{TypeUrl: r.TypeURL}
	if value, err := schema.Redact(r.TypeURL, r.Value()); err == nil {
		shown.Value = value
	}
	c[r] = shown
	return shown
}

// ClientConfig returns the status of each resource that a client requested, as CSDS defines it for management servers
// (R141). The client_scope is "client/" and the number of the stream.
func (s *Server) ClientConfig(client *StreamStatus, contents Contents) *statuspb.ClientConfig {
	config := &statuspb.ClientConfig{Node: client.Node(), ClientScope: "client/" + strconv.FormatUint(client.Number, 10)}
	types := make(map[string]*TypeStatus, len(client.Types))
	for i := range client.Types {
		types[client.Types[i].TypeURL] = &client.Types[i]
	}
	for _, r := range s.Resources(client.Number) {
		if t := types[r.TypeURL]; t != nil { // nil if the client subscribed to the type after the status was read
			config.GenericXdsConfigs = append(config.GenericXdsConfigs, configOf(&r, t, client.Delta, contents))
		}
	}
	return config
}

// configOf returns the status of a resource. For SotW clients the version is that of the response, for Delta clients
// that of the resource.
func configOf(r *ResourceStatus, t *TypeStatus, delta bool, contents Contents) *statuspb.ClientConfig_GenericXdsConfig {
	out := &statuspb.ClientConfig_GenericXdsConfig{TypeUrl: r.TypeURL, Name: r.Entry.Name.String()}
	version := ""
	if r.Entry.Present() {
		version, out.XdsConfig = r.Entry.Resource.Version, contents.Of(r.TypeURL, r.Entry.Resource)
	}
	pick := func(response string) string {
		if delta {
			return version
		}
		return cmp.Or(response, version)
	}
	switch r.State {
	case NotSent:
		out.ConfigStatus, out.VersionInfo = statuspb.ConfigStatus_NOT_SENT, version
	case Sent:
		out.ConfigStatus, out.VersionInfo = statuspb.ConfigStatus_STALE, pick(t.Version)
		out.LastUpdated = timestamppb.New(t.SentAt)
	case Accepted:
		out.ConfigStatus, out.VersionInfo = statuspb.ConfigStatus_SYNCED, pick(t.Accepted)
		if !t.AcceptedAt.IsZero() {
			out.LastUpdated = timestamppb.New(t.AcceptedAt)
		}
	case Rejected:
		out.ConfigStatus = statuspb.ConfigStatus_ERROR
		if !delta {
			out.VersionInfo = t.Accepted
		}
		out.ErrorState = &adminpb.UpdateFailureState{
			LastUpdateAttempt: timestamppb.New(r.Rejection.At), Details: r.Rejection.Detail, VersionInfo: pick(r.Rejection.Version),
		}
	}
	return out
}

// A NodeMatch reports whether a node matches.
type NodeMatch func(*node) bool

// MatchNodes returns a match of the nodes that match any of the matchers. Without matchers, all nodes match.
//
// Errors: an invalid matcher, or an unsupported kind of matcher.
//
// Source: envoy.type.matcher.v3.
func MatchNodes(matchers []*matcherpb.NodeMatcher) (NodeMatch, error) {
	matches, err := compileAll("node_matchers[%d].", matchers, matchNode)
	return func(n *node) bool { return len(matches) == 0 || anyOf(matches)(n) }, err
}

// compileAll returns the match of each matcher. where is a format of the index of a matcher; the text begins its error.
func compileAll[M, V any](
	where string, matchers []M, compile func(M) (func(V) bool, error),
) (matches []func(V) bool, err error) {
	for i, m := range matchers {
		match, err := compile(m)
		if err != nil {
			return nil, fmt.Errorf("%s%w", fmt.Sprintf(where, i), err)
		}
		matches = append(matches, match)
	}
	return matches, nil
}

// anyOf returns a match of the values that match any of the matches.
func anyOf[V any](matches []func(V) bool) func(V) bool {
	return func(v V) bool { return slices.ContainsFunc(matches, func(match func(V) bool) bool { return match(v) }) }
}

// matchNode returns a match of the nodes whose id and metadata match all conditions.
func matchNode(m *matcherpb.NodeMatcher) (func(*node) bool, error) {
	id := func(string) bool { return true }
	if m.GetNodeId() != nil {
		var err error
		if id, err = matchString(m.GetNodeId()); err != nil {
			return nil, fmt.Errorf("node_id: %w", err)
		}
	}
	differs, err := compileAll("node_metadatas[%d].value: ", m.GetNodeMetadatas(),
		func(s *matcherpb.StructMatcher) (func(*node) bool, error) {
			match, err := matchValue(s.GetValue())
			return func(n *node) bool { return !match(valueAt(n.GetMetadata(), s.GetPath())) }, err
		})
	return func(n *node) bool { return id(n.GetId()) && !anyOf(differs)(n) }, err
}

// valueAt returns the value at a path, or nil.
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

// matchString returns the match of a StringMatcher. As in Envoy, a regular expression has RE2 syntax and must match the
// whole text.
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

// matchValue returns the match of a ValueMatcher. A missing value is nil.
func matchValue(m *matcherpb.ValueMatcher) (func(*structpb.Value) bool, error) {
	switch p := m.GetMatchPattern().(type) {
	case *matcherpb.ValueMatcher_NullMatch_:
		return func(v *structpb.Value) bool { _, ok := v.GetKind().(*structpb.Value_NullValue); return ok }, nil
	case *matcherpb.ValueMatcher_PresentMatch:
		return func(v *structpb.Value) bool { return (v != nil) == p.PresentMatch }, nil
	case *matcherpb.ValueMatcher_BoolMatch:
		return func(v *structpb.Value) bool { return v.AsInterface() == any(p.BoolMatch) }, nil
	case *matcherpb.ValueMatcher_DoubleMatch:
		return func(v *structpb.Value) bool {
			n, ok := v.GetKind().(*structpb.Value_NumberValue)
			return ok && matchDouble(p.DoubleMatch, n.NumberValue)
		}, nil
	case *matcherpb.ValueMatcher_StringMatch:
		match, err := matchString(p.StringMatch)
		return func(v *structpb.Value) bool { s, ok := v.AsInterface().(string); return ok && match(s) }, err
	case *matcherpb.ValueMatcher_ListMatch:
		match, err := matchValue(p.ListMatch.GetOneOf())
		return func(v *structpb.Value) bool { return slices.ContainsFunc(v.GetListValue().GetValues(), match) }, err
	case *matcherpb.ValueMatcher_OrMatch:
		matches, err := compileAll("or_match.value_matchers[%d]: ", p.OrMatch.GetValueMatchers(), matchValue)
		return anyOf(matches), err
	default:
		return nil, fmt.Errorf("match_pattern is %T: want null_match, present_match, bool_match, double_match, "+
			"string_match, list_match or or_match", p)
	}
}

// matchDouble reports whether a number is equal to the exact number, or in the range, which excludes its end.
func matchDouble(m *matcherpb.DoubleMatcher, n float64) bool {
	if r := m.GetRange(); r != nil {
		return r.GetStart() <= n && n < r.GetEnd()
	}
	exact, ok := m.GetMatchPattern().(*matcherpb.DoubleMatcher_Exact)
	return ok && exact.Exact == n
}
