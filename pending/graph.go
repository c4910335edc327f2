package pending

import (
	"github.com/xdstender/tender/cache"
	"github.com/xdstender/tender/cache/wire"
)

// A Node is a name that waits for stages, or that an edition changes, with what tells which others it belongs to.
type Node struct {
	Key, Name string
	Waits     bool // its newest state waits for stages

	// Large reports whether the newest state is a removal, and all that wait of the type or collection are large
	// ([cache.LargeRemoval]).
	Large bool

	// Contents are the resources that the rest is served, that are newest and that the edition has, without duplicates.
	Contents []*wire.Resource
}

// Nodes returns the names that wait for stages, and those that editions change.
func (l *List) Nodes(of []*Edition) (all []Node) {
	index := make(map[resourceID]int)
	node := func(id resourceID) *Node {
		at, known := index[id]
		if !known {
			at = len(all)
			index[id], all = at, append(all, Node{Key: id.key, Name: id.name})
			all[at].add(l.shown(l.rest(), id))
		}
		return &all[at]
	}
	for id := range l.stagedNames() {
		n, newest := node(id), l.newest(id)
		n.Waits = true
		n.add(newest)
	}
	l.markLarge(all)
	for _, e := range of {
		for key, names := range e.Changes {
			for name := range names {
				id := resourceID{key, name}
				if n := node(id); e.name(id) != nil {
					n.add(e.name(id).is)
				}
			}
		}
	}
	return all
}

// add adds the resources of states to the contents of a node.
func (n *Node) add(of states) {
	for kind := range of {
		r := of[kind].Resource
		known := r == nil
		for _, have := range n.Contents {
			known = known || have.SameContent(r)
		}
		if !known {
			n.Contents = append(n.Contents, r)
		}
	}
}

// markLarge sets Large of nodes, which are of all names that wait.
func (l *List) markLarge(all []Node) {
	removed, added := make(map[string]int), make(map[string]int)
	for i := range all {
		id := resourceID{all[i].Key, all[i].Name}
		was, newest := l.shown(l.rest(), id), l.newest(id)
		switch existed, exists := was.last() != nil, newest.last() != nil; {
		case existed && !exists:
			all[i].Large = true // until all are counted
			removed[id.key]++
		case !existed && exists:
			added[id.key]++
		}
	}
	for i := range all {
		n := &all[i]
		n.Large = n.Large && l.isLarge(n.Key, removed[n.Key], added[n.Key])
	}
}

// isLarge reports whether so many removals from a type or collection are large.
func (l *List) isLarge(key string, removed, added int) bool {
	t := l.w.Generation().Type(key)
	size := max(t.Wildcard.Count(), t.ByName.Count())
	return cache.LargeRemoval(setKey{key: key}.typeURL(), removed, size, added)
}
