package wire

import (
	"cmp"
	"fmt"
	"unicode/utf8"

	"github.com/xdstender/tender/cache/wire/schema"
)

// JSON returns the resource as proto3 canonical JSON, with its "@type". It is
// made when somebody first asks for it and kept as long as the resource, since
// those who poll ask for the same ones over and over. Callers must not modify it.
//
// Errors: [schema.UnknownTypeError] if the type of the resource, or of an Any
// inside it, is not embedded; otherwise the resource is malformed.
func (r *Resource) JSON() ([]byte, error) {
	if made := r.json.Load(); made != nil {
		return *made, nil
	}
	made, err := schema.MarshalJSON(r.TypeURL, r.Value())
	if err != nil {
		return nil, fmt.Errorf("resource %q of type %q: %w", r.Name, r.TypeURL, err)
	}
	r.json.Store(&made)
	return made, nil
}

// RedactedJSON returns the resource as people may see it: with the names of fields as in Envoy's
// documentation, without what is annotated as sensitive, and in the place of what is of an
// unknown type its size and digest. A Secret must not be shown even so (B.36).
//
// Errors: the resource is malformed.
func (r *Resource) RedactedJSON() ([]byte, error) {
	made, err := schema.JSONOptions{Redact: true, ProtoNames: true, Unknown: schema.UnknownDigest}.Marshal(r.TypeURL, r.Value())
	if err != nil {
		return nil, fmt.Errorf("resource %q of type %q: %w", r.Name, r.TypeURL, err)
	}
	return made, nil
}

// What is known of a resource's content, in Resource.sensitive.
const (
	unjudged int32 = iota
	public
	mayBeSensitive
)

// MayBeSensitive reports whether the content has secrets in it, or something of which
// that cannot be known, as [schema.MayBeSensitive] has it (B.36). It looks once.
func (r *Resource) MayBeSensitive() bool {
	judgement := r.sensitive.Load()
	if judgement == unjudged {
		judgement = public
		if schema.MayBeSensitive(r.TypeURL, r.Value()) {
			judgement = mayBeSensitive
		}
		r.sensitive.Store(judgement)
	}
	return judgement == mayBeSensitive
}

// HasEndpoints reports whether the resource is a ClusterLoadAssignment with an endpoint, or with another place where its
// endpoints are. ClusterLoadAssignment: endpoints=2 {lb_endpoints=2, load_balancer_endpoints=7,
// leds_cluster_locality_config=8}.
func (r *Resource) HasEndpoints() bool {
	if r.TypeURL != EndpointType {
		return false
	}
	f := fieldReader{msg: r.Value()}
	for f.next() {
		if !f.is(2) {
			continue
		}
		locality := fieldReader{msg: f.val}
		for locality.next() {
			if num := locality.num; num == 2 || num == 7 || num == 8 {
				return true
			}
		}
		if locality.bad {
			return true
		}
	}
	return f.bad // a malformed one is not known to be empty
}

// edsName returns the name of the ClusterLoadAssignment that a Cluster needs, or
// "" if it is not an EDS cluster, or not a Cluster at all, or if its eds_config names
// another source than the stream of the cluster (ADS or self). Cluster: name=1,
// type=2 (EDS=3), eds_cluster_config=3, cluster_type=38 (in a oneof with type).
func edsName(cluster []byte, name string) string {
	const eds = 3
	isEDS, config := false, edsConfig{}
	f := fieldReader{msg: cluster}
	for f.next() {
		switch {
		case f.isNumber(2):
			isEDS = f.number() == eds
		case f.is(38):
			isEDS = false
		case f.is(3):
			config.merge(f.val)
		}
	}
	if f.bad || !isEDS || config.malformed || config.elsewhere {
		return ""
	}
	return cmp.Or(config.service, name)
}

// An edsConfig is an eds_cluster_config.
type edsConfig struct {
	service   string
	elsewhere bool // eds_config is neither ADS nor self
	malformed bool
}

// merge reads one occurrence of the field: eds_config=1 {path=1, api_config_source=2, ads=3, self=5,
// path_config_source=8, all in one oneof}, service_name=2.
func (c *edsConfig) merge(msg []byte) {
	f := fieldReader{msg: msg}
	for f.next() {
		switch {
		case f.is(1):
			for source := (fieldReader{msg: f.val}); source.next(); {
				switch source.num {
				case 1, 2, 8:
					c.elsewhere = true
				case 3, 5:
					c.elsewhere = false
				}
			}
		case f.is(2):
			c.service = string(f.val)
			c.malformed = c.malformed || !utf8.Valid(f.val)
		}
	}
	c.malformed = c.malformed || f.bad
}
