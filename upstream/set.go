package upstream

import (
	"iter"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream/reconcile"
)

// role returns the stream that carries the set; noStream if the set is not subscribed to.
func (s *set) role() role {
	if s == s.sub.members {
		return s.sub.wildcardRole
	}
	return s.sub.namesRole
}

// stream returns the stream that carries the set.
func (s *set) stream() *adsStream { return s.sub.stream(s.role()) }

// queryRole returns the stream for queries by name about resources of the set that the origin has not mentioned. The
// stream of the wildcard is unsuitable, because a response there may belong to the wildcard instead of the query.
func (s *set) queryRole() role {
	if s == s.sub.members {
		return s.sub.wildcardRole.other()
	}
	return s.sub.namesRole
}

// cached returns the set in a generation of the view.
func (s *set) cached(g *cache.Generation) *cache.Set { return g.Type(s.key).Set(s.kind) }

// entries yields the newest resources of the set by subscribed name: those of the view, overlaid by the pending changes.
func (s *set) entries(yield func(name string, r *wire.Resource) bool) {
	all := s.memberEntries
	if s.kind == cache.ByName {
		all = s.namedEntries
	}
	held := s.cached(s.view.w.Generation())
	for e := range all(held) {
		r, listed := s.view.pending.Get(s.kind, s.key, e.Name.String())
		if !listed && e.Present() {
			r = e.Resource
		}
		if r != nil && !yield(e.Name.String(), r) {
			return
		}
	}
	if s.kind == cache.ByName {
		return // each name that the list adds has an entry: the origin has answered for it
	}
	for name, r := range s.view.pending.Added(s.key) {
		if !yield(name, r) {
			return
		}
	}
}

// namedEntries returns the entries of the subscribed names. Other names may be of another origin.
func (s *set) namedEntries(held *cache.Set) iter.Seq[*cache.Entry] {
	return func(yield func(*cache.Entry) bool) {
		for n := range s.sub.names {
			if e := held.Get(n); e != nil && !yield(e) {
				return
			}
		}
	}
}

// memberEntries returns the entries of members that exist in the view.
func (s *set) memberEntries(held *cache.Set) iter.Seq[*cache.Entry] {
	return func(yield func(*cache.Entry) bool) {
		if s.role() == noStream && len(s.view.isolated) > 0 {
			return // another branch may carry the wildcard
		}
		for e := range held.Since(0) {
			if e.Present() && !yield(e) {
				return
			}
		}
	}
}

// Get implements reconcile.Content.
func (s *set) Get(name string) *wire.Resource {
	if r, listed := s.view.pending.Get(s.kind, s.key, name); listed {
		return r
	}
	n := s.view.w.View().FindName(s.key, name)
	if n == nil {
		return nil
	}
	if e := s.cached(s.view.w.Generation()).Get(n); e.Present() {
		return e.Resource
	}
	return nil
}

// Names implements reconcile.Content. For a resource subscribed to under an alias, it yields the alias and the name.
func (s *set) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for name, r := range s.entries {
			if !yield(name) || name != r.Name && !yield(r.Name) {
				return
			}
		}
	}
}

// Count implements reconcile.Content.
func (s *set) Count() (n int) {
	if s.kind == cache.ByName {
		for range s.entries {
			n++
		}
		return n
	}
	for range s.view.pending.Added(s.key) {
		n++
	}
	return n + s.cached(s.view.w.Generation()).Count() - s.view.pending.Removed(s.key)
}

// CompleteAt implements reconcile.Content.
func (s *set) CompleteAt() (at time.Time, ok bool) {
	l := s.stream()
	if !l.open {
		return time.Time{}, false
	}
	return s.Progress.CompleteAt(l.openedAt, s.view.cfg.ColdWait), true
}

// Known implements reconcile.Content.
func (s *set) Known(time.Time) bool {
	t := s.view.w.Generation().Type(s.key)
	return t.Phase == cache.Confirmed || t.Restored
}

// Await implements reconcile.Content. A client may have the additions from another replica.
func (s *set) Await(names, ended []string) { s.view.w.Await(s.kind, s.key, names, ended) }

// Cause implements reconcile.Content.
func (s *set) Cause() cache.Cause { return s.view.pending.Cause() }

// Apply implements reconcile.Content.
func (s *set) Apply(u wire.Update, waited pending.Delay) cache.Change {
	if u.TypeURL == "" {
		u.TypeURL, u.SystemVersion = s.key, s.cached(s.view.w.Generation()).System()
	}
	s.view.agenda.list.wake()
	return s.view.pending.ApplyDelayed(s.kind, u, waited)
}

// beginStream starts the set on a new stream. reported are the resource versions that the request reports; nil if it
// reports none, or if the origin ignores them.
func (s *set) beginStream(reported map[string]string, now time.Time) {
	isReported := func(name string) bool {
		_, ok := reported[name]
		return ok || reported != nil && s == s.sub.members // addVersions reports all of the wildcard set or none
	}
	restored := s.kind == cache.Wildcard && s.view.w.Generation().Type(s.key).Restored
	s.Begin(isReported, s.view.mayResume(s.stream()), reported != nil && restored, now)
	for name := range s.view.pending.Restored(s.kind, s.key) {
		s.RequestAgain(name)
	}
}

// sets yields the sets of the subscription.
func (s *subscription) sets(yield func(*set) bool) {
	if !yield(s.members) || !yield(s.byName) {
		return
	}
	for _, c := range s.collections {
		if !yield(c.set) {
			return
		}
	}
}

// keepIfPresent marks the removal of a name of a hold as dropped if the set contains the name, and reports whether it
// does.
func (s *set) keepIfPresent(name string, hold *reconcile.Hold) bool {
	if s.Get(name) == nil {
		return false
	}
	s.RestoreDropped(name, hold)
	return true
}

// initialRequests returns the first requests of the type on a new stream. They subscribe to all that the stream
// carries. If report is set, the first one reports the cached versions (R088, R089). There are several only if the
// names exceed the size limit. There is none if the stream carries no subscription of the type.
func (s *subscription) initialRequests(
	r role, g *cache.Generation, report bool,
) (reqs []*discoverypb.DeltaDiscoveryRequest, asked []*cache.Name) {
	req := &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
	if s.wildcardRole == r {
		req = s.subscribeWildcard()
		reqs = append(reqs, req)
	}
	versions := make(map[string]string)
	for set := range s.sets {
		if report && set.role() == r {
			set.addVersions(g, versions)
		}
	}
	if fitsRequest(versions) {
		req.InitialResourceVersions = versions
	}
	var names []string
	if s.namesRole == r {
		names, asked = s.allNames(g)
		if req.InitialResourceVersions != nil {
			names = append(names, s.addCanonicalNames(g)...)
		}
	}
	if s.sweepsOn(r) {
		names = append(names, s.members.Queried()...)
	}
	for len(names) > 0 {
		req.ResourceNamesSubscribe, names = splitBytes(names)
		reqs = append(reqs, req)
		req = &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
	}
	return reqs, asked
}

// addVersions adds the cached versions of the set to those that a request reports. It skips resources of another
// origin. It skips sets that were not complete, because the relay could not distinguish them from a set that shrank.
// For the wildcard set, it reports all versions or none.
func (s *set) addVersions(g *cache.Generation, versions map[string]string) {
	t, foreign := g.Type(s.key), s.Foreign()
	if s.kind == cache.Wildcard && t.Phase != cache.Confirmed && !t.Restored || s == s.sub.members && len(foreign) > 0 {
		return
	}
	for name, r := range s.entries {
		_, other := foreign[r.Name]
		plain := s.kind == cache.Wildcard || wire.PlainName(name) == name
		if !other && plain && hasReportableVersion(r) {
			versions[r.Name] = reportedVersion(r)
		}
	}
	s.withoutRestored(foreign, versions)
}

// withoutRestored removes the versions of changes that waited in an earlier process from those that a request reports, and adds
// their removals: then the origin states each of these names again, whether it still has the change or has withdrawn it.
func (s *set) withoutRestored(foreign map[string]struct{}, versions map[string]string) {
	for name, r := range s.view.pending.Restored(s.kind, s.key) {
		_, other := foreign[name]
		plain := s.kind == cache.Wildcard || wire.PlainName(name) == name
		if r != nil {
			name = r.Name
		}
		if _, reported := versions[name]; reported || r == nil && !other && plain {
			versions[name] = ""
		}
	}
}
