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
}

// restate prepares for a new stream: it adds what is held to the versions that the
// origin is told.
func (c *collection) restate(h *cache.Head, versions map[string]string) {
	c.learn = learning{}
	t := h.Type(c.key)
	if t.Phase != cache.Confirmed {
		return
	}
	for e := range t.Members.Since(0) {
		if e.Present() {
			versions[e.Resource.Name] = e.Resource.OriginVersion
		}
	}
}

// relearn forgets the timing of responses of a stream that has ended.
func (s *subscription) relearn() {
	for _, c := range s.collections {
		c.learn = learning{}
	}
}

// wantCollection takes over that clients began or ceased to want a glob, or need
// content that was not to be kept (R125).
func (m *mirror) wantCollection(s *subscription, glob string, d cache.Demand, now time.Time) {
	c := s.collections[glob]
	switch {
	case !d.Wanted && c != nil:
		c.until = now.Add(jitter(m.cfg.WildcardLinger))
	case !d.Wanted:
	case c != nil:
		if c.until = (time.Time{}); d.Again {
			m.askCollection(s, glob, now)
		}
	default:
		if s.collections == nil {
			s.collections = make(map[string]*collection)
		}
		assign(&s.named, s.wildcard)
		s.collections[glob] = &collection{key: cache.Collection(s.typeURL, glob)}
		m.askCollection(s, glob, now)
	}
}

func (m *mirror) askCollection(s *subscription, glob string, now time.Time) {
	if l := &m.lines[s.named]; l.open {
		m.request(l, &discoverypb.DeltaDiscoveryRequest{TypeUrl: s.typeURL, ResourceNamesSubscribe: []string{glob}}, now)
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
	parts := make(map[string]*wire.Update)
	part := func(name string) *wire.Update {
		glob, ok := wire.GlobOf(name)
		if !ok || s.collections[glob] == nil {
			if glob = name; s.collections[glob] == nil {
				return nil
			}
		}
		if parts[glob] == nil {
			parts[glob] = &wire.Update{TypeURL: s.collections[glob].key, SystemVersion: u.SystemVersion, ControlPlane: u.ControlPlane}
		}
		return parts[glob]
	}
	for _, r := range u.Resources {
		if p := part(r.Name); p != nil {
			p.Resources = append(p.Resources, r)
		}
	}
	named := u
	named.Removed, named.Errors = nil, nil
	var empty []string
	for _, name := range u.Removed {
		if s.collections[name] != nil {
			empty = append(empty, name)
			continue
		}
		named.Removed = append(named.Removed, name)
		if p := part(name); p != nil {
			p.Removed = append(p.Removed, name)
		}
	}
	for _, e := range u.Errors {
		if p := part(e.Name); p != nil {
			p.Errors = append(p.Errors, e)
		}
		if e.NotFound() && s.collections[e.Name] != nil {
			empty = append(empty, e.Name)
		}
		named.Errors = append(named.Errors, e)
	}
	for glob, p := range parts {
		c := m.w.Apply(cache.Members, *p)
		if !p.Fails(glob) { // which would say nothing about what there is
			s.collections[glob].learn.heard(now, c.New > 0)
		}
	}
	for _, glob := range empty {
		m.emptied(s.collections[glob], u, now)
	}
	return named
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
