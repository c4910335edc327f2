package wire

import (
	"cmp"
	"fmt"
	"unicode/utf8"

	"github.com/xdstender/tender/cache/wire/schema"
)

// JSON returns the resource as proto3 canonical JSON, with its "@type". The first call
// encodes it; the result is kept as long as the resource, since REST clients poll for
// the same resources repeatedly. Callers must not modify it.
//
// Errors: [schema.UnknownTypeError] if the type of the resource, or of an Any
// inside it, is not embedded; otherwise the resource is malformed.
func (r *Resource) JSON() ([]byte, error) {
	if encoded := r.json.Load(); encoded != nil {
		return *encoded, nil
	}
	encoded, err := schema.MarshalJSON(r.TypeURL, r.Value())
	if err != nil {
		return nil, fmt.Errorf("resource %q of type %q: %w", r.Name, r.TypeURL, err)
	}
	r.json.Store(&encoded)
	return encoded, nil
}

// RedactedJSON returns the resource as JSON for display: field names are spelled as in Envoy's
// documentation, sensitive fields are redacted, and a message of an unknown type is replaced by
// its size and digest. A Secret must not be displayed even in this form (B.36).
//
// It fails only for a malformed resource.
func (r *Resource) RedactedJSON() ([]byte, error) {
	options := schema.JSONOptions{Redact: true, ProtoNames: true, Unknown: schema.UnknownDigest}
	encoded, err := options.Marshal(r.TypeURL, r.Value())
	if err != nil {
		return nil, fmt.Errorf("resource %q of type %q: %w", r.Name, r.TypeURL, err)
	}
	return encoded, nil
}

// The values of Resource.sensitivity.
const (
	notChecked int32 = iota
	notSensitive
	mayBeSensitive
)

// MayBeSensitive reports whether the content contains secrets, or messages of unknown
// types, which may contain secrets; see [schema.MayBeSensitive] (B.36). The content is
// checked once.
func (r *Resource) MayBeSensitive() bool {
	sensitivity := r.sensitivity.Load()
	if sensitivity == notChecked {
		sensitivity = notSensitive
		if schema.MayBeSensitive(r.TypeURL, r.Value()) {
			sensitivity = mayBeSensitive
		}
		r.sensitivity.Store(sensitivity)
	}
	return sensitivity == mayBeSensitive
}

// HasEndpoints reports whether the resource is a ClusterLoadAssignment with at least one endpoint or a reference to an
// endpoint collection. ClusterLoadAssignment: endpoints=2 {lb_endpoints=2, load_balancer_endpoints=7,
// leds_cluster_locality_config=8}.
func (r *Resource) HasEndpoints() bool {
	if r.TypeURL != EndpointType {
		return false
	}
	f := fieldReader{msg: r.Value()}
	for f.next() {
		if !f.isBytes(2) {
			continue
		}
		locality := fieldReader{msg: f.value}
		for locality.next() {
			if num := locality.num; num == 2 || num == 7 || num == 8 {
				return true
			}
		}
		if locality.malformed {
			return true
		}
	}
	return f.malformed // a malformed resource may have endpoints
}

// edsName returns the name of the ClusterLoadAssignment of an encoded Cluster. It returns
// "" if the message is no EDS cluster or is malformed, or if its eds_config names another
// source than the stream of the cluster (ADS or self). Cluster: name=1, type=2 (EDS=3),
// eds_cluster_config=3, cluster_type=38 (in a oneof with type).
func edsName(cluster []byte, name string) string {
	const eds = 3
	isEDS, config := false, edsConfig{}
	f := fieldReader{msg: cluster}
	for f.next() {
		switch {
		case f.isVarint(2):
			isEDS = f.varint() == eds
		case f.isBytes(38):
			isEDS = false
		case f.isBytes(3):
			config.merge(f.value)
		}
	}
	if f.malformed || !isEDS || config.malformed || config.elsewhere {
		return ""
	}
	return cmp.Or(config.service, name)
}

// An edsConfig holds the decoded fields of an eds_cluster_config.
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
		case f.isBytes(1):
			for source := (fieldReader{msg: f.value}); source.next(); {
				switch source.num {
				case 1, 2, 8:
					c.elsewhere = true
				case 3, 5:
					c.elsewhere = false
				}
			}
		case f.isBytes(2):
			c.service = string(f.value)
			c.malformed = c.malformed || !utf8.Valid(f.value)
		}
	}
	c.malformed = c.malformed || f.malformed
}
