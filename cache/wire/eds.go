package wire

import (
	"cmp"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// HasEndpoints reports whether the resource is a ClusterLoadAssignment with an endpoint, or with another place where its
// endpoints are. ClusterLoadAssignment: endpoints=2 {lb_endpoints=2, load_balancer_endpoints=7,
// leds_cluster_locality_config=8}.
func (r *Resource) HasEndpoints() bool {
	if r.TypeURL != EndpointType {
		return false
	}
	for msg := r.Value(); len(msg) > 0; {
		num, typ, locality, n := consumeField(msg)
		if n < 0 {
			return true // whatever it is, it is not known to be empty
		}
		for num == 2 && typ == protowire.BytesType && len(locality) > 0 {
			field, _, _, n := consumeField(locality)
			if n < 0 || field == 2 || field == 7 || field == 8 {
				return true
			}
			locality = locality[n:]
		}
		msg = msg[n:]
	}
	return false
}

// edsName returns the name of the ClusterLoadAssignment that a Cluster needs, or
// "" if it is not an EDS cluster, or not a Cluster at all, or if its eds_config names
// another source than the stream of the cluster (ADS or self). Cluster: name=1,
// type=2 (EDS=3), eds_cluster_config=3 {eds_config=1, service_name=2}, cluster_type=38
// (in a oneof with type).
func edsName(cluster []byte, name string) string {
	const eds = 3
	isEDS, elsewhere, service := false, false, ""
	for len(cluster) > 0 {
		num, typ, val, n := consumeField(cluster)
		if n < 0 {
			return ""
		}
		switch {
		case num == 2 && typ == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(val)
			isEDS = v == eds
		case num == 38 && typ == protowire.BytesType:
			isEDS = false
		case num == 3 && typ == protowire.BytesType:
			var ok bool
			if service, ok = serviceName(val, service); !ok {
				return ""
			}
			elsewhere = otherSource(val, elsewhere)
		}
		cluster = cluster[n:]
	}
	if !isEDS || elsewhere {
		return ""
	}
	return cmp.Or(service, name)
}

// otherSource reports whether the eds_config of an eds_cluster_config is neither ADS nor
// self, or returns what an earlier occurrence said if it has none. ConfigSource: path=1,
// api_config_source=2, ads=3, self=5, path_config_source=8, all in one oneof.
func otherSource(config []byte, earlier bool) bool {
	for len(config) > 0 {
		num, typ, source, n := consumeField(config)
		if num == 1 && typ == protowire.BytesType {
			for len(source) > 0 {
				specifier, _, _, n := consumeField(source)
				if n < 0 {
					return earlier // no client can read it
				}
				switch specifier {
				case 1, 2, 8:
					earlier = true
				case 3, 5:
					earlier = false
				}
				source = source[n:]
			}
		}
		config = config[n:]
	}
	return earlier
}

// serviceName returns the service_name of an eds_cluster_config, or what an
// earlier occurrence said; ok is false if no client could read the config.
func serviceName(config []byte, earlier string) (name string, ok bool) {
	name, set := stringField(config, 2)
	if !set {
		name = earlier
	}
	return name, wellFormed(config) && utf8.ValidString(name)
}
