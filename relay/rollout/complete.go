package rollout

import (
	"maps"
	"slices"

	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream/reconcile"
)

// targets are names to which resources may refer, by type URL.
type targets map[string]*reconcile.Referents

// newTargets returns names as targets.
func newTargets[T any](names map[resourceName]T) targets {
	byType := make(map[string][]string)
	for n := range names {
		byType[n.typeURL] = append(byType[n.typeURL], n.name)
	}
	all := make(targets)
	for typeURL, of := range byType {
		all[typeURL] = reconcile.NewReferents(slices.Values(of))
	}
	return all
}

// in returns the targets to which resources refer.
func (t targets) in(resources ...*wire.Resource) map[resourceName]struct{} {
	found := make(map[resourceName]struct{})
	for _, r := range resources {
		if r == nil {
			continue
		}
		for _, typeURL := range referredTypes(r.TypeURL, maps.Keys(t)) {
			t[typeURL].In(r.Value(), func(name string) { found[resourceName{typeURL, name}] = struct{}{} })
		}
	}
	return found
}

// newIn yields the targets to which some resources refer, and others do not.
func (t targets) newIn(resources, others []*wire.Resource, found func(resourceName)) {
	if len(t) == 0 {
		return
	}
	before := t.in(others...)
	for n := range t.in(resources...) {
		if _, known := before[n]; !known {
			found(n)
		}
	}
}

// markCompleted finds the open parts that pending changes, which no edition of these has, complete: such a change ends the
// reference to a resource that an edition removes, or adds one to which an edition begins to refer. The editions alone would leave
// clients without the resource.
func (c *Controller) markCompleted(nodes map[*Section][]pending.Node) {
	removed, owned := make(map[resourceName][]*part), make(map[resourceName]struct{})
	var open []*part
	for _, p := range c.parts {
		if p.completed = false; !p.machine.phase.hasEdition() {
			continue
		}
		open = append(open, p)
		for _, types := range c.changesOf(p, p.machine.edition) {
			for key, names := range types {
				for name, content := range names {
					id := nameOf(key, name)
					if owned[id] = struct{}{}; content == (wire.Digest{}) {
						removed[id] = append(removed[id], p)
					}
				}
			}
		}
	}
	added, gone := make(map[resourceName]struct{}), newTargets(removed)
	for _, of := range nodes {
		for _, n := range of {
			id := nameOf(n.Key, n.Name)
			if _, known := owned[id]; known || !n.Waits {
				continue
			}
			if n.Served == 0 {
				added[id] = struct{}{}
			}
			gone.newIn(n.Contents[:n.Served], n.Newest, func(n resourceName) {
				for _, p := range removed[n] {
					p.completed = true
				}
			})
		}
	}
	c.markNeeding(open, newTargets(added))
}

// markNeeding finds the parts whose editions begin to refer to added resources.
func (c *Controller) markNeeding(open []*part, added targets) {
	for _, s := range c.tracker.joined() {
		for _, p := range open {
			e := s.edition(p, p.machine.edition)
			if e == nil || p.completed || len(added) == 0 {
				continue
			}
			for d := range e.Diff() {
				added.newIn([]*wire.Resource{d.Is}, []*wire.Resource{d.Was}, func(resourceName) { p.completed = true })
			}
		}
	}
}
