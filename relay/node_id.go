package relay

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/authz"
)

// idField is a place in TENDER_NODE_ID where a field of the group's key stands: its name in
// braces. Control planes that keep what they know by id, as Envoy Gateway does, have to be
// shown another id for each group.
var idField = regexp.MustCompile(`\{[^{}]*\}`)

// idFieldUnended finds one of which nothing tells where its value ends.
var idFieldUnended = regexp.MustCompile(`\{[^{}]*\}(\{[^{}]*\}|%)`)

// fillID returns an id with the values of the node's fields in their places. What the node does not have is empty. Other
// values make another id: in a value, the character that ends its place, and %, are escaped as in URLs.
func fillID(id string, n *corepb.Node) string {
	var out strings.Builder
	end := 0
	for _, at := range idField.FindAllStringIndex(id, -1) {
		out.WriteString(id[end:at[0]])
		end = at[1]
		value := fieldText(n, strings.Trim(id[at[0]:at[1]], "{}"))
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

// ownID returns the id of the relay itself, which is of no group.
func ownID(c Config) string { return fillID(c.NodeID, ownNode(c, "")) }

// fieldText returns a field that may make a node group as plain text: as rules have it, but of a version the part that counts,
// and text in metadata as in JSON where it could be taken for another value.
func fieldText(n *corepb.Node, field string) string {
	if field == "user_agent_version" {
		return copyMajorVersion(new(corepb.Node), n)
	}
	text := authz.FieldOf(n, field)
	path, isMetadata := strings.CutPrefix(field, "metadata.")
	if !isMetadata || text != "" && !json.Valid([]byte(text)) {
		return text
	}
	if v, isText := lookUp(n.GetMetadata(), strings.Split(path, ".")).GetKind().(*structpb.Value_StringValue); isText {
		return jsonOf(v.StringValue)
	}
	return text
}

// checkNodeID finds places in TENDER_NODE_ID of fields that no group has.
func (c *Config) checkNodeID(wrong map[string]error) map[string]error {
	if wrong["NODE_ID"] != nil || wrong["NODE_GROUP_BY"] != nil {
		return nil
	}
	if at := idFieldUnended.FindString(c.NodeID); at != "" {
		c.NodeID = defaultNodeID()
		return map[string]error{"NODE_ID": fmt.Errorf("%s: put a character other than %% between, or two groups could have one id", quote(at))}
	}
	for _, place := range idField.FindAllString(c.NodeID, -1) {
		field := strings.Trim(place, "{}")
		if field != "id" && slices.Contains(c.NodeGroupBy, field) {
			continue
		}
		c.NodeID = defaultNodeID()
		if field == "id" {
			return map[string]error{"NODE_ID": fmt.Errorf("%s stands for the client's id, which is presented as it is where TENDER_NODE_GROUP_BY has it", quote(place))}
		}
		return map[string]error{"NODE_ID": fmt.Errorf("%s stands for a field that is not in TENDER_NODE_GROUP_BY", quote(place))}
	}
	return nil
}
