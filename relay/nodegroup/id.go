package nodegroup

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/authz"
)

// place matches a placeholder in TENDER_NODE_ID: the name of a field of the group's key in braces. Control planes with
// state by node ID, such as Envoy Gateway, need a distinct ID for each group.
var place = regexp.MustCompile(`\{[^{}]*\}`)

// placeUnended matches a place whose end nothing marks.
var placeUnended = regexp.MustCompile(`\{[^{}]*\}(\{[^{}]*\}|%)`)

// FillID returns an ID with placeholders replaced by the node's fields; absent fields are empty. Different values make
// different IDs: in a value, % and the character after the placeholder are escaped as in URLs.
func FillID(id string, n *corepb.Node) string {
	var out strings.Builder
	end := 0
	for _, at := range place.FindAllStringIndex(id, -1) {
		out.WriteString(id[end:at[0]])
		end = at[1]
		value := FieldText(n, strings.Trim(id[at[0]:at[1]], "{}"))
		if end < len(id) {
			_, size := utf8.DecodeRuneInString(id[end:])
			value = strings.NewReplacer("%", "%25", id[end:end+size], escaped(id[end:end+size])).Replace(value)
		}
		out.WriteString(value)
	}
	return out.String() + id[end:]
}

// escaped returns each byte of a text as a % and two digits.
func escaped(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		fmt.Fprintf(&out, "%%%02X", b)
	}
	return out.String()
}

// FieldText returns a field that may make a node group as plain text: as rules have it, but of a version the part that
// counts, and text in metadata as in JSON where it could be taken for another value.
func FieldText(n *corepb.Node, field string) string {
	if field == "user_agent_version" {
		return copyMajorVersion(new(corepb.Node), n)
	}
	text := authz.FieldOf(n, field)
	path, isMetadata := strings.CutPrefix(field, "metadata.")
	if !isMetadata || text != "" && !json.Valid([]byte(text)) {
		return text
	}
	if v, isText := lookUp(n.GetMetadata(), strings.Split(path, ".")).GetKind().(*structpb.Value_StringValue); isText {
		return jsonText(v.StringValue)
	}
	return text
}

// HasPlaces reports whether an id has places of fields.
func HasPlaces(id string) bool { return place.MatchString(id) }

// Places returns the places of fields in an id, each a name in braces, and the first one whose value's end nothing
// marks; empty if there is none.
func Places(id string) (places []string, unended string) {
	return place.FindAllString(id, -1), placeUnended.FindString(id)
}

// Fields are the Node fields that may make a node group, beside metadata.
var Fields = []string{
	"id", "cluster", "user_agent_name", "user_agent_version",
	"locality.region", "locality.zone", "locality.sub_zone",
}
