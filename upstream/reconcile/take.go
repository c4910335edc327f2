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
	f := s.newFilter(now)
	f.update = u
	before := s.unmentionedCount()
	repeats := before > 0 && s.repeatsUnmentioned(u)
	if f.confirmed {
		s.newNames = nil
	}
	passes, waits := u, false
	if f.concerns(u) {
		passes, waits = f.ask(u)
	}
	c = f.apply(passes)
	if s.awaitAdditions(); !u.Fails(s.pattern) {
		s.Progress.recordResponse(now, c.New > 0 || waits, s.group.cfg.ColdWait)
	}
	return c, s.recordMentions(u, c, before, repeats, now)
}

// recordMentions records what the origin mentions in an update that was applied, and reports whether it ignores the versions that
// the relay sent. before is the number of unmentioned resources until then.
func (s *Set) recordMentions(u wire.Update, c cache.Change, before int, repeats bool, now time.Time) (ignoresVersions bool) {
	m := &s.unmentioned
	if before+len(m.foreign)+len(m.requestedAgain) == 0 {
		return false
	}
	if m.statesAll = m.statesAll || repeats; repeats && len(m.withVersion) > 0 {
		ignoresVersions = s.NoteVersionsIgnored(now)
	}
	foreign := s.heldForeign()
	m.markUpdate(u)
	for name := range foreign { // clients still receive the content of the previous origin
		put(&m.foreign, name, struct{}{})
	}
	// Only a first mention, a change and the first response count. An origin may send TTL heartbeats for ever, and an
	// error for the whole set says nothing about its members.
	if m.unmentionedCount() < before || c.Changed > 0 || m.lastMention.IsZero() && !u.Fails(s.pattern) {
		m.lastMention = now
	}
	return ignoresVersions
}

// concerns reports whether a policy may make a change of an update wait. Otherwise none is asked: the update removes nothing,
// adds little, and nothing waits for which it could matter.
func (f *filter) concerns(u wire.Update) bool {
	s := f.set
	return len(s.group.withRemovals)+len(s.missing)+len(u.Removed)+len(u.Errors) > 0 || s.group.cfg.Check != nil || s.hasUnits() ||
		s.limitsGrowth() && f.mayGrow(u) || slices.ContainsFunc(u.Resources, isEmptyAssignment)
}

// ask returns the part of an update that passes all policies. The others record the rest; waits reports that these are more
// additions than before.
func (f *filter) ask(u wire.Update) (passes wire.Update, waits bool) {
	s := f.set
	before := len(s.waiting) + s.count(grown)
	passes = f.holdGrowth(f.holdBreaking(f.holdRequired(f.deferRemovals(u))))
	passes = f.withoutBlocked(f.joinUnits(passes))
	return passes, len(s.waiting)+s.count(grown) > before
}

// repeatsUnmentioned reports whether an update has a resource, unmentioned until now, as the set has it: the origin states
// what has not changed. A resource that it has removed on the stream proves nothing, since it states that again when it
// has it again; nor do resources that are requested again, or subscribed to by name: an origin answers each subscription.
func (s *Set) repeatsUnmentioned(u wire.Update) bool {
	return s.pattern != "" && slices.ContainsFunc(u.Resources, func(r *wire.Resource) bool {
		if !s.isUnmentioned(r.Name) || s.isRequestedAgain(r.Name) || r.TTL > 0 {
			return false
		}
		old := s.content.Get(r.Name)
		return old != nil && old.OriginVersion == r.OriginVersion && !old.ContentDropped() && old.SameContent(r)
	})
}

// deferRemovals returns an update without the removals that must wait, and records these as suspected. It cancels the
// pending removals of other resources in the update.
func (f *filter) deferRemovals(u wire.Update) wire.Update {
	s := f.set
	u.Resources = f.deferEmptied(u.Resources)
	deferred := make(names)
	for name := range u.RemovedNames() {
		delete(s.newNames, name)
		switch {
		case s.content.Get(name) == nil:
			s.forgetAddition(name)
		case f.mustHold(name):
			deferred[name] = struct{}{}
			s.suspect(name, removal{explicit: true}, f.mayRepeat(name), f.now)
		case s.byName[name].isHeldUpdate():
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
func (f *filter) deferEmptied(resources []*wire.Resource) []*wire.Resource {
	s := f.set
	var emptied []*wire.Resource
	for _, r := range resources {
		// mustWait after isEmptyAssignment, because it may search all retained resources
		if isEmptyAssignment(r) && f.mustWait(r.Name, !f.confirmed) && hasEndpoints(s.content.Get(r.Name)) {
			emptied = append(emptied, r)
			s.suspect(r.Name, removal{replacement: r, explicit: true}, f.mayRepeat(r.Name), f.now)
			continue
		}
		switch change := s.byName[r.Name]; {
		case change.growing():
			delete(s.missing, r.Name) // holdGrowth decides about the change
		case change.detail == "" || r.HasBody() && !change.holds(r):
			s.cancelRemoval(r.Name, f.now)
		}
		for _, alias := range r.Aliases {
			s.cancelRemoval(alias, f.now)
		}
	}
	if len(emptied) == 0 {
		return resources
	}
	return without(resources, func(r *wire.Resource) bool { return slices.Contains(emptied, r) })
}

// isEmptyAssignment reports whether a resource is an assignment without endpoints.
func isEmptyAssignment(r *wire.Resource) bool {
	return r.TypeURL == wire.EndpointType && r.TTL == 0 && r.Refusal == nil && r.HasBody() && !r.HasEndpoints()
}

// hasEndpoints reports whether a resource is an assignment with endpoints. r may be nil.
func hasEndpoints(r *wire.Resource) bool { return r != nil && r.HasEndpoints() }

// apply applies an update, and records what it adds to a set that had content: additions are no part of its size before.
func (f *filter) apply(u wire.Update) cache.Change {
	s := f.set
	absent := f.absent(u)
	c := s.apply(u, f.delayOf(u))
	var added additions
	for _, name := range absent {
		switch r := s.content.Get(name); {
		case r == nil: // the view does not store a resource without a subscription
		case f.confirmed:
			added.count(r)
		default:
			put(&s.newNames, name, struct{}{})
		}
	}
	if !wire.HasKeys(s.TypeURL) {
		added = additions{all: c.New}
	}
	if f.confirmed && u.TypeURL != "" {
		s.lastAdded = added
	}
	return c
}

// absent returns the names of an update that the set does not have, except those that replace others: these do not count.
func (f *filter) absent(u wire.Update) (all []string) {
	if f.confirmed && !wire.HasKeys(u.TypeURL) || !f.confirmed && !f.set.hadContent {
		return nil
	}
	for _, r := range u.Resources {
		if !has(f.replacing, r.Name) && f.set.content.Get(r.Name) == nil {
			all = append(all, r.Name)
		}
	}
	return all
}
