package reconcile

import (
	"iter"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// keepsReferents reports whether resources keep those of a type to which they refer by name, while they are retained. They do
// not keep clusters: what dangles without a cluster is found by its reference (B.46).
func keepsReferents(typeURL string) bool { return typeURL != wire.ClusterType }

// referrersOf returns the types whose resources keep those of a type to which they refer.
func referrersOf(typeURL string) []string {
	if !keepsReferents(typeURL) {
		return nil
	}
	return schema.ReferrersOf(typeURL)
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
