package judge

import (
	"cmp"
	"encoding/json"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/xdstender/tender/cache/wire"
)

// ownCluster is the name of the cluster with the relay, in bootstraps.
const ownCluster = "tender-check-envoy"

// sections are the fields of dynamic_resources, by the type that they subscribe to with the wildcard.
var sections = map[string]string{wire.ClusterType: "cds_config", wire.ListenerType: "lds_config"}

// An object is a JSON object.
type object = map[string]any

// bootstrap returns the bootstrap of an Envoy that a relay serves on a Unix socket. It has the relay also under the names of
// static clusters, has no admin endpoint, and subscribes to the wildcards of types.
func bootstrap(socket string, node *corepb.Node, types, static []string) ([]byte, error) {
	presented, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(&corepb.Node{
		Id: cmp.Or(node.GetId(), ownCluster), Cluster: cmp.Or(node.GetCluster(), ownCluster),
		Metadata: node.GetMetadata(), Locality: node.GetLocality(),
	})
	if err != nil {
		return nil, err
	}
	ads := object{"ads": object{}, "resource_api_version": "V3"}
	dynamic := object{"ads_config": object{
		"api_type": "DELTA_GRPC", "transport_api_version": "V3",
		"grpc_services": []any{object{"envoy_grpc": object{"cluster_name": ownCluster}}},
	}}
	for _, typeURL := range types {
		dynamic[sections[typeURL]] = ads
	}
	var clusters []any
	for _, name := range append([]string{ownCluster}, static...) {
		clusters = append(clusters, relayCluster(name, socket))
	}
	return json.Marshal(object{
		"node": json.RawMessage(presented), "dynamic_resources": dynamic, "static_resources": object{"clusters": clusters},
	})
}

// relayCluster returns a cluster with the relay.
func relayCluster(name, socket string) object {
	const options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	endpoint := object{"endpoint": object{"address": object{"pipe": object{"path": socket}}}}
	return object{
		"name": name, "type": "STATIC", "connect_timeout": "1s",
		"typed_extension_protocol_options": object{options: object{
			"@type": "type.googleapis.com/" + options, "explicit_http_config": object{"http2_protocol_options": object{}},
		}},
		"load_assignment": object{
			"cluster_name": name, "endpoints": []any{object{"lb_endpoints": []any{endpoint}}},
		},
	}
}
