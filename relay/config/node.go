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

// Node returns the Node of the relay itself, without the fields of a node group. Its ID may contain placeholders for
// these fields (nodegroup.FillID).
func (c *Config) Node(version string) *corepb.Node {
	n := &corepb.Node{
		Id:                   string(c.NodeID),
		Cluster:              string(c.NodeCluster),
		UserAgentName:        "tender",
		UserAgentVersionType: &corepb.Node_UserAgentVersion{UserAgentVersion: version},
		ClientFeatures:       slices.Clone(OwnFeatures),
	}
	if l := c.NodeLocality; l != (Locality{}) {
		n.Locality = &corepb.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.SubZone}
	}
	if len(c.NodeMetadata) > 0 {
		// NewStruct cannot fail: the metadata was decoded from JSON.
		n.Metadata, _ = structpb.NewStruct(c.NodeMetadata)
	}
	return n
}

// Group returns the key of the node group of a client's Node, and the Node that a relay of this version presents to the
// origin for the group (B.4). Clients with equal keys share a view, and the relay presents the same Node for them.
func (c Config) Group(version string, n *corepb.Node) (key string, upstream *corepb.Node) {
	return nodegroup.Sort(n, c.Node(version), c.NodeGroupBy)
}

// OwnID returns the node ID of the relay itself, without the fields of a node group.
func (c *Config) OwnID() string { return nodegroup.FillID(string(c.NodeID), c.Node("")) }

// checkNodeID returns an error for placeholders in TENDER_NODE_ID of fields that do not define node groups.
func (c *Config) checkNodeID(invalid map[string]error) map[string]error {
	if invalid["NODE_ID"] != nil || invalid["NODE_GROUP_BY"] != nil {
		return nil
	}
	places, unended := nodegroup.Places(string(c.NodeID))
	if unended != "" {
		return map[string]error{"NODE_ID": fmt.Errorf("%s: separate the fields by a character other than %%; otherwise "+
			"two groups could have the same ID", humanize.Quote(unended))}
	}
	for _, place := range places {
		field := strings.Trim(place, "{}")
		if field != "id" && slices.Contains(c.NodeGroupBy, field) {
			continue
		}
		if field == "id" {
			return map[string]error{"NODE_ID": fmt.Errorf("%s is not supported; with id in TENDER_NODE_GROUP_BY, the relay "+
				"presents the ID of the client", humanize.Quote(place))}
		}
		return map[string]error{"NODE_ID": fmt.Errorf("%s is not a field of TENDER_NODE_GROUP_BY", humanize.Quote(place))}
	}
	return nil
}
