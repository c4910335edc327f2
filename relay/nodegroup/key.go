package nodegroup

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/authz"
)

// ContentFeatures change what an origin must generate, and so always tell groups
// apart (R143).
var ContentFeatures = []string{"envoy.config.require-any-fields-contain-struct", "envoy.lb.does_not_support_overprovisioning"}

// Sort returns the key of a node's group, and the relay's own node, which it is
// given as upstream, with those fields of the client's that are in the key.
func Sort(n, upstream *corepb.Node, groupBy []string) (string, *corepb.Node) {
	var parts []string
	for _, field := range groupBy {
		parts = append(parts, field+"="+copyField(upstream, n, field))
	}
	if !slices.Contains(groupBy, "id") {
		upstream.Id = FillID(upstream.Id, upstream)
	}
	for _, f := range ContentFeatures {
		if slices.Contains(n.GetClientFeatures(), f) {
			parts = append(parts, f)
			upstream.ClientFeatures = append(upstream.ClientFeatures, f)
		}
	}
	if len(parts) == 0 {
		return "all", upstream
	}
	return strings.Join(parts, ","), upstream
}

// copyField copies one field of a group's key from a client's node into the one
// that is presented, and returns its value as text.
func copyField(to, from *corepb.Node, field string) string {
	value := authz.FieldOf(from, field)
	switch field {
	case "id":
		to.Id = value
	case "cluster":
		to.Cluster = value
	case "user_agent_name":
		to.UserAgentName = value
	case "locality.region":
		localityOf(to).Region = value
	case "locality.zone":
		localityOf(to).Zone = value
	case "locality.sub_zone":
		localityOf(to).SubZone = value
	case "user_agent_version":
		return copyMajorVersion(to, from)
	default:
		return copyMetadata(to, from, strings.Split(strings.TrimPrefix(field, "metadata."), "."))
	}
	return keyText(value)
}

// copyMetadata is copyField for what lies at a path of the metadata.
func copyMetadata(to, from *corepb.Node, path []string) string {
	v := lookUp(from.GetMetadata(), path)
	if v == nil {
		strike(to.Metadata, path) // a field that the client lacks must not have the relay's own value
		return ""
	}
	if to.Metadata == nil {
		to.Metadata = &structpb.Struct{}
	}
	// A new value contains nothing that is not in the key.
	value := v.AsInterface()
	v, _ = structpb.NewValue(value) // all that AsInterface returns is one
	put(to.Metadata, path, v)
	return jsonText(value)
}

// keyText returns a value for use in a key. It is quoted if it could be parsed as several values, so that a client cannot
// forge the key of another group. Metadata is JSON and needs no quotes.
func keyText(value string) string {
	if strings.ContainsAny(value, `,"`) {
		return strconv.Quote(value)
	}
	return value
}

// copyMajorVersion copies the major version of the client's software: minor ones
// would make a group for each release.
func copyMajorVersion(to, from *corepb.Node) string {
	if v := proto.CloneOf(from.GetUserAgentBuildVersion().GetVersion()); v != nil {
		v.MinorNumber, v.Patch = 0, 0
		v.ProtoReflect().SetUnknown(nil) // which is not in the key
		build := &corepb.BuildVersion{Version: v}
		to.UserAgentVersionType = &corepb.Node_UserAgentBuildVersion{UserAgentBuildVersion: build}
		return strconv.FormatUint(uint64(v.GetMajorNumber()), 10)
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(from.GetUserAgentVersion(), "v"), ".")
	to.UserAgentVersionType = &corepb.Node_UserAgentVersion{UserAgentVersion: major}
	return keyText("v" + major) // apart from numbers: the origin is shown which it was
}

// localityOf returns the locality of a node, which it adds if there is none.
func localityOf(n *corepb.Node) *corepb.Locality {
	if n.Locality == nil {
		n.Locality = &corepb.Locality{}
	}
	return n.Locality
}

func lookUp(s *structpb.Struct, path []string) *structpb.Value {
	v := s.GetFields()[path[0]]
	if len(path) == 1 || v == nil {
		return v
	}
	return lookUp(v.GetStructValue(), path[1:])
}

func put(s *structpb.Struct, path []string, v *structpb.Value) {
	if s.Fields == nil {
		s.Fields = make(map[string]*structpb.Value)
	}
	if len(path) == 1 {
		s.Fields[path[0]] = v
		return
	}
	inner := s.Fields[path[0]].GetStructValue()
	if inner == nil {
		inner = &structpb.Struct{}
		s.Fields[path[0]] = structpb.NewStructValue(inner)
	}
	put(inner, path[1:], v)
}

// strike removes what lies at a path.
func strike(s *structpb.Struct, path []string) {
	if len(path) == 1 {
		delete(s.GetFields(), path[0])
		return
	}
	if inner := s.GetFields()[path[0]].GetStructValue(); inner != nil {
		strike(inner, path[1:])
	}
}

// jsonText returns a value in the one JSON form that equal values have in common.
func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%#v", v) // numbers that JSON does not have
	}
	return string(b)
}
