package lint

import (
	"fmt"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// Absent returns why a resource of a view that another one names does not exist; nothing if it exists, or nobody knows. A
// resource is absent in two cases. The origin answered so for its name. Or clients get the type by wildcard, the origin
// has stated all of that set, the resource is not in it, and no client waits for an answer about its name. Types that
// clients request by name, such as endpoints, therefore count as absent only by an answer: nobody may have asked yet.
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

// has reports whether there is a resource of a name.
func has(t *cache.Type, n *cache.Name) bool {
	return t.Wildcard.Get(n).Present() || t.ByName.Get(n).Present()
}

// ByWildcard reports whether clients mostly get the resource by a wildcard, without naming it.
func (r Reference) ByWildcard() bool { return wire.LegacyWildcard(r.TypeURL) && !isXDSTP(r.Name) }

// isXDSTP reports whether a name is a URL of resources, which may come from any origin and in collections.
func isXDSTP(name string) bool {
	const scheme = "xdstp:"
	return len(name) >= len(scheme) && name[:len(scheme)] == scheme
}

// Describe returns a reference in words.
func (r Reference) Describe() string {
	short, _ := schema.ShortName(r.TypeURL)
	noun, ok := map[string]string{"cds": "cluster", "eds": "endpoints", "rds": "route configuration"}[short]
	if !ok {
		noun = r.TypeURL
	}
	return fmt.Sprintf("%s %.256q", noun, r.Name)
}
