package upstream

import (
	"time"

	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A collection is a subscription to a glob: to the origin it is a name, to the view a
// set of members (R132). Whatever the origin says of a name that the glob matches
// belongs to it, so it can share a stream with names.
type collection struct {
	key   string    // of the view
	until time.Time // when lingering ends; zero while a client wants it
	learn learning  // what is known of the members

	foreign heldNames // held from another target than the one that is connected
}

// restate prepares for a new stream: it adds what is held to the versions that the
// origin is told.
func (c *collection) restate(h *cache.Head, versions map[string]string) {
	c.learn = learning{}
	t := h.Type(c.key)
	if t.Phase != cache.Confirmed || len(c.foreign) > 0 {
		return
	}
	for e := range t.Members.Since(0) {
		if e.Present() {
			versions[e.Resource.Name] = heldVersion(e.Resource)
		}
	}
}

// relearn forgets the timing of responses of a stream that has ended.
func (s *subscription) relearn() {
	for _, c := range s.collections {
		c.learn = learning{}
	}
}

// demandCollection takes over that clients began or ceased to want a glob.
func (m *mirror) demandCollection(s *subscription, glob string, wanted bool, now time.Time) {
	c := s.collections[glob]
	switch {
	case !wanted && c != nil:
		c.until = now.Add(jitter(m.cfg.WildcardLinger))
	case !wanted:
	case c != nil:
		c.until = time.Time{}
	default:
		if s.collections == nil {
			s.collections = make(map[string]*collection)
		}
		assign(&s.named, s.wildcard)
		s.collections[glob] = &collection{key: cache.Collection(s.typeURL, glob)}
		if l := &m.lines[s.named]; l.open {
			m.request(l, &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL, ResourceNamesSubscribe: []string{glob}}, now)
		}
	}
}

// expireCollections gives up globs that have lingered long enough.
func (m *mirror) expireCollections(s *subscription, now time.Time) (next time.Time) {
	for glob, c := range s.collections {
		if c.until.IsZero() {
			continue
		}
		if now.Before(c.until) {
			next = earlier(next, c.until)
			continue
		}
		c.until = time.Time{}
		if !m.w.ForgetMembers(c.key) {
			continue // wanted again, and about to be reported
		}
		delete(s.collections, glob)
		if l := &m.lines[s.named]; l.open {
			m.request(l, &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL, ResourceNamesUnsubscribe: []string{glob}}, now)
		}
		if len(s.names)+len(s.collections) == 0 {
			s.named = nowhere
		}
	}
	return next
}

// applyCollections gives each collection its part of an update, and returns the
// update without the names of the globs themselves.
func (m *mirror) applyCollections(s *subscription, u wire.Update, now time.Time) wire.Update {
	if len(s.collections) == 0 {
		return u
	}
	parts := s.split(u)
	for glob, p := range parts {
		c := s.collections[glob]
		c.foreign.drop(*p)
		c.learn.heard(now, m.w.Apply(cache.Members, *p).New > 0)
	}
	named := u
	named.Removed = nil
	for _, name := range u.Removed {
		if c := s.collections[name]; c != nil {
			m.emptied(c, u, now)
		} else {
			named.Removed = append(named.Removed, name)
		}
	}
	return named
}

// split returns what an update says of each collection, by glob.
func (s *subscription) split(u wire.Update) map[string]*wire.Update {
	parts := make(map[string]*wire.Update)
	part := func(name string) *wire.Update {
		glob, ok := wire.GlobOf(name)
		if !ok {
			glob = name // what is said of the glob itself
		}
		c := s.collections[glob]
		if c == nil {
			return new(wire.Update) // of which nothing is made
		}
		if parts[glob] == nil {
			parts[glob] = &wire.Update{TypeURL: c.key, SystemVersion: u.SystemVersion, ControlPlane: u.ControlPlane}
		}
		return parts[glob]
	}
	for _, r := range u.Resources {
		p := part(r.Name)
		p.Resources = append(p.Resources, r)
	}
	for _, name := range u.Removed {
		if s.collections[name] == nil {
			p := part(name)
			p.Removed = append(p.Removed, name)
		}
	}
	for _, v := range u.RemovedVariants {
		p := part(v.Name)
		p.RemovedVariants = append(p.RemovedVariants, v)
	}
	for _, e := range u.Errors {
		p := part(e.Name)
		p.Errors = append(p.Errors, e)
	}
	return parts
}

// emptied takes the origin's word that a glob matches nothing: then nothing more is to
// be waited for.
func (m *mirror) emptied(c *collection, u wire.Update, now time.Time) {
	u = wire.Update{TypeURL: c.key, SystemVersion: u.SystemVersion, ControlPlane: u.ControlPlane}
	for e := range m.w.View().Head().Type(c.key).Members.Since(0) {
		if e.Present() {
			u.Removed = append(u.Removed, e.Resource.Name)
		}
	}
	m.w.Apply(cache.Members, u)
	c.learn.heard(now, false)
	m.w.SetPhase(c.key, cache.Confirmed)
}
