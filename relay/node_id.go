package relay

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/xdstender/tender/relay/authz"
)

// idField is a place in TENDER_NODE_ID where a field of the group's key stands: its name in
// braces. Control planes that keep what they know by id, as Envoy Gateway does, have to be
// shown another id for each group.
var idField = regexp.MustCompile(`\{[^{}]*\}`)

// fillID returns an id with the values of the node's fields in their places. What the
// node does not have is empty.
func fillID(id string, n *corepb.Node) string {
	return idField.ReplaceAllStringFunc(id, func(place string) string {
		return fieldText(n, strings.Trim(place, "{}"))
	})
}

// ownID returns the id of the relay itself, which is of no group.
func ownID(c Config) string { return fillID(c.NodeID, ownNode(c, "")) }

// fieldText returns a field that may make a node group as plain text: as rules have it, but of a
// version the part that counts.
func fieldText(n *corepb.Node, field string) string {
	if field == "user_agent_version" {
		return copyMajorVersion(new(corepb.Node), n)
	}
	return authz.FieldOf(n, field)
}

// checkNodeID finds places in TENDER_NODE_ID of fields that no group has.
func (c *Config) checkNodeID(wrong map[string]error) map[string]error {
	if wrong["NODE_ID"] != nil || wrong["NODE_GROUP_BY"] != nil {
		return nil
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
