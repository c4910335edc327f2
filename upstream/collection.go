package upstream

import (
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// maxLingeringGlobs limits the unused globs that linger, since a client may subscribe to any number of globs. Globs
// over the limit are unsubscribed at once.
const maxLingeringGlobs = 1000

// collectionOf returns the key of the collection that contains a name or has it as its glob. It returns "" if there is
// no subscription to that collection.
func (s *subscription) collectionOf(name string) (key string) {
	glob, ok := wire.GlobOf(name)
	if !ok {
		glob = name // the name may be the glob itself
	}
	if c := s.collections[glob]; c != nil {
		key = c.key
	}
	return key
}

// SplitByCollection returns the parts of an update by the key of their collection. keyOf returns the key of the
// collection of a name; "" if there is none. The result omits collections that the update does not contain.
func SplitByCollection(u wire.Update, keyOf func(name string) (key string)) map[string]*wire.Update {
	out := make(map[string]*wire.Update)
	add := func(name string, to func(part *wire.Update)) {
		key := keyOf(name)
		if key == "" {
			return
		}
		if out[key] == nil {
			out[key] = &wire.Update{TypeURL: key, SystemVersion: u.SystemVersion, ControlPlane: u.ControlPlane}
		}
		to(out[key])
	}
	for _, r := range u.Resources {
		add(r.Name, func(p *wire.Update) { p.Resources = append(p.Resources, r) })
	}
	for _, name := range u.Removed {
		add(name, func(p *wire.Update) { p.Removed = append(p.Removed, name) })
	}
	for _, v := range u.RemovedVariants {
		add(v.Name, func(p *wire.Update) { p.RemovedVariants = append(p.RemovedVariants, v) })
	}
	for _, e := range u.Errors {
		add(e.Name, func(p *wire.Update) { p.Errors = append(p.Errors, e) })
	}
	return out
}

// demandCollection handles a change in the demand of clients for a glob. It reports whether the relay must request the
// collection: it is new, or its content was dropped and clients need it again (R125).
func (v *subscriptions) demandCollection(s *subscription, glob string, d cache.Demand, now time.Time) (request bool) {
	c := s.collections[glob]
	switch {
	case !d.Wanted && c == nil && d.Restored:
		v.startLinger(v.addCollection(s, glob, d.TypeURL), now)
		return true
	case !d.Wanted && c != nil:
		v.startLinger(c, now)
		return false
	case !d.Wanted:
		return false
	case c != nil:
		v.stopLinger(c)
		return d.Refetch
	}
	v.addCollection(s, glob, d.TypeURL).requestedAt = now
	if l := s.stream(s.namesRole); !l.open {
		l.early = append(l.early, part{sub: s, globs: []string{glob}})
	}
	return true
}

// addCollection adds a collection to a subscription. It does not send the request.
func (v *subscriptions) addCollection(s *subscription, glob, key string) *collection {
	if s.collections == nil {
		s.collections = make(map[string]*collection)
	}
	c := &collection{set: v.newSet(s, key, glob, cache.Wildcard), glob: glob}
	c.check = v.agenda.newTask(rankCheck, s.typeURL, func(now time.Time) time.Time { return v.checks.collection(c, now) })
	s.collections[glob] = c
	v.assignStreams(s, s.wildcardRole != noStream)
	for _, kept := range v.keptNames[key] {
		c.keepIfPresent(kept.name, kept.hold)
	}
	delete(v.keptNames, key)
	v.agenda.decisions.wake()
	return c
}

// startLinger marks a collection as unused and schedules its removal.
func (v *subscriptions) startLinger(c *collection, now time.Time) {
	v.stopLinger(c)
	isolated := c.sub.branch != v.trunk && v.empty(c.key)
	if c.lingerUntil = now; v.lingeringGlobs < maxLingeringGlobs && !isolated {
		c.lingerUntil = now.Add(jitter(WildcardLinger(v.cfg.Linger)))
	}
	v.lingeringGlobs++
	c.check.schedule(c.lingerUntil)
}

// stopLinger marks a collection as used.
func (v *subscriptions) stopLinger(c *collection) {
	if !c.lingerUntil.IsZero() {
		c.lingerUntil = time.Time{}
		v.lingeringGlobs--
	}
}

// expireCollection unsubscribes from a collection that has lingered long enough, and reports whether it did.
func (v *subscriptions) expireCollection(c *collection, now time.Time) bool {
	if c.lingerUntil.IsZero() || now.Before(c.lingerUntil) {
		return false
	}
	if v.pending.RetainsUnused() && v.lingeringGlobs <= maxLingeringGlobs {
		c.lingerUntil = now.Add(frozenLinger) // returning clients find their resources
		return false
	}
	v.stopLinger(c)
	v.agenda.list.wake()
	if !v.pending.ForgetWildcard(c.key) {
		return false // wanted again: the demand is about to arrive
	}
	s := c.sub
	delete(s.collections, c.glob)
	c.check.cancel()
	asked := s.withoutWanted(c.Queried())
	v.group.Drop(c.Set)
	v.agenda.decisions.wake()
	v.change(s.stream(s.namesRole), s, nil, append(asked, c.glob), now)
	v.assignStreams(s, s.wildcardRole != noStream)
	return true
}

// demand handles the changes in the demand of clients since the last call.
func (v *subscriptions) demand(now time.Time) {
	globs := make(map[*subscription][]string) // to request now
	waiting := v.batchSize
	for _, d := range v.w.TakeDemand() {
		typeURL, glob, isCollection := cache.SplitCollection(d.TypeURL)
		s := v.owner(d, typeURL, glob, now)
		switch {
		case isCollection:
			if v.demandCollection(s, glob, d, now) {
				v.addRequester(s, d)
				globs[s] = append(globs[s], glob)
			}
		case d.Name == nil:
			v.demandMembers(s, d, now)
		default:
			v.demandName(s, d, now)
		}
	}
	for s, names := range globs {
		v.change(s.stream(s.namesRole), s, names, nil, now)
	}
	if v.batchSize > waiting {
		v.agenda.batch.schedule(now.Add(batchWait))
	}
	v.agenda.reports.wake() // clients may have returned
}
