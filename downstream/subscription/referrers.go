package subscription

import (
	"slices"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Referrers are clusters that endpoints wait for (B.11). Streams share its maps, so that they are not modified.
type Referrers []referrers

// A referrers has the names of the ClusterLoadAssignments that changes of clusters after a position refer to.
type referrers struct {
	after cache.Seq
	names map[string]struct{}
}

// delay reports whether a ClusterLoadAssignment that changed at a position waits for one of the clusters. A change before
// the last response of clusters does not.
func (r Referrers) delay(name string, changed cache.Seq) bool {
	return slices.ContainsFunc(r, func(r referrers) bool {
		_, refers := r.names[name]
		return refers && changed > r.after
	})
}

// unsentReferrers returns the clusters with changes that the client was not sent and that refer to endpoints. It omits clusters
// that the client named and was never sent.
func (v visible) unsentReferrers() (all Referrers) {
	for part := range v.wildcards() {
		t, after := v.g.Type(part.Key), part.sentUpTo
		if part.idle || t.Wildcard.Last() <= after {
			continue
		}
		names := cache.Shared(t, cache.SharedReferences, t.Wildcard.Align(after), func() any {
			names := make(map[string]struct{})
			for e := range t.Wildcard.Since(after) {
				addEndpoints(names, e)
			}
			return names
		}).(map[string]struct{})
		if len(names) > 0 {
			all = append(all, referrers{after, names})
		}
	}
	for _, n := range v.names {
		e, seq := v.entryOf(n)
		if n.sent == 0 || seq <= n.sent {
			continue
		}
		if names := make(map[string]struct{}); addEndpoints(names, e) {
			all = append(all, referrers{n.sent, names})
		}
	}
	return all
}

// addEndpoints adds the endpoints that the resource of an entry refers to, and reports whether there are any.
func addEndpoints(names map[string]struct{}, e *cache.Entry) (refers bool) {
	if !e.Present() {
		return false
	}
	for _, r := range e.Resource.References() {
		if r.TypeURL == wire.EndpointType {
			names[r.Name], refers = struct{}{}, true
		}
	}
	return refers
}
