package config

import (
	"fmt"
	"slices"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xdstender/tender/relay/humanize"
	"github.com/xdstender/tender/relay/nodegroup"
)

// OwnFeatures are the client features of the relay itself (B.31).
var OwnFeatures = []string{"xds.config.supports-resource-ttl", "xds.config.resource-in-sotw"}

// Node returns the node that the relay presents, before a group's fields are
// put in, of which its id may have the names (nodegroup.FillID).
func (c *Config) Node(version string) *corepb.Node {
	n := &corepb.Node{
		Id:                   c.NodeID,
		Cluster:              c.NodeCluster,
		UserAgentName:        "tender",
		UserAgentVersionType: &corepb.Node_UserAgentVersion{UserAgentVersion: version},
		ClientFeatures:       slices.Clone(OwnFeatures),
	}
	if l := c.NodeLocality; l != (Locality{}) {
		n.Locality = &corepb.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
	}
	if len(c.NodeMetadata) > 0 {
		// The configuration took it from JSON, all of which a Struct can hold.
		n.Metadata, _ = structpb.NewStruct(c.NodeMetadata)
	}
	return n
}

// Group returns what a relay of this configuration and version makes of a client's
// node: the key of the node's group, and the node that the origin is shown for
// it (B.4). Clients share a view if their keys are equal, and then the origin is
// shown the same.
func (c Config) Group(version string, n *corepb.Node) (key string, upstream *corepb.Node) {
	return nodegroup.Sort(n, c.Node(version), c.NodeGroupBy)
}

// OwnID returns the id of the relay itself, which is of no group.
func (c *Config) OwnID() string { return nodegroup.FillID(c.NodeID, c.Node("")) }

// checkNodeID finds places in TENDER_NODE_ID of fields that no group has.
func (c *Config) checkNodeID(wrong map[string]error) map[string]error {
	if wrong["NODE_ID"] != nil || wrong["NODE_GROUP_BY"] != nil {
		return nil
	}
	places, unended := nodegroup.Places(c.NodeID)
	if unended != "" {
		c.NodeID = defaultNodeID()
		return map[string]error{"NODE_ID": fmt.Errorf("%s: put a character other than %% between, or two groups could have one id", humanize.Quote(unended))}
	}
	for _, place := range places {
		field := strings.Trim(place, "{}")
		if field != "id" && slices.Contains(c.NodeGroupBy, field) {
			continue
		}
		c.NodeID = defaultNodeID()
		if field == "id" {
			return map[string]error{"NODE_ID": fmt.Errorf("%s stands for the client's id, which is presented as it is where TENDER_NODE_GROUP_BY has it", humanize.Quote(place))}
		}
		return map[string]error{"NODE_ID": fmt.Errorf("%s stands for a field that is not in TENDER_NODE_GROUP_BY", humanize.Quote(place))}
	}
	return nil
}
