package reconcile

import (
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// Take applies an update, except changes that must wait. ignoresVersions reports that the origin ignores the versions
// that the relay sent.
func (s *Set) Take(u wire.Update, now time.Time) (c cache.Change, ignoresVersions bool) {
	fails := u.Fails(s.pattern)
	f := s.newFilter(now)
	if c = f.apply(f.holdBreaking(f.deferRemovals(u))); !fails {
		s.Progress.recordResponse(now, c.New > 0, s.group.cfg.ColdWait)
	}
	m, before := &s.unmentioned, s.unmentionedCount()
	if before+len(m.foreign) == 0 {
		return c, false
	}
	// Resources that are subscribed to by name prove nothing: an origin answers each subscription.
	if len(m.withVersion) > 0 && c.Same > 0 && s.pattern != "" {
		ignoresVersions = s.NoteVersionsIgnored(now)
	}
	foreign := s.heldForeign()
	m.markUpdate(u)
	for name := range foreign { // clients still receive the content of the previous origin
		put(&m.foreign, name, struct{}{})
	}
	// Only a first mention, a change and the first response count. An origin may send TTL heartbeats for ever, and an
	// error for the whole set says nothing about its members.
	if m.unmentionedCount() < before || c.Changed > 0 || m.lastMention.IsZero() && !fails {
		m.lastMention = now
	}
	return c, ignoresVersions
}

// deferRemovals returns an update without the removals that must wait, and records these as suspected. It cancels the
// pending removals of other resources in the update.
func (f filter) deferRemovals(u wire.Update) wire.Update {
	s := f.set
	if f.confirmed {
		s.newNames = nil
	}
	u.Resources = f.deferEmptied(u.Resources)
	deferred := make(names)
	for name := range u.RemovedNames() {
		delete(s.newNames, name)
		switch {
		case s.content.Get(name) == nil:
		case f.mustWait(name) || s.group.cfg.HoldExplicit && !cache.RemovalsAreData(u.TypeURL):
			deferred[name] = struct{}{}
			s.suspect(name, removal{explicit: true}, f.mayRepeat(name))
		case s.byName[name].replacement != nil && s.byName[name].breakReason != "":
			delete(s.byName, name) // its held update is obsolete
		}
	}
	u.Removed = without(u.Removed, func(name string) bool { _, ok := deferred[name]; return ok })
	u.Errors = without(u.Errors, func(e *wire.ResourceError) bool {
		_, ok := deferred[e.Name]
		return s.recordError(e) || ok
	})
	return u
}

// deferEmptied is deferRemovals for the resources of an update. An assignment that loses its last endpoint counts as
// removed.
func (f filter) deferEmptied(resources []*wire.Resource) []*wire.Resource {
	s := f.set
	var emptied []*wire.Resource
	for _, r := range resources {
		// mustWait after isEmptyAssignment, because it may search all retained resources
		if isEmptyAssignment(r) && f.mustWait(r.Name) && hasEndpoints(s.content.Get(r.Name)) {
			emptied = append(emptied, r)
			s.suspect(r.Name, removal{replacement: r, explicit: true}, f.mayRepeat(r.Name))
			continue
		}
		if change := s.byName[r.Name]; change.breakReason == "" || r.HasBody() && !change.isBreakingUpdate(r) {
			s.cancelRemoval(r.Name, f.now)
		}
	}
	if len(emptied) == 0 {
		return resources
	}
	return without(resources, func(r *wire.Resource) bool { return slices.Contains(emptied, r) })
}

// mustWait reports whether the removal of a name must wait. In an incomplete set, it must if the name is unmentioned or
// has a pending removal. In any set, it must if it answers a query, or if a retained resource refers to the name.
func (f filter) mustWait(name string) bool {
	s := f.set
	return !f.confirmed && (s.isUnmentioned(name) || s.HasRemoval(name)) || f.answersQuery(name) || f.needed(name)
}

// answersQuery reports whether the origin mentions a name because the relay queries it.
func (f filter) answersQuery(name string) bool {
	s := f.set
	return s.isQueried(name) || s.QueriesFor != nil && s.QueriesFor.isQueried(name)
}

// mayRepeat reports whether the removal of a name may repeat an earlier one, because the relay has requested the name
// again.
func (f filter) mayRepeat(name string) bool { return !f.confirmed || f.answersQuery(name) }

// isEmptyAssignment reports whether a resource is an assignment without endpoints.
func isEmptyAssignment(r *wire.Resource) bool {
	return r.TypeURL == wire.EndpointType && r.TTL == 0 && r.Refusal == nil && r.HasBody() && !r.HasEndpoints()
}

// hasEndpoints reports whether a resource is an assignment with endpoints. r may be nil.
func hasEndpoints(r *wire.Resource) bool { return r != nil && r.HasEndpoints() }

// apply applies an update and records the names that it adds. Additions to a set that had content may be renamed
// resources, so cache.LargeRemoval considers them.
func (f filter) apply(u wire.Update) cache.Change {
	s := f.set
	var absent []string
	if !f.confirmed && s.hadContent {
		for _, r := range u.Resources {
			if s.content.Get(r.Name) == nil {
				absent = append(absent, r.Name)
			}
		}
	}
	c := s.apply(u)
	for _, name := range absent {
		if s.content.Get(name) != nil { // the view does not store a resource without a subscription
			put(&s.newNames, name, struct{}{})
		}
	}
	if f.confirmed {
		s.lastAdded = c.New
	}
	return c
}
