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
