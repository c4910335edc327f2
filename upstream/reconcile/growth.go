package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/pending"
)

// A GrowthLimit is how much may grow in one change (TENDER_HOLD_GROWTH). More than that is abnormal. The zero value limits nothing.
type GrowthLimit struct {
	Factor int // how many times as much as before

	// Bytes and Names are what a resource, and the resources of a set, must gain at least, so that small ones may grow by
	// more than the factor.
	Bytes, Names int
}

// NewGrowthLimit returns the limits with a factor; zero limits nothing.
func NewGrowthLimit(factor int) GrowthLimit {
	if factor == 0 {
		return GrowthLimit{}
	}
	return GrowthLimit{Factor: factor, Bytes: 1 << 20, Names: 1000}
}

// resource reports whether the growth of a resource to a size is abnormal.
func (g GrowthLimit) resource(was, is int) bool { return g.exceeded(g.Bytes, was, is) }

// set reports whether the growth of a set by some names is abnormal. A set without a resource has no size to compare with.
func (g GrowthLimit) set(was, added int) bool { return was > 0 && g.exceeded(g.Names, was, was+added) }

func (g GrowthLimit) exceeded(least, was, is int) bool {
	return g.Factor > 0 && is-was >= least && is > g.Factor*was
}

// limitsGrowth reports whether abnormal growth of the set waits. That of endpoints and of unknown types does not, because what
// scales is urgent. That of Secrets does not, because old ones have expired or were revoked.
func (s *Set) limitsGrowth() bool {
	return s.group.cfg.Growth.Factor > 0 && !cache.RemovalsAreData(s.TypeURL) && !wire.NeverOld(s.TypeURL)
}

// isWhole reports whether the origin decides about the names of the set. Clients decide about names to which they subscribe.
func (s *Set) isWhole() bool { return s.pattern != "" || s.group.cfg.AllResources }

// mayAdd reports whether a change may be of a resource that clients do not have.
func (s *Set) mayAdd(change removal) bool {
	return change.growth == more || change.state == grown && s.isWhole()
}

// mayWait reports whether a resource may wait although it grows: not if it expires or may not be kept, nor if its name does not
// identify it.
func mayWait(r *wire.Resource) bool {
	return r.HasBody() && r.Refusal == nil && r.TTL == 0 && !r.DoNotCache && r.Constraints == nil && len(r.Aliases) == 0
}

// holdGrowth returns an update without the changes by which a resource, or the set, grows abnormally. It records these as held,
// and so it does with what would break clients meanwhile: resources that newly name additions which wait, and removals from
// the set of these (B.51).
func (f *filter) holdGrowth(u wire.Update) wire.Update {
	s := f.set
	if !s.limitsGrowth() || len(s.byName) == 0 && !f.additionsWait() && !f.mayGrow(u) {
		return u
	}
	f.forgetOmitted(u)
	before, many := s.count(grown), f.tooMany(len(u.Resources)+len(s.byName)) && f.tooMany(f.countAdditions(u))
	added := f.namedAdditions(u.Resources, wasAdded)
	u.Resources = without(u.Resources, func(r *wire.Resource) bool { return f.holdsGrowth(r, many, added) })
	if s.contains(isAddition) {
		u.Removed = without(u.Removed, func(name string) bool { return f.holdsBeside(name, nil) })
		u.Errors = without(u.Errors, func(e *wire.ResourceError) bool {
			return e.NotFound() && e.Constraints == nil && f.holdsBeside(e.Name, e)
		})
	}
	if s.count(grown) > before {
		s.grownAlarm.start(f.now)
		s.group.cfg.Logger.LogAttrs(context.Background(), slog.LevelError,
			"growth held: use tender pass or tender drop", s.heldAttrs(grown)...)
	}
	return u
}

// mayGrow reports whether an update may be abnormal growth: most are small.
func (f *filter) mayGrow(u wire.Update) bool {
	least := f.set.group.cfg.Growth.Bytes
	return f.tooMany(len(u.Resources)) ||
		slices.ContainsFunc(u.Resources, func(r *wire.Resource) bool { return r.Size() >= least })
}

// additionsWait reports whether additions to any set of the group wait, or were dropped.
func (f *filter) additionsWait() bool {
	for s := range f.set.group.withRemovals {
		if s.contains(wasAdded) {
			return true
		}
	}
	return false
}

// holdsGrowth reports whether a resource of an update waits, and then records it. many reports that the additions to the set are
// too many; added are those to other sets that the update names.
func (f *filter) holdsGrowth(r *wire.Resource, many bool, added names) bool {
	s := f.set
	old := s.byName[r.Name]
	if !statesContent(r) {
		return false
	}
	if old.holds(r) && old.state == dropped {
		old.unstated = false
		s.byName[r.Name] = old
		return true
	}
	change := removal{state: grown, replacement: r, explicit: true}
	if change.growth, change.detail = f.growthOf(r, many, added); change.detail == "" {
		f.endGrowth(r.Name, old)
		return false
	}
	if old.growing() {
		change.since, change.cause = old.since, old.cause
	} else if change.since, change.cause = f.waitsSince(r.Name); f.growthOver(change.since) {
		return false // it has waited for as long for another reason
	}
	s.record(r.Name, change)
	return true
}

// holdsBeside reports whether a removal waits for additions to the set, and then records it. The error is the one with which the
// origin stated the removal; nil without one.
func (f *filter) holdsBeside(name string, originError *wire.ResourceError) bool {
	s := f.set
	if s.content.Get(name) == nil {
		return false
	}
	change := removal{
		state: grown, growth: beside, detail: "additions may replace it, which wait", explicit: true, originError: originError,
	}
	if old := s.byName[name]; old.growth == beside {
		change.since, change.cause, change.originError = old.since, old.cause, cmp.Or(originError, old.originError)
	} else {
		change.since, change.cause = f.waitsSince(name)
	}
	s.record(name, change)
	return true
}

// endGrowth records that a change waits no longer, because the origin has stated a normal one of the name.
func (f *filter) endGrowth(name string, old removal) {
	if old.growing() {
		delete(f.set.byName, name)
		put(&f.delays, name, pending.Delay{Cause: old.cause, Since: old.since, Reason: string(Growth)})
	}
}

// growthOf returns how a resource that the origin states grows abnormally; nothing if it does not, or may not wait.
func (f *filter) growthOf(r *wire.Resource, many bool, added names) (growth, string) {
	s := f.set
	served := s.content.Get(r.Name)
	switch {
	case !mayWait(r):
		return 0, ""
	case served == nil && many:
		return more, "the set grows to many times its size"
	case !checkable(served):
		return 0, ""
	}
	if was, is := len(served.Value()), len(r.Value()); s.group.cfg.Growth.resource(was, is) {
		return larger, fmt.Sprintf("grows from %d to %d bytes", was, is)
	}
	if name := newlyNamed(r, served, added); name != "" {
		return naming, fmt.Sprintf("names %.256q, which clients do not have", name)
	}
	return 0, ""
}

// namedAdditions returns the additions among some changes that resources name, of types to which the type of the set refers.
func (f *filter) namedAdditions(in []*wire.Resource, among func(name string, change removal) bool) names {
	all := make(names)
	for o := range f.set.group.withRemovals {
		if !slices.Contains(schema.ReferrersOf(o.TypeURL), f.set.TypeURL) || !o.contains(among) {
			continue
		}
		maps.Copy(all, references(in, func(yield func(name string) bool) {
			for name, change := range o.byName {
				if among(name, change) && !yield(name) {
					return
				}
			}
		}))
	}
	return all
}

// newlyNamed returns the first of some additions that a resource names, and the served one does not; empty without one. A client
// cannot use a route whose cluster it does not have.
func newlyNamed(r, served *wire.Resource, additions names) (first string) {
	if len(additions) == 0 {
		return ""
	}
	before := make(names)
	named := references([]*wire.Resource{r}, maps.Keys(additions))
	if served != nil {
		before = references([]*wire.Resource{served}, maps.Keys(named))
	}
	for name := range named {
		if !has(before, name) && (first == "" || name < first) {
			first = name
		}
	}
	return first
}

// wasAdded reports whether a change is one of too many additions, and waits or was dropped.
func wasAdded(_ string, change removal) bool { return change.growth == more }

// isAddition reports whether a change is one of too many additions, and waits.
func isAddition(_ string, change removal) bool { return change.state == grown && change.growth == more }

// additions yields the names of the additions that wait because they are too many.
func (s *Set) additions(yield func(name string) bool) {
	for name, change := range s.byName {
		if isAddition(name, change) && !yield(name) {
			return
		}
	}
}

// oldestAddition returns since when an addition waits; zero if none does.
func (s *Set) oldestAddition() (since time.Time) {
	for name := range s.additions {
		since = Earlier(since, s.byName[name].since)
	}
	return since
}

// tooMany reports whether a number of additions is abnormal growth of the set.
func (f *filter) tooMany(added int) bool {
	s := f.set
	g := s.group.cfg.Growth
	return added > 0 && added >= g.Names && s.isWhole() && s.content.Known(f.now) && g.set(s.content.Count(), added)
}

// countAdditions counts what an update adds to the set, and the additions that wait already. It does not count what an operator
// dropped.
func (f *filter) countAdditions(u wire.Update) (n int) {
	s := f.set
	for range s.additions {
		n++
	}
	for _, r := range u.Resources {
		old := s.byName[r.Name]
		if mayWait(r) && s.content.Get(r.Name) == nil && !isAddition(r.Name, old) && !old.holds(r) {
			n++
		}
	}
	return n
}

// forgetOmitted drops additions that the origin no longer has, because an update that lists the whole set omits them.
func (f *filter) forgetOmitted(u wire.Update) {
	s := f.set
	if whole := u.Complete || s.group.cfg.AllResources && u.TypeURL != ""; !whole || !s.contains(s.adds) {
		return
	}
	listed := make(names)
	for _, r := range f.update.Resources {
		listed[r.Name] = struct{}{}
	}
	maps.DeleteFunc(s.byName, func(name string, change removal) bool { return s.adds(name, change) && !has(listed, name) })
}

// adds reports whether a change is of a resource that clients do not have, and waits or was dropped.
func (s *Set) adds(name string, change removal) bool {
	return change.replacement != nil && s.mayAdd(change) && s.content.Get(name) == nil
}

// forgetAddition drops the addition of a name, because the origin has removed it again.
func (s *Set) forgetAddition(name string) {
	if change, ok := s.byName[name]; ok && change.replacement != nil && s.mayAdd(change) {
		delete(s.byName, name)
	}
}

// forgetUnstated drops the growth that the origin has not stated on the stream, if the set is complete.
func (s *Set) forgetUnstated(complete bool) {
	if complete {
		maps.DeleteFunc(s.byName, func(_ string, change removal) bool { return change.unstated })
	}
}

// growthEnds returns a function that selects growth to apply: its time is over, or it is normal by now. The origin must have
// stated it on the stream that carries the set. Additions pass together.
func (f *filter) growthEnds() func(name string, change removal) bool {
	s := f.set
	added := 0
	for range s.additions {
		added++
	}
	all := f.growthOver(s.oldestAddition()) || !f.tooMany(added)
	updateEnds := f.updateEnds()
	return func(name string, change removal) bool {
		if change.state != grown || change.unstated || !f.connected {
			return false
		}
		switch change.growth {
		case more:
			return all
		case beside: // after what refers to it
			return all && !f.needed(name)
		}
		return updateEnds(name, change)
	}
}

// updateEnds is growthEnds for updates of resources. One that names an addition passes after that.
func (f *filter) updateEnds() func(name string, change removal) bool {
	var all []*wire.Resource
	for _, change := range f.set.byName {
		if change.state == grown && change.growth == naming {
			all = append(all, change.replacement)
		}
	}
	waiting, added := f.namedAdditions(all, isAddition), f.namedAdditions(all, wasAdded)
	return func(name string, change removal) bool {
		served := f.set.content.Get(name)
		switch {
		case change.growth == naming && newlyNamed(change.replacement, served, waiting) != "":
			return false
		case f.growthOver(change.since) || served == nil: // a first state does not wait
			return true
		}
		return change.growth == naming && newlyNamed(change.replacement, served, added) == ""
	}
}

// growthOver reports whether the time of growth is over that waits since a time, which is zero if none does.
func (f *filter) growthOver(since time.Time) bool {
	return !since.IsZero() && f.reached(f.set.growthUntil(since))
}

// growthUntil returns when growth is applied that waits since a time; zero without a connection.
func (s *Set) growthUntil(since time.Time) time.Time {
	if _, connected := s.content.CompleteAt(); !connected {
		return time.Time{}
	}
	return since.Add(s.group.cfg.HoldTime)
}

// awaitAdditions tells the content which additions wait, or were dropped. It must be called before the content changes in any
// other way after a decision.
func (s *Set) awaitAdditions() {
	if len(s.byName)+len(s.awaited) == 0 {
		return
	}
	var begun, ended []string
	before := len(s.awaited)
	for name, change := range s.byName {
		if s.adds(name, change) && !has(s.awaited, name) {
			begun = append(begun, name)
		}
	}
	for name := range s.awaited {
		switch change, waits := s.byName[name]; {
		case s.content.Get(name) != nil:
			delete(s.awaited, name) // it was applied
		case !waits || !s.adds(name, change):
			delete(s.awaited, name)
			ended = append(ended, name)
		}
	}
	if len(begun) == 0 && len(s.awaited) == before {
		return
	}
	for _, name := range begun {
		put(&s.awaited, name, struct{}{})
	}
	s.content.Await(begun, ended)
}
