package upstream

import (
	"iter"
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// role returns which stream carries the set.
func (s *set) role() role {
	if s == s.sub.members {
		return s.sub.wildcardRole
	}
	return s.sub.namesRole
}

// asksOn returns on which stream the origin is asked by name for what it has not mentioned: not on that of the
// wildcard, which does not tell what an answer is to.
func (s *set) queryRole() role {
	if s == s.sub.members {
		return s.sub.wildcardRole.other()
	}
	return s.sub.namesRole
}

// in returns the set in a generation.
func (s *set) cached(g *cache.Generation) *cache.Set {
	t := g.Type(s.key)
	if s.kind == cache.ByName {
		return &t.ByName
	}
	return &t.Wildcard
}

// entries yields what the set holds.
func (s *set) entries(yield func(*cache.Entry) bool) {
	held := s.cached(s.view.w.Generation())
	if s.kind == cache.Wildcard {
		for e := range held.Since(0) {
			if e.Present() && !yield(e) {
				return
			}
		}
		return
	}
	for n := range s.sub.names { // others may be of another origin
		if e := held.Get(n); e.Present() && !yield(e) {
			return
		}
	}
}

// Get implements reconcile.Content.
func (s *set) Get(name string) *wire.Resource {
	n := s.view.w.View().Find(s.key, []string{name})[0]
	if n == nil {
		return nil
	}
	if e := s.cached(s.view.w.Generation()).Get(n); e.Present() {
		return e.Resource
	}
	return nil
}

// Names implements reconcile.Content. A resource that was asked for by an alias has both names.
func (s *set) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for e := range s.entries {
			name := e.Name.String()
			if !yield(name) || name != e.Resource.Name && !yield(e.Resource.Name) {
				return
			}
		}
	}
}

// Count implements reconcile.Content.
func (s *set) Count() (n int) {
	if s.kind == cache.Wildcard {
		return s.cached(s.view.w.Generation()).Count()
	}
	for range s.entries {
		n++
	}
	return n
}

// Complete implements reconcile.Content.
func (s *set) Complete() (at time.Time, ok bool) {
	l := &s.view.byRole[s.role()]
	if !l.open {
		return time.Time{}, false
	}
	return s.Progress.Complete(l.openedAt, s.view.cfg.ColdWait), true
}

// Apply implements reconcile.Content.
func (s *set) Apply(u wire.Update) cache.Change {
	if u.TypeURL == "" {
		u.TypeURL, u.SystemVersion = s.key, s.cached(s.view.w.Generation()).System()
	}
	return s.view.w.Apply(s.kind, u)
}

// begin notes that the set is about to be stated on a new stream. Told is what the origin is told that is
// held; nil if it is told nothing, or does not look at it.
func (s *set) beginStream(told map[string]string, now time.Time) {
	isTold := func(name string) bool {
		_, is := told[name]
		return is || told != nil && s == s.sub.members // of which it is told all that can be said
	}
	restored := s.kind == cache.Wildcard && s.view.w.Generation().Type(s.key).Restored
	s.Begin(isTold, s.view.mayResume(&s.view.byRole[s.role()]), told != nil && restored, now)
}

// sets yields the sets of a subscription.
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

// keepHeld keeps a name if the set holds it, and reports whether it does.
func (s *set) keepIfPresent(name string) (is bool) {
	if is = s.Get(name) != nil; is {
		s.Keep(name)
	}
	return is
}

// restate returns the first requests of the type on a new stream: everything that
// is wanted, and in the first of them what is held if the origin may be told (R088, R089). There is more
// than one only if the names would make it too large, none if nothing is wanted.
func (s *subscription) initialRequests(r role, g *cache.Generation, tell bool) (reqs []*discoverypb.DeltaDiscoveryRequest, asked []*cache.Name) {
	req := &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
	if s.wildcardRole == r {
		req = s.subscribeWildcard()
		reqs = append(reqs, req)
	}
	versions := make(map[string]string)
	for set := range s.sets {
		if tell && set.role() == r {
			set.addVersions(g, versions)
		}
	}
	if fitsRequest(versions) {
		req.InitialResourceVersions = versions
	}
	var names []string
	if s.namesRole == r {
		names, asked = s.allNames()
		if req.InitialResourceVersions != nil {
			names = append(names, s.addCanonicalNames(g)...)
		}
	}
	if s.sweepsOn(r) {
		names = append(names, s.members.Asked()...)
	}
	for len(names) > 0 {
		req.ResourceNamesSubscribe, names = splitBytes(names, maxNamesBytes)
		reqs = append(reqs, req)
		req = &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL}
	}
	return reqs, asked
}

// versions adds what a set holds to what the origin is told: not what another origin has stated, and nothing of a set that was not complete, which could not be told from one that
// shrank. Of a wildcard, it is told all or nothing.
func (s *set) addVersions(g *cache.Generation, versions map[string]string) {
	t, foreign := g.Type(s.key), s.Foreign()
	if s.kind == cache.Wildcard && t.Phase != cache.Confirmed && !t.Restored || s == s.sub.members && len(foreign) > 0 {
		return
	}
	for e := range s.entries {
		_, other := foreign[e.Resource.Name]
		plain := s.kind == cache.Wildcard || wire.PlainName(e.Name.String()) == e.Name.String()
		if !other && plain && hasReportableVersion(e.Resource) {
			versions[e.Resource.Name] = reportedVersion(e.Resource)
		}
	}
}
