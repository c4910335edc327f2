package wire

import (
	"fmt"

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
