package load

import (
	"fmt"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	deltaPath = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	sotwPath  = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
)

// node returns a Node like that of an Envoy. An empty feature means no client feature.
func node(client int, feature string) *corepb.Node {
	n := &corepb.Node{
		Id:            fmt.Sprintf("sidecar~10.%d.%d.%d~app-%d.default", client>>16&255, client>>8&255, client&255, client),
		Cluster:       "bench",
		UserAgentName: "envoy",
		UserAgentVersionType: &corepb.Node_UserAgentBuildVersion{
			UserAgentBuildVersion: &corepb.BuildVersion{Version: &typepb.SemanticVersion{MajorNumber: 1, MinorNumber: 36}},
		},
	}
	if feature != "" {
		n.ClientFeatures = []string{feature}
	}
	return n
}

// subscription returns the first request for a type. versions are the initial resource
// versions (Delta only); n must be nil except in the first request of a stream.
func subscription(h *holding, n *corepb.Node, versions map[string]string, sotw bool) []byte {
	var request proto.Message
	if sotw {
		request = &discoverypb.DiscoveryRequest{Node: n, TypeUrl: h.TypeURL, ResourceNames: h.sotwNames()}
	} else {
		request = &discoverypb.DeltaDiscoveryRequest{
			Node: n, TypeUrl: h.TypeURL, ResourceNamesSubscribe: h.names(), InitialResourceVersions: versions,
		}
	}
	b, err := proto.Marshal(request)
	if err != nil {
		panic(fmt.Sprintf("encode request: %v", err)) // cannot happen: all fields are ASCII
	}
	return b
}

// appendDeltaAck appends a DeltaDiscoveryRequest that acknowledges r.
func appendDeltaAck(b []byte, r response) []byte {
	b = appendField(b, 2, r.typeURL)
	return appendField(b, 6, r.nonce)
}

// appendSotWAck appends a DiscoveryRequest that acknowledges r. An ACK in SotW must
// repeat all names of the subscription.
func appendSotWAck(b []byte, r response, names []string) []byte {
	b = appendField(b, 1, r.version)
	for _, name := range names {
		b = protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), name)
	}
	b = appendField(b, 4, r.typeURL)
	return appendField(b, 5, r.nonce)
}

// appendField appends a length-delimited field.
func appendField(b []byte, field protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), value)
}
