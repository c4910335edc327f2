package relay

import (
	"slices"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A router says which origin answers for what (R129). It is immutable.
//
// A view has two sources for each origin: what the origin says to a node group, and
// what has a name that means the same to every node, which groups share (R130).
type router struct {
	origins     int
	types       map[string]int // by type URL; the first origin has all others
	authorities map[string]int // with AnyAuthority for those without a route
}

func newRouter(cfg Config) *router {
	r := &router{origins: 1 + len(cfg.Origins), types: make(map[string]int), authorities: make(map[string]int)}
	for _, route := range cfg.Routes {
		// -1 is the first origin, which has a name of its own.
		origin := 1 + slices.IndexFunc(cfg.Origins, func(o NamedOrigin) bool { return o.Name == route.Origin })
		if route.TypeURL != "" {
			r.types[route.TypeURL] = origin
		} else {
			r.authorities[route.Authority] = origin
		}
	}
	return r
}

// sources returns how many sources a view has.
func (r *router) sources() int { return 2 * r.origins }

// shared returns the source of an origin for names that groups share.
func (r *router) shared(origin int) int { return r.origins + origin }

// quotas returns those of a view's sources, of those of origins. What groups share is counted
// where they have it from.
func (r *router) quotas(of []cache.Quota) []cache.Quota {
	all := make([]cache.Quota, r.sources())
	for origin, q := range of {
		all[origin], all[r.shared(origin)] = q, q.Elsewhere()
	}
	return all
}

// route returns the source that answers for a name of a type, or, if it is empty, for
// the members of the type. The route of an authority goes before that of a type (B.23).
func (r *router) route(typeURL, name string) int {
	authority, ok := wire.Authority(name)
	if !ok {
		return r.types[typeURL]
	}
	for _, authority := range []string{authority, AnyAuthority} {
		if origin, ok := r.authorities[authority]; ok {
			return r.shared(origin)
		}
	}
	return r.shared(r.types[typeURL])
}

// origin returns the number of the origin that answers for a name, or, if it is empty, for the
// members of a type.
func (r *router) origin(typeURL, name string) int { return r.route(typeURL, name) % r.origins }
