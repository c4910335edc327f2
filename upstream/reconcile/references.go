package reconcile

import (
	"iter"
	"slices"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// keepsReferents reports whether resources keep those of a type to which they refer by name, while they are retained. They do
// not keep clusters: what dangles without a cluster is found by its reference (B.46).
func keepsReferents(typeURL string) bool { return !isChecked(typeURL) }

// isChecked reports whether resources of a type are those of which references are checked: clusters (B.46).
func isChecked(typeURL string) bool {
	t, _ := schema.TypeOf(typeURL)
	return t.Checked
}

// concernsChecked reports whether a change of a resource of the type may change which references break clients.
func concernsChecked(typeURL string) bool {
	t, _ := schema.TypeOf(typeURL)
	return t.Checked || slices.ContainsFunc(t.RefersTo, isChecked)
}

// referrersOf returns the types whose resources keep those of a type to which they refer.
func referrersOf(typeURL string) []string {
	if !keepsReferents(typeURL) {
		return nil
	}
	return schema.ReferrersOf(typeURL)
}

// references returns the names to which resources may refer, see [Referents].
func references(in []*wire.Resource, to iter.Seq[string]) names {
	found := make(names)
	if len(in) == 0 {
		return found
	}
	candidates := NewReferents(to)
	for _, r := range in {
		candidates.In(r.Value(), func(name string) { found[name] = struct{}{} })
	}
	return found
}

// Referents are names to which resources may refer.
type Referents struct {
	names   names
	lengths [1 << 14]bool
}

// NewReferents returns names as referents.
func NewReferents(all iter.Seq[string]) *Referents {
	r := &Referents{names: make(names)}
	for name := range all {
		if len(name) < len(r.lengths) {
			r.names[name], r.lengths[len(name)] = struct{}{}, true
		}
	}
	return r
}

// In calls found for each name that the bytes of a resource contain as a protobuf string, once for each occurrence. It
// decodes no message, so a string that equals a name by chance counts, too. The length before a string takes one byte or,
// from 128 on, two; longer names than these can express are ignored.
func (r *Referents) In(value []byte, found func(name string)) {
	for i := range value {
		n, at := int(value[i]), i+1
		if n >= 128 && at < len(value) {
			n, at = n&127|int(value[at])<<7, at+1
		}
		if n >= len(r.lengths) || !r.lengths[n] || at+n > len(value) {
			continue
		}
		if _, ok := r.names[string(value[at:at+n])]; ok {
			found(string(value[at : at+n]))
		}
	}
}
