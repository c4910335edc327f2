package reconcile

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// recheckEvery is how often held changes are checked again although no response has changed what they name:
// resources may also leave because no client needs them any more.
const recheckEvery = time.Second

// Facts are what the bytes of a resource say about its use by clients.
type Facts struct {
	// Undecodable is why the bytes are no message of their type; empty if they are one.
	Undecodable string

	// Clusters yields the names of the clusters that have to exist for the resource to work. Nil yields none.
	Clusters iter.Seq[string]

	// OnDemand reports that clients fetch clusters when a request needs them: no cluster has to exist before.
	OnDemand bool
}

// A Checker returns the facts of a resource, which has content. It may be called from any goroutine, and does no I/O.
type Checker func(*wire.Resource) Facts

// clusterUsers are the types of resources that may name clusters.
var clusterUsers = []string{wire.ListenerType, wire.RouteType, wire.VirtualHostType, wire.ExtensionConfigType}

// A usage is what the resources of a group say about clusters.
type usage struct {
	asOf
	named    names // clusters that a resource names
	onDemand bool  // clients fetch clusters when a request needs them
}

// An asOf says until when something that was derived from the resources of a group holds.
type asOf struct {
	changes int // of the group
	until   time.Time
}

// current reports whether the derived value is still valid.
func (a asOf) current(g *Group, now time.Time) bool {
	return a.changes == g.changes && now.Before(a.until)
}

// asOf returns the validity of a value that is derived now.
func (g *Group) asOf(now time.Time) asOf { return asOf{g.changes, now.Add(recheckEvery)} }

// clusterUsage returns the clusters that the resources of a group name.
func (g *Group) clusterUsage(now time.Time) *usage {
	if g.usage.current(g, now) {
		return &g.usage
	}
	g.usage = usage{asOf: g.asOf(now), named: make(names)}
	for _, typeURL := range clusterUsers {
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

// statesClusters reports whether the origin states the set of clusters, and at least one. Otherwise clients get their
// clusters from another source.
func (g *Group) statesClusters() bool {
	for s := range g.sets[wire.ClusterType] {
		if (s.whole == wire.Wildcard || g.cfg.Whole) && s.content.Count() > 0 {
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

// checkable reports whether a resource, nil if there is none, has content to check.
func checkable(r *wire.Resource) bool {
	return r != nil && r.HasBody() && r.Refusal == nil && !r.ContentDropped()
}

// breaks returns why clients cannot use an update of a resource. It returns an empty string if they can, or if the
// served resource has the same defect.
func (l look) breaks(update, served *wire.Resource) (why string) {
	if !checkable(served) {
		return ""
	}
	g := l.set.group
	is, was := g.cfg.Check(update), g.cfg.Check(served)
	switch {
	case was.Undecodable != "":
		return ""
	case is.Undecodable != "":
		return is.Undecodable
	case is.Clusters == nil || is.OnDemand || !g.statesClusters():
		return ""
	}
	var before names // that the served resource has
	for name := range is.Clusters {
		if g.hasCluster(name) {
			continue
		}
		if before == nil {
			before = make(names)
			addNames(before, was.Clusters)
		}
		if _, is := before[name]; !is && !g.clusterUsage(l.now).onDemand {
			return fmt.Sprintf("names cluster %.256q, which does not exist", name)
		}
	}
	return ""
}

// addNames adds names to a set. Nil yields none.
func addNames(to names, all iter.Seq[string]) {
	if all == nil {
		return
	}
	for name := range all {
		to[name] = struct{}{}
	}
}

// breaksByRemoval returns why clients need a resource that is to be removed; empty if they do not.
func (l look) breaksByRemoval(name string) (why string) {
	if l.set.TypeURL != wire.ClusterType {
		return ""
	}
	u := l.set.group.clusterUsage(l.now)
	if _, named := u.named[name]; !named || u.onDemand {
		return ""
	}
	return "resources that are served name it"
}

// withhold returns an update without the changes that break clients, and records these (B.46).
func (l look) withhold(u wire.Update) wire.Update {
	s := l.set
	if s.group.cfg.Check == nil {
		return u
	}
	before := s.count(breaking)
	u.Resources = without(u.Resources, l.withholdsUpdate)
	u.Removed = without(u.Removed, func(name string) bool { return l.withholdsRemoval(name, nil) })
	u.Errors = without(u.Errors, func(e *wire.ResourceError) bool {
		return e.NotFound() && e.Constraints == nil && l.withholdsRemoval(e.Name, e)
	})
	if s.count(breaking) > before {
		s.brokenAlarmAt = l.now.Add(alarmEvery)
		s.group.cfg.Logger.LogAttrs(context.Background(), slog.LevelError, "changes held: clients could not use the result", s.breakingAttrs(s.TypeURL)...)
	}
	return u
}

// withholdsUpdate reports whether an update of a resource has to wait, and records it then. Where nothing is served
// yet, there is nothing to keep.
func (l look) withholdsUpdate(update *wire.Resource) bool {
	s := l.set
	served := s.content.Get(update.Name)
	if !checkable(update) || served == nil || served.SameContent(update) {
		return false
	}
	old := s.byName[update.Name]
	repeated := old.holdsUpdate(update)
	if repeated && old.state == kept {
		return true // an operator's decision
	}
	why := l.breaks(update, served)
	switch {
	case why != "":
		l.holdBreaking(update.Name, removal{replacement: update, breakReason: why}, repeated)
	case repeated:
		delete(s.byName, update.Name)
	}
	return why != ""
}

// withholdsRemoval is withholdsUpdate for the removal of a resource. The reason is the origin's; nil if it gave none.
func (l look) withholdsRemoval(name string, reason *wire.ResourceError) bool {
	s := l.set
	if s.content.Get(name) == nil {
		return false
	}
	why := l.breaksByRemoval(name)
	if why != "" {
		old := s.byName[name]
		l.holdBreaking(name, removal{breakReason: why, reason: reason}, old.breakReason != "" && old.replacement == nil)
	}
	return why != ""
}

// holdBreaking records a change that is held since it would break clients. Repeated says that the origin has stated it
// before.
func (l look) holdBreaking(name string, as removal, repeated bool) {
	s := l.set
	if repeated && s.byName[name].state == breaking {
		return
	}
	as.state, as.stated, as.at = breaking, true, l.now
	s.record(name, as)
	s.group.listed = -1
}

// releaseUsable distributes the held changes that clients can use now, and reports whether there were any.
func (s *Set) releaseUsable(now time.Time) (mended bool) {
	if s.count(breaking) == 0 || s.checkedAsOf.current(s.group, now) {
		return false
	}
	var u wire.Update
	l := s.look(now)
	s.takeOut(&u, func(name string, as removal) bool {
		switch {
		case as.state != breaking:
			return false
		case as.replacement == nil:
			return l.breaksByRemoval(name) == ""
		default:
			return l.breaks(as.replacement, s.content.Get(name)) == ""
		}
	})
	n := len(u.Resources) + len(u.Removed)
	if n > 0 {
		s.apply(u)
		s.group.cfg.Logger.Info("held changes distributed: clients can use the result now",
			slog.String("type_url", s.TypeURL), slog.Int("changes", n))
	}
	s.checkedAsOf = s.group.asOf(now)
	return n > 0
}

// withheldForeign returns the foreign names whose update is held, so that the served content is that of a previous
// origin.
func (s *Set) withheldForeign() (all names) {
	for name, as := range s.byName {
		if _, is := s.foreign[name]; is && as.breakReason != "" {
			put(&all, name, struct{}{})
		}
	}
	return all
}
