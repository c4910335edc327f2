package lint

import (
	clusterpb "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointpb "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerpb "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routepb "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmpb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcppb "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	tlspb "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httppb "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	runtimepb "github.com/envoyproxy/go-control-plane/envoy/service/runtime/v3"
	"google.golang.org/protobuf/proto"

	"github.com/xdstender/tender/cache/wire"
)

// A validated is a message type with generated validators.
type validated interface {
	proto.Message
	ValidateAll() error
}

// typePrefix is the prefix of all type URLs.
const typePrefix = "type.googleapis.com/"

// types are the types of resources and of extensions that are checked, by type URL. Each type adds its generated
// package to the binary, so the list contains only the extensions that most configurations use.
var types = byTypeURL(
	&listenerpb.Listener{}, &clusterpb.Cluster{}, &routepb.RouteConfiguration{}, &routepb.ScopedRouteConfiguration{},
	&routepb.VirtualHost{}, &endpointpb.ClusterLoadAssignment{}, &endpointpb.LbEndpoint{}, &tlspb.Secret{},
	&runtimepb.Runtime{}, &corepb.TypedExtensionConfig{},

	&hcmpb.HttpConnectionManager{}, &routerpb.Router{}, &tcppb.TcpProxy{}, &httppb.HttpProtocolOptions{},
	&tlspb.UpstreamTlsContext{}, &tlspb.DownstreamTlsContext{},
)

// byTypeURL returns messages by their type URL.
func byTypeURL(all ...validated) map[string]validated {
	types := make(map[string]validated, len(all))
	for _, m := range all {
		types[typePrefix+string(m.ProtoReflect().Descriptor().FullName())] = m
	}
	return types
}

// newMessage returns an empty message of a type; ok is false if the type is not checked.
func newMessage(typeURL string) (validated, bool) {
	m, ok := types[typeURL]
	if !ok {
		return nil, false
	}
	return m.ProtoReflect().New().Interface().(validated), true
}

// Checks reports whether resources of a type are checked. It is false for types that occur only in extensions.
func Checks(typeURL string) bool {
	_, ok := types[typeURL]
	return ok && wire.Known(typeURL)
}
