package reconcile

import (
	"iter"

	"github.com/xdstender/tender/cache/wire"
)

// referrers maps a type to the types whose resources refer to it by name.
var referrers = map[string][]string{
	wire.EndpointType:        {wire.ClusterType},
	wire.RouteType:           {wire.ListenerType, wire.ScopedRouteType},
	wire.SecretType:          {wire.ClusterType, wire.ListenerType},
	wire.ExtensionConfigType: {wire.ListenerType, wire.RouteType},
}

// references returns the names to which resources may refer: those that their bytes contain as a protobuf string. It
// decodes no message, so a string that equals a name by chance counts, too. The length before a string takes one byte
// or, from 128 on, two; longer names than these can express are ignored.
func references(in []*wire.Resource, to iter.Seq[string]) names {
	candidates, found := make(names), make(names)
	if len(in) == 0 {
		return found
	}
	var lengths [1 << 14]bool
	for name := range to {
		if len(name) < len(lengths) {
			candidates[name], lengths[len(name)] = struct{}{}, true
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
			if _, ok := candidates[string(value[at:at+n])]; ok {
				found[string(value[at:at+n])] = struct{}{}
			}
		}
	}
	return found
}
