package lint

import (
	"cmp"
	"fmt"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// Absent returns the reason why the resource of a reference does not exist in a view. It returns "" if the resource
// exists, or if its existence is unknown. A resource is absent in two cases:
//
//   - The origin has reported that the name does not exist.
//   - Clients subscribe to the type by wildcard, and the complete wildcard set from the origin lacks the resource. No
//     client waits for a response for its name.
//
// The second case excludes types that clients request by name, such as endpoints: the relay may not have requested the
// name yet.
func Absent(v *cache.View, g *cache.Generation, r Reference) (why string) {
	t, n := g.Type(r.TypeURL), v.FindName(r.TypeURL, r.Name)
	switch {
	case n != nil && has(t, n):
		return ""
	case n != nil && g.Absent(t.ByName.Get(n)):
		return "the control plane has no such resource"
	case n != nil && v.Wanted(n):
		return ""
	case !r.ByWildcard() || t.Phase != cache.Confirmed:
		return ""
	default:
		return fmt.Sprintf("it is none of the %d that the control plane sent", t.Wildcard.Count())
	}
}

// has reports whether the resource of a name is present, in the wildcard set or by name.
func has(t *cache.Type, n *cache.Name) bool {
	return t.Wildcard.Get(n).Present() || t.ByName.Get(n).Present()
}

// ByWildcard reports whether clients usually subscribe to the resource by wildcard instead of by name.
func (r Reference) ByWildcard() bool { return wire.LegacyWildcard(r.TypeURL) && !isXDSTP(r.Name) }

// isXDSTP reports whether a name is an xdstp name. Such a resource may come from another origin or in a collection.
func isXDSTP(name string) bool {
	const scheme = "xdstp:"
	return len(name) >= len(scheme) && name[:len(scheme)] == scheme
}

// Describe returns a reference in words, such as cluster "a".
func (r Reference) Describe() string {
	t, _ := schema.TypeOf(r.TypeURL)
	return fmt.Sprintf("%s %.256q", cmp.Or(t.Noun, r.TypeURL), r.Name)
}
