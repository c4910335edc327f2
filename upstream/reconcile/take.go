package reconcile

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Take applies an update, except for the removals that must wait. ignores reports that the origin ignores the initial
// resource versions of the relay.
func (s *Set) Take(u wire.Update, now time.Time) (c cache.Change, ignores bool) {
	fails := u.Fails(s.whole)
	l := s.look(now)
	if c = l.grow(l.withhold(l.screen(u))); !fails {
		s.Progress.responded(now, c.New > 0, s.group.cfg.ColdWait)
	}
	m, count := &s.unmentioned, s.total()
	if count+len(m.foreign) == 0 {
		return c, false
	}
	if len(m.told) > 0 && c.Same > 0 && s.whole != "" { // an origin answers for each name that it is asked for
		ignores = s.Distrust(now)
	}
	withheld := s.withheldForeign()
	m.mentions(u)
	for name := range withheld { // what is served is of the other origin still
		put(&m.foreign, name, struct{}{})
	}
	// An origin may say for ever of what it has mentioned that it lives on. That the set as a whole failed
	// says nothing about its members.
	if m.total() < count || c.Changed > 0 || m.last.IsZero() && !fails {
		m.last = now
	}
	return c, ignores
}

// screen returns an update without the removals that must wait, and records these. Other resources of the update are
// not suspected any more.
func (l look) screen(u wire.Update) wire.Update {
	s := l.set
	if l.confirmed {
		s.fresh = nil
	}
	u.Resources = l.screenResources(u.Resources)
	waiting := make(names)
	for name := range u.RemovedNames() {
		delete(s.fresh, name)
		switch {
		case s.content.Get(name) == nil:
		case l.waits(name) || s.group.cfg.HoldExplicit && !cache.RemovalsAreData(u.TypeURL):
			waiting[name] = struct{}{}
			s.suspect(name, removal{stated: true}, l.repeats(name))
		case s.byName[name].replacement != nil && s.byName[name].breakReason != "":
			delete(s.byName, name) // its held replacement is obsolete
		}
	}
	u.Removed = without(u.Removed, func(name string) bool { _, waits := waiting[name]; return waits })
	u.Errors = without(u.Errors, func(e *wire.ResourceError) bool {
		_, waits := waiting[e.Name]
		return s.recordReason(e) || waits
	})
	return u
}

// screenResources is screen for the resources of an update.
func (l look) screenResources(resources []*wire.Resource) []*wire.Resource {
	s := l.set
	var emptied []*wire.Resource
	for _, res := range resources {
		if isEmptyAssignment(res) && l.waits(res.Name) && hasEndpoints(s.content.Get(res.Name)) { // what is needed is found by a search
			emptied = append(emptied, res)
			s.suspect(res.Name, removal{replacement: res, stated: true}, l.repeats(res.Name))
			continue
		}
		if as := s.byName[res.Name]; as.breakReason == "" || res.HasBody() && !as.holdsUpdate(res) {
			s.Mention(res.Name, l.now)
		}
	}
	if len(emptied) == 0 {
		return resources
	}
	return without(resources, func(res *wire.Resource) bool { return slices.Contains(emptied, res) })
}

// waits reports whether the removal of a name must wait. It waits if the set is incomplete and the name is unmentioned
// or suspected, if the removal answers a request by name, or if a held resource needs the name.
func (l look) waits(name string) bool {
	s := l.set
	return !l.confirmed && (s.has(name) || s.Suspects(name)) || l.answers(name) || l.needed(name)
}

// answers reports whether a mention of a name answers a request by name.
func (l look) answers(name string) bool {
	s := l.set
	return s.asks(name) || s.Asker != nil && s.Asker.asks(name)
}

// repeats reports whether a mention of a name may repeat an earlier one, because the relay has requested it again.
func (l look) repeats(name string) bool { return !l.confirmed || l.answers(name) }

// isEmptyAssignment reports whether a resource is an assignment without endpoints.
func isEmptyAssignment(r *wire.Resource) bool {
	return r.TypeURL == wire.EndpointType && r.TTL == 0 && r.Refusal == nil && r.HasBody() && !r.HasEndpoints()
}

// hasEndpoints reports whether a resource, nil if there is none, is an assignment with endpoints.
func hasEndpoints(r *wire.Resource) bool { return r != nil && r.HasEndpoints() }

// grow applies an update, and counts the resources that it adds to the set.
func (l look) grow(u wire.Update) cache.Change {
	s := l.set
	var absent []string
	if !l.confirmed && s.hadContent {
		for _, res := range u.Resources {
			if s.content.Get(res.Name) == nil {
				absent = append(absent, res.Name)
			}
		}
	}
	c := s.apply(u)
	for _, name := range absent {
		if s.content.Get(name) != nil { // without subscriptions, it is not stored
			put(&s.fresh, name, struct{}{})
		}
	}
	if l.confirmed {
		s.added = c.New
	}
	return c
}
