package config

import (
	"slices"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

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
