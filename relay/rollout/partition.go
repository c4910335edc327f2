package rollout

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/partition"
	"github.com/xdstender/tender/cache/wire"
	"github.com/xdstender/tender/cache/wire/schema"
	"github.com/xdstender/tender/pending"
	"github.com/xdstender/tender/upstream/reconcile"
)

// A resourceName identifies a resource over all node groups.
type resourceName struct{ typeURL, name string }

// nameOf returns the resource that a name of a type or collection stands for.
func nameOf(key, name string) resourceName {
	typeURL, _, _ := cache.SplitCollection(key)
	base, _ := wire.SplitParameters(name)
	return resourceName{typeURL, base}
}

// String returns the name of a part that is named after the resource.
func (n resourceName) String() string {
	if short, known := schema.ShortName(n.typeURL); known {
		return short + "/" + n.name
	}
	return n.typeURL[strings.LastIndexAny(n.typeURL, "./")+1:] + "/" + n.name
}

// compare orders resources by how well they stand for a part: those first that others do not refer to. A Secret is the last, whose
// name others may not know: it stands for a part that has nothing else.
func (n resourceName) compare(o resourceName) int {
	if secret := wire.IsSecret(n.typeURL); secret != wire.IsSecret(o.typeURL) {
		if secret {
			return 1
		}
		return -1
	}
	return cmp.Or(len(schema.ReferrersOf(n.typeURL))-len(schema.ReferrersOf(o.typeURL)),
		wire.CompareTypes(o.typeURL, n.typeURL), cmp.Compare(n.name, o.name))
}

// A component is a connected part of the graph of references among pending changes, and the names that parts have.
type component struct {
	first resourceName // the one that stands for it
	waits map[*Section]pending.Names
	parts []*part // that have names of it

	bundled int // number of components that it has because of maxOpenParts; zero if it is only one
}

// A graph connects the pending changes of all node groups.
type graph struct {
	partition.Partition[resourceName]
}

// partition returns the components of the pending changes of sections, in a fixed order. Components without a pending
// change are left out.
func (c *Controller) partition(ctx context.Context, sections []*Section) []*component {
	g := new(graph)
	nodes := make(map[*Section][]pending.Node)
	contents := make(map[wire.Digest]bool)
	large := make(map[string]int) // a node of a large removal by type
	var resources []nodeContent
	for _, s := range sections {
		s.control.Edit(ctx, func(l *pending.List) { nodes[s] = l.Nodes(s.allEditions()) })
		for _, n := range nodes[s] {
			id := nameOf(n.Key, n.Name)
			at := g.Add(id)
			for _, r := range n.Contents {
				if !contents[r.Digest] {
					contents[r.Digest] = true
					resources = append(resources, nodeContent{at, r})
				}
			}
			if !n.Large {
				continue
			}
			if first, known := large[id.typeURL]; known {
				g.Join(at, first)
			}
			large[id.typeURL] = at
		}
	}
	g.joinReferences(resources)
	g.joinKeys(resources)
	g.joinWholes()
	return c.components(g, nodes)
}

// A nodeContent is a resource of a node.
type nodeContent struct {
	node int
	*wire.Resource
}

// joinReferences connects resources with those to which they refer.
func (g *graph) joinReferences(resources []nodeContent) {
	byType := make(map[string][]string) // names by type
	for _, n := range g.Keys() {
		byType[n.typeURL] = append(byType[n.typeURL], n.name)
	}
	referents := make(map[string]*reconcile.Referents) // by type of what refers
	for _, r := range resources {
		to := referredTypes(r.TypeURL, maps.Keys(byType))
		if len(to) == 0 {
			continue
		}
		if referents[r.TypeURL] == nil {
			referents[r.TypeURL] = reconcile.NewReferents(func(yield func(string) bool) {
				for _, typeURL := range to {
					for _, name := range byType[typeURL] {
						if !yield(name) {
							return
						}
					}
				}
			})
		}
		referents[r.TypeURL].In(r.Value(), func(name string) {
			for _, typeURL := range to {
				if at, known := g.Find(resourceName{typeURL, name}); known {
					g.Join(r.node, at)
				}
			}
		})
	}
}

// referredTypes returns those of some types to which resources of a type may refer. Resources of an unknown type may
// refer to all, and all may refer to them.
func referredTypes(typeURL string, all func(func(string) bool)) (to []string) {
	known := func(typeURL string) bool {
		t, _ := schema.TypeOf(typeURL)
		return t.URL != ""
	}
	of, _ := schema.TypeOf(typeURL)
	for other := range all {
		if slices.Contains(of.RefersTo, other) || !known(other) || !known(typeURL) {
			to = append(to, other)
		}
	}
	return to
}

// joinKeys connects resources that exclude one another, such as listeners on one address.
func (g *graph) joinKeys(resources []nodeContent) {
	type key struct{ typeURL, key string }
	first := make(map[key]int)
	for _, r := range resources {
		if !wire.HasKeys(r.TypeURL) {
			continue
		}
		for _, text := range r.Keys() {
			k := key{r.TypeURL, text}
			if at, known := first[k]; known {
				g.Join(r.node, at)
			}
			first[k] = r.node
		}
	}
}

// joinWholes connects parts, such as virtual hosts, with the resources in whose names they are.
func (g *graph) joinWholes() {
	for at, n := range g.Keys() {
		of, _ := schema.TypeOf(n.typeURL)
		if of.Within == "" {
			continue
		}
		for i, char := range n.name {
			whole, known := g.Find(resourceName{of.Within, n.name[:i]})
			if char == '/' && known {
				g.Join(at, whole)
			}
		}
	}
}

// components returns the components of a graph that have a pending change.
func (c *Controller) components(g *graph, nodes map[*Section][]pending.Node) (all []*component) {
	byRoot := make(map[int]*component)
	owner := c.owners()
	for _, s := range slices.SortedFunc(maps.Keys(nodes), (*Section).compare) {
		for _, n := range nodes[s] {
			id := nameOf(n.Key, n.Name)
			root := g.Root(g.Add(id))
			of := byRoot[root]
			if of == nil {
				of = &component{first: id, waits: make(map[*Section]pending.Names)}
				byRoot[root] = of
			}
			if id.compare(of.first) < 0 {
				of.first = id
			}
			for _, p := range owner[id] {
				if !slices.Contains(of.parts, p) {
					of.parts = append(of.parts, p)
				}
			}
			if n.Waits {
				of.add(s, n.Key, n.Name)
			}
		}
	}
	for _, of := range byRoot {
		if len(of.waits) > 0 {
			all = append(all, of)
		}
	}
	slices.SortFunc(all, func(a, b *component) int { return a.first.compare(b.first) })
	return all
}

// owners returns the parts whose editions have a resource.
func (c *Controller) owners() map[resourceName][]*part {
	owner := make(map[resourceName][]*part)
	for _, s := range c.tracker.joined() {
		for _, p := range c.parts {
			for _, e := range s.of[p].all() {
				for key, names := range e.Changes {
					for name := range names {
						if id := nameOf(key, name); !slices.Contains(owner[id], p) {
							owner[id] = append(owner[id], p)
						}
					}
				}
			}
		}
	}
	return owner
}

// add adds a pending change to a component.
func (of *component) add(s *Section, key, name string) {
	if of.waits[s] == nil {
		of.waits[s] = make(pending.Names)
	}
	of.waits[s].Add(key, name)
}

// join returns the sum of components.
func join(all []*component) *component {
	sum := &component{waits: make(map[*Section]pending.Names)}
	for i, of := range all {
		if i == 0 {
			sum.first = of.first
		}
		sum.merge(of)
	}
	return sum
}

// merge adds the pending changes and the parts of another component.
func (of *component) merge(other *component) {
	for s, keys := range other.waits {
		for key, names := range keys {
			for name := range names {
				of.add(s, key, name)
			}
		}
	}
	for _, p := range other.parts {
		if !slices.Contains(of.parts, p) {
			of.parts = append(of.parts, p)
		}
	}
	if other.first.compare(of.first) < 0 {
		of.first = other.first
	}
}

// blocks returns the name of a part that has to end before the component is an edition of p; empty without one.
func (of *component) blocks(p *part) string {
	for _, other := range of.parts {
		if phase := other.machine.phase; other != p && phase != Current && phase != Gathering {
			return other.edition.name
		}
	}
	return ""
}

// joinByParts returns components of which no two have names of the same part, in the order of their first ones: what changes
// of a part is in its next edition.
func joinByParts(all []*component) (joined []*component) {
	of := make(map[*part]*component)
	for _, next := range all {
		sum := next
		for _, p := range next.parts {
			if known := of[p]; known != nil && known != sum {
				joined = slices.DeleteFunc(joined, func(other *component) bool { return other == sum })
				known.merge(sum)
				sum = known
			}
			for _, p := range sum.parts {
				of[p] = sum
			}
		}
		if sum == next {
			joined = append(joined, sum)
		}
	}
	return joined
}

// exceeds reports whether a component has a pending change of a resource that no edition of open parts changes.
func (of *component) exceeds(open []*part) bool {
	for s, keys := range of.waits {
		for key, names := range keys {
			for name := range names {
				if !slices.ContainsFunc(open, func(p *part) bool {
					e := s.edition(p, p.machine.edition)
					return e != nil && changesResource(e, pending.Difference{Key: key, Name: name})
				}) {
					return true
				}
			}
		}
	}
	return false
}
