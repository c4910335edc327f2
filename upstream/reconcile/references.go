package reconcile

import (
	"iter"

	"github.com/xdstender/tender/cache/wire"
)

// needers are the types of resources that name those of a type.
var needers = map[string][]string{
	wire.EndpointType:        {wire.ClusterType},
	wire.RouteType:           {wire.ListenerType, wire.ScopedRouteType},
	wire.SecretType:          {wire.ClusterType, wire.ListenerType},
	wire.ExtensionConfigType: {wire.ListenerType, wire.RouteType},
}

// references returns those of names that are a string somewhere in resources. A string is preceded by its
// length, of which it takes one byte or, from 128 on, two.
func references(in []*wire.Resource, to iter.Seq[string]) names {
	all, found := make(names), make(names)
	if len(in) == 0 {
		return found
	}
	var lengths [1 << 14]bool
	for name := range to {
		if len(name) < len(lengths) {
			all[name], lengths[len(name)] = struct{}{}, true
		}
	}
	for _, r := range in {
		value := r.Value()
		for i := range value {
			n, at := int(value[i]), i+1
			if n >= 128 && at < len(value) {
				n, at = n&127|int(value[at])<<7, at+1
			}
			if n >= len(lengths) || !lengths[n] || at+n > len(value) {
				continue
			}
			if _, is := all[string(value[at:at+n])]; is {
				found[string(value[at:at+n])] = struct{}{}
			}
		}
	}
	return found
}
