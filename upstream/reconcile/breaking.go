package reconcile

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
)

// recheckInterval is the interval at which held changes are checked again if no response changes what they refer to. A
// resource may also leave the cache because no client subscribes to it.
const recheckInterval = time.Second

// Facts describe the content of a resource, for the check of changes that break clients.
type Facts struct {
	// Undecodable is why the bytes cannot be decoded as a message of their type; empty if they can.
	Undecodable string

	// Clusters yields the names of the clusters that must exist for the resource to work. Nil yields none.
	Clusters iter.Seq[string]

	// OnDemand reports that clients fetch clusters when a request needs them, so that no cluster must exist before.
	OnDemand bool
}

// A Checker returns the facts of a resource that has content. Any goroutine may call it. It does no I/O.
type Checker func(*wire.Resource) Facts

// A usage is how the resources of a group use clusters.
type usage struct {
	validity
	named    names // clusters that a resource names
	onDemand bool  // clients fetch clusters when a request needs them
}

// A validity is how long a value is valid that was derived from the resources of a group. It ends with their next
// change, at the latest after recheckInterval.
type validity struct {
	changes int // Group.clusterChanges when the value was derived
	until   time.Time
}

func (v validity) valid(g *Group, now time.Time) bool {
	return v.changes == g.clusterChanges && now.Before(v.until)
}

// validity returns the validity of a value that is derived now.
func (g *Group) validity(now time.Time) validity {
	return validity{g.clusterChanges, now.Add(recheckInterval)}
}

// clusterUsage returns how the resources of the group use clusters.
func (g *Group) clusterUsage(now time.Time) *usage {
	if g.usage.valid(g, now) {
		return &g.usage
	}
	g.usage = usage{validity: g.validity(now), named: make(names)}
	for _, typeURL := range schema.ReferrersOf(wire.ClusterType) {
		for s := range g.sets[typeURL] {
			for name := range s.content.Names() {
				if r := s.content.Get(name); checkable(r) {
					g.usage.add(g.cfg.Check(r))
				}
			}
		}
	}
	return &g.usage
}

func (u *usage) add(facts Facts) {
	u.onDemand = u.onDemand || facts.OnDemand
	addNames(u.named, facts.Clusters)
}

// statesClusters reports whether the origin states the whole set of clusters, with at least one. Otherwise clients get
// their clusters from another source.
func (g *Group) statesClusters() bool {
	for s := range g.sets[wire.ClusterType] {
		if (s.pattern == wire.Wildcard || g.cfg.AllResources) && s.content.Count() > 0 {
			return true
		}
	}
	return false
}

// hasCluster reports whether the origin has stated a cluster.
func (g *Group) hasCluster(name string) bool {
	for s := range g.sets[wire.ClusterType] {
		if s.content.Get(name) != nil {
			return true
		}
	}
	return false
}

// checkable reports whether a resource has content to check. r may be nil.
func checkable(r *wire.Resource) bool {
	return r != nil && r.HasBody() && r.Refusal == nil && !r.ContentDropped()
}

// statesContent reports whether a resource is more than a heartbeat.
func statesContent(r *wire.Resource) bool { return r.HasBody() || r.Refusal != nil }

// updateBreaks returns why an update of a resource would break clients. It returns an empty string if it would not, or
// if the served resource has the same defect.
func (f *filter) updateBreaks(update, served *wire.Resource) (reason string) {
	if !checkable(served) {
		return ""
	}
	g := f.set.group
	facts, servedFacts := g.cfg.Check(update), g.cfg.Check(served)
	switch {
	case servedFacts.Undecodable != "":
		return ""
	case facts.Undecodable != "":
		return facts.Undecodable
	case facts.Clusters == nil || facts.OnDemand || !g.statesClusters():
		return ""
	}
	var servedClusters names // computed for the first missing cluster
	for name := range facts.Clusters {
		if g.hasCluster(name) {
			continue
		}
		if servedClusters == nil {
			servedClusters = make(names)
			addNames(servedClusters, servedFacts.Clusters)
		}
		if _, ok := servedClusters[name]; !ok && !g.clusterUsage(f.now).onDemand {
			return fmt.Sprintf("names cluster %.256q, which does not exist", name)
		}
	}
	return ""
}

// addNames adds names to a set. A nil sequence has no names.
func addNames(to names, all iter.Seq[string]) {
	if all == nil {
		return
	}
	for name := range all {
		to[name] = struct{}{}
	}
}

// removalBreaks returns why the removal of a resource would break clients; empty if it would not.
func (f *filter) removalBreaks(name string) (reason string) {
	if !isChecked(f.set.TypeURL) {
		return ""
	}
	u := f.set.group.clusterUsage(f.now)
	if _, named := u.named[name]; !named || u.onDemand {
		return ""
	}
	return "served resources name it"
}

// holdBreaking returns an update without the changes that would break clients, and records these as held (B.46).
func (f *filter) holdBreaking(u wire.Update) wire.Update {
	s := f.set
	if s.group.cfg.Check == nil {
		return u
	}
	before := s.count(breaking)
	u.Resources = without(u.Resources, f.holdsUpdate)
	u.Removed = without(u.Removed, func(name string) bool { return f.holdsRemoval(name, nil) })
	u.Errors = without(u.Errors, func(e *wire.ResourceError) bool {
		return e.NotFound() && e.Constraints == nil && f.holdsRemoval(e.Name, e)
	})
	if s.count(breaking) > before {
		s.breakingAlarm.start(f.now)
		s.group.cfg.Logger.LogAttrs(context.Background(), slog.LevelError,
			"changes held: they would break clients", s.heldAttrs(breaking)...)
	}
	return u
}

// holdsUpdate reports whether an update of a resource must be held, and then records it. The first version of a
// resource is never held, because there is no earlier one to serve.
func (f *filter) holdsUpdate(update *wire.Resource) bool {
	s := f.set
	served := s.content.Get(update.Name)
	if !checkable(update) || served == nil || served.SameContent(update) {
		return false
	}
	old := s.byName[update.Name]
	repeated := old.state != grown && old.holds(update)
	if repeated && old.state == dropped {
		return true
	}
	reason := f.updateBreaks(update, served)
	switch {
	case reason != "":
		f.recordBreaking(update.Name, removal{replacement: update, detail: reason}, repeated)
	case repeated:
		delete(s.byName, update.Name)
	}
	return reason != ""
}

// holdsRemoval reports whether the removal of a resource must be held, and then records it. The error is the one with
// which the origin stated the removal; nil without one.
func (f *filter) holdsRemoval(name string, originError *wire.ResourceError) bool {
	s := f.set
	if s.content.Get(name) == nil {
		return false
	}
	reason := f.removalBreaks(name)
	if reason != "" {
		old := s.byName[name]
		repeated := old.detail != "" && old.replacement == nil
		f.recordBreaking(name, removal{detail: reason, originError: originError}, repeated)
	}
	return reason != ""
}

// recordBreaking records a change that would break clients as held. repeated means that the origin has stated it
// before.
func (f *filter) recordBreaking(name string, change removal, repeated bool) {
	s := f.set
	if repeated && s.byName[name].state == breaking {
		return
	}
	change.state, change.explicit = breaking, true
	change.since, change.cause = f.waitsSince(name)
	s.record(name, change)
}

// heldForeign returns the foreign names whose update is held, so that clients still receive the content of a previous
// origin.
func (s *Set) heldForeign() (all names) {
	for name, change := range s.byName {
		if _, ok := s.foreign[name]; ok && change.detail != "" {
			put(&all, name, struct{}{})
		}
	}
	for name := range s.waiting {
		if _, ok := s.foreign[name]; ok {
			put(&all, name, struct{}{})
		}
	}
	return all
}
