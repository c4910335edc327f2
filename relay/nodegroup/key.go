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

// ContentFeatures are the client features that change the resources of an origin. They are part of each group's key
// (R143).
var ContentFeatures = []string{"envoy.config.require-any-fields-contain-struct", "envoy.lb.does_not_support_overprovisioning"}

// Sort returns the key of the group of the client's node n. It also returns upstream, the relay's own Node, after
// setting the fields of n that are in the key. It modifies upstream; the caller passes a copy.
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

// copyField copies one field of a group's key from a client's Node to the Node for the origin. It returns the value as
// text for the key.
func copyField(to, from *corepb.Node, field string) string {
	if field == "user_agent_version" {
		return copyMajorVersion(to, from)
	}
	if path, is := strings.CutPrefix(field, "metadata."); is {
		return copyMetadata(to, from, strings.Split(path, "."))
	}
	value := authz.FieldOf(from, field)
	setText(to, field, value)
	return keyText(value)
}

// setText sets a field of a Node that is a text.
func setText(n *corepb.Node, field, value string) {
	switch field {
	case "id":
		n.Id = value
	case "cluster":
		n.Cluster = value
	case "user_agent_name":
		n.UserAgentName = value
	case "locality.region":
		localityOf(n).Region = value
	case "locality.zone":
		localityOf(n).Zone = value
	case "locality.sub_zone":
		localityOf(n).SubZone = value
	}
}

// copyMetadata is copyField for a path in the metadata.
func copyMetadata(to, from *corepb.Node, path []string) string {
	v := lookUp(from.GetMetadata(), path)
	if v == nil {
		strike(to.Metadata, path) // the relay's own value must not replace a value that the client lacks
		return ""
	}
	if to.Metadata == nil {
		to.Metadata = &structpb.Struct{}
	}
	// Make a new value: v may contain unknown fields, which are not in the key.
	value := v.AsInterface()
	v, _ = structpb.NewValue(value) // never fails for a result of AsInterface
	put(to.Metadata, path, v)
	return jsonText(value)
}

// keyText returns a value for use in a key. It quotes a value that could be parsed as several values, so that a client
// cannot forge the key of another group. Metadata is JSON and needs no quotes.
func keyText(value string) string {
	if strings.ContainsAny(value, `,"`) {
		return strconv.Quote(value)
	}
	return value
}

// copyMajorVersion copies the major version of the client's software, and returns it as text for the key. Minor
// versions would create a group for each release.
func copyMajorVersion(to, from *corepb.Node) string {
	if v := proto.CloneOf(from.GetUserAgentBuildVersion().GetVersion()); v != nil {
		v.MinorNumber, v.Patch = 0, 0
		v.ProtoReflect().SetUnknown(nil) // unknown fields are not in the key
		build := &corepb.BuildVersion{Version: v}
		to.UserAgentVersionType = &corepb.Node_UserAgentBuildVersion{UserAgentBuildVersion: build}
		return strconv.FormatUint(uint64(v.GetMajorNumber()), 10)
	}
	major, _, _ := strings.Cut(strings.TrimPrefix(from.GetUserAgentVersion(), "v"), ".")
	to.UserAgentVersionType = &corepb.Node_UserAgentVersion{UserAgentVersion: major}
	return keyText("v" + major) // differs from a build version, since the origin receives another field
}

// localityOf returns the locality of a node, and adds an empty one if it is nil.
func localityOf(n *corepb.Node) *corepb.Locality {
	if n.Locality == nil {
		n.Locality = &corepb.Locality{}
	}
	return n.Locality
}

// lookUp returns the value at a path, or nil if there is none.
func lookUp(s *structpb.Struct, path []string) *structpb.Value {
	v := s.GetFields()[path[0]]
	if len(path) == 1 || v == nil {
		return v
	}
	return lookUp(v.GetStructValue(), path[1:])
}

// put sets the value at a path. It replaces values on the path that are not objects.
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

// strike removes the value at a path.
func strike(s *structpb.Struct, path []string) {
	if len(path) == 1 {
		delete(s.GetFields(), path[0])
		return
	}
	if inner := s.GetFields()[path[0]].GetStructValue(); inner != nil {
		strike(inner, path[1:])
	}
}

// jsonText returns a value as JSON with sorted keys, so that equal values have equal texts.
func jsonText(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%#v", v) // NaN and infinities, which JSON cannot represent
	}
	return string(b)
}
