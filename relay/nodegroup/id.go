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

// placeUnended matches a placeholder followed by another placeholder or by a %. FillID cannot escape these in a value,
// so the end of the value is ambiguous.
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

// escaped returns each byte of a text as a % and two hexadecimal digits.
func escaped(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		fmt.Fprintf(&out, "%%%02X", b)
	}
	return out.String()
}

// FieldText returns the value of a field of a Node as plain text, as [authz.FieldOf] does, with two exceptions. Of a
// version, it returns the major version. A string in the metadata that is also valid JSON is quoted, to distinguish it
// from that JSON value.
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

// HasPlaces reports whether an ID contains placeholders.
func HasPlaces(id string) bool { return place.MatchString(id) }

// Places returns the placeholders in an ID, with their braces. unended is the first placeholder that is followed by
// another placeholder or by a %, with these; or "" if there is none. Such an ID may be equal for different values.
func Places(id string) (places []string, unended string) {
	return place.FindAllString(id, -1), placeUnended.FindString(id)
}

// Fields are the Node fields that may be part of a group's key, in addition to metadata.
var Fields = []string{
	"id", "cluster", "user_agent_name", "user_agent_version",
	"locality.region", "locality.zone", "locality.sub_zone",
}
