package cache

import "github.com/xdstender/tender/cache/wire"

// largeNames and largeFraction bound the removals that are believed at once (B.15).
const (
	largeNames    = 10
	largeFraction = 0.1
)

// LargeRemoval reports whether so many removals from a set of a type, which had so many resources and got so many new ones,
// look like an origin that has lost its state: all of them, or more than half, or more than ten and more than a tenth.
//
// New listeners and scoped routes are subtracted: a held listener would make Envoy reject its renamed successor on the same
// address. Of types whose removals are data, no number is large.
func LargeRemoval(typeURL string, removed, had, added int) bool {
	switch {
	case RemovalsAreData(typeURL):
		return false
	case typeURL == wire.ListenerType || typeURL == wire.ScopedRouteType:
		removed -= added
	}
	return removed > 0 && (removed >= had || 2*removed > had || removed > largeNames && float64(removed) > largeFraction*float64(had))
}

// RemovalsAreData reports whether resources of a type come and go as a matter of course, as endpoints do. To Tender, types
// that it does not know, such as Istio's addresses, are of that kind.
func RemovalsAreData(typeURL string) bool {
	return typeURL == wire.EndpointType || typeURL == wire.LocalityEndpoint || !wire.Known(typeURL)
}
