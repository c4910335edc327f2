package cache

// fanout is the number of children of a table's node. At 64, a million names are
// four loads away, and a change copies about 2 KiB.
const (
	fanoutBits = 6
	fanout     = 1 << fanoutBits
)

// A table maps the ids of names to entries. It is persistent: set returns a new
// table that shares all but the changed path with the old one, so every generation has
// its own table at the cost of its changes.
type table struct {
	root  *node
	depth int // levels below the root
}

type node struct {
	owner    *txn            // the edit that made the node and may still write to it
	children *[fanout]*node  // above the leaves
	entries  *[fanout]*Entry // in a leaf
}

// An txn is one series of changes to a table. Nodes that it made itself are
// changed in place, so that a response with many resources copies each node once.
// It must not be used after a reader has got the table. It is not empty: two
// edits must have two addresses.
type txn struct {
	noting bool
	noted  []*Name // that were put or dropped, if noting; some more than once
}

func (e *txn) note(n *Name) {
	if e.noting {
		e.noted = append(e.noted, n)
	}
}

func (t table) get(id uint32) *Entry {
	if t.root == nil || id>>(fanoutBits*(t.depth+1)) != 0 {
		return nil
	}
	n := t.root
	for level := t.depth; level > 0; level-- {
		if n = n.children[id>>(fanoutBits*level)&(fanout-1)]; n == nil {
			return nil
		}
	}
	return n.entries[id&(fanout-1)]
}

func (t table) set(by *txn, id uint32, e *Entry) table {
	if t.root == nil {
		t.root = &node{owner: by, entries: new([fanout]*Entry)}
	}
	for id>>(fanoutBits*(t.depth+1)) != 0 {
		grown := &node{owner: by, children: new([fanout]*node)}
		grown.children[0] = t.root
		t.root, t.depth = grown, t.depth+1
	}
	t.root = t.root.set(by, t.depth, id, e)
	return t
}

func (n *node) set(by *txn, level int, id uint32, e *Entry) *node {
	n = n.writable(by, level)
	at := id >> (fanoutBits * level) & (fanout - 1)
	if level == 0 {
		n.entries[at] = e
		return n
	}
	n.children[at] = n.children[at].set(by, level-1, id, e)
	return n
}

// writable returns the node itself if by made it, else a copy that by owns.
func (n *node) writable(by *txn, level int) *node {
	if n != nil && n.owner == by {
		return n
	}
	c := &node{owner: by}
	if level == 0 {
		c.entries = new([fanout]*Entry)
		if n != nil {
			*c.entries = *n.entries
		}
		return c
	}
	c.children = new([fanout]*node)
	if n != nil {
		*c.children = *n.children
	}
	return c
}
