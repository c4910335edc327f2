package wire

import (
	"fmt"

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
