package schema

import (
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// prefix begins the type URL of every xDS resource.
const prefix = "type.googleapis.com/"

// names are the discovery services by their usual short names, in the order in which a
// client warms up.
var names = []struct{ short, typeURL string }{
	{"cds", prefix + "envoy.config.cluster.v3.Cluster"},
	{"eds", prefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"},
	{"leds", prefix + "envoy.config.endpoint.v3.LbEndpoint"},
	{"sds", prefix + "envoy.extensions.transport_sockets.tls.v3.Secret"},
	{"ecds", prefix + "envoy.config.core.v3.TypedExtensionConfig"},
	{"rtds", prefix + "envoy.service.runtime.v3.Runtime"},
	{"lds", prefix + "envoy.config.listener.v3.Listener"},
	{"srds", prefix + "envoy.config.route.v3.ScopedRouteConfiguration"},
	{"rds", prefix + "envoy.config.route.v3.RouteConfiguration"},
	{"vhds", prefix + "envoy.config.route.v3.VirtualHost"},
}

// TypeURLFor returns the type URL for the short name of a discovery service
// ("cds"), and whether there is one.
func TypeURLFor(short string) (string, bool) {
	for _, n := range names {
		if n.short == short {
			return n.typeURL, true
		}
	}
	return "", false
}

// ShortName returns the short name ("cds") for a type URL, and whether it has one.
func ShortName(typeURL string) (string, bool) {
	for _, n := range names {
		if n.typeURL == typeURL {
			return n.short, true
		}
	}
	return "", false
}

// ResourceName returns the name in an encoded resource of a known type. It needs no
// descriptor. It reports false if the type is unknown or its resources do not contain
// their name (LbEndpoint), and if value is malformed. For a resource with an unset name
// it returns "" and true.
func ResourceName(typeURL string, value []byte) (string, bool) {
	if short, ok := ShortName(typeURL); !ok || short == "leds" {
		return "", false
	}
	const nameField = 1 // in all of them
	var name []byte
	for len(value) > 0 {
		num, typ, n := protowire.ConsumeTag(value)
		if n < 0 {
			return "", false
		}
		value = value[n:]
		if num == nameField && typ == protowire.BytesType {
			name, n = protowire.ConsumeBytes(value) // the last value counts
		} else {
			n = protowire.ConsumeFieldValue(num, typ, value)
		}
		if n < 0 {
			return "", false
		}
		value = value[n:]
	}
	return string(name), utf8.Valid(name)
}
