package relay

import (
	"slices"

	"github.com/xdstender/tender/cache/quota"
	"github.com/xdstender/tender/cache/wire"
)

// A router selects the origin of each resource (R129). It is immutable.
//
// A view has two sources per origin: one for the resources of its node group, and one for the xdstp names that node
// groups share (R130).
type router struct {
	origins     int            // number of origins
	types       map[string]int // origin by type URL; types without a route belong to the first origin
	authorities map[string]int // origin by authority; AnyAuthority stands for authorities without a route
}

func newRouter(cfg Config) *router {
	r := &router{origins: 1 + len(cfg.Origins), types: make(map[string]int), authorities: make(map[string]int)}
	for _, route := range cfg.Routes {
		// IndexFunc returns -1 for the first origin, whose name is not in cfg.Origins.
		origin := 1 + slices.IndexFunc(cfg.Origins, func(o NamedOrigin) bool { return o.Name == route.Origin })
		if route.TypeURL != "" {
			r.types[route.TypeURL] = origin
		} else {
			r.authorities[route.Authority] = origin
		}
	}
	return r
}

// sources returns the number of sources of a view.
func (r *router) sources() int { return 2 * r.origins }

// sharedSource returns the source of an origin for the names that node groups share.
func (r *router) sharedSource(origin int) int { return r.origins + origin }

// quotas returns the quotas of the sources of a node group's view, given those of the origins. The shared view counts
// the shared names.
func (r *router) quotas(byOrigin []quota.Names) []quota.Names {
	bySource := make([]quota.Names, r.sources())
	for origin, q := range byOrigin {
		bySource[origin], bySource[r.sharedSource(origin)] = q, q.CountedElsewhere()
	}
	return bySource
}

// route returns the source of a name, or of the type's wildcard set if the name is empty. A route by authority takes
// precedence over one by type (B.23).
func (r *router) route(typeURL, name string) int {
	authority, ok := wire.Authority(name)
	if !ok {
		return r.types[typeURL]
	}
	for _, authority := range []string{authority, AnyAuthority} {
		if origin, ok := r.authorities[authority]; ok {
			return r.sharedSource(origin)
		}
	}
	return r.sharedSource(r.types[typeURL])
}

// origin returns the index of the origin of a name, or of the type's wildcard set if the name is empty.
func (r *router) origin(typeURL, name string) int { return r.route(typeURL, name) % r.origins }
