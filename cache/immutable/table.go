package immutable

import "iter"

// fanout is the number of children of a node. At 64, a lookup among a million ids is four loads, and a change copies
// about 2 KiB.
const (
	fanoutBits = 6
	fanout     = 1 << fanoutBits
)

// A Table maps ids to values. Set returns a new table that shares all but the changed path with the old one. The zero
// value is empty.
type Table[E any] struct {
	root  *node[E]
	depth int // levels below the root
}

type node[E any] struct {
	owner    *Edit             // the edit that made the node and may still write to it
	children *[fanout]*node[E] // above the leaves
	entries  *[fanout]*E       // in a leaf
}

// An Edit is one series of changes to tables. It writes in place to the nodes that it made itself, so that a series
// of changes copies each node once. It must not be used after a reader has got a table that it made.
type Edit struct {
	_ byte // two edits must have two addresses
}

// Empty reports whether nothing was ever stored in the table.
func (t Table[E]) Empty() bool { return t.root == nil }

// Get returns the value of an id, nil if there is none.
func (t Table[E]) Get(id uint32) *E {
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

// Set returns the table with another value for an id; nil removes it.
func (t Table[E]) Set(by *Edit, id uint32, e *E) Table[E] {
	if t.root == nil {
		t.root = &node[E]{owner: by, entries: new([fanout]*E)}
	}
	for id>>(fanoutBits*(t.depth+1)) != 0 {
		grown := &node[E]{owner: by, children: new([fanout]*node[E])}
		grown.children[0] = t.root
		t.root, t.depth = grown, t.depth+1
	}
	t.root = t.root.set(by, t.depth, id, e)
	return t
}

func (n *node[E]) set(by *Edit, level int, id uint32, e *E) *node[E] {
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
func (n *node[E]) writable(by *Edit, level int) *node[E] {
	if n != nil && n.owner == by {
		return n
	}
	c := &node[E]{owner: by}
	if level == 0 {
		c.entries = new([fanout]*E)
		if n != nil {
			*c.entries = *n.entries
		}
		return c
	}
	c.children = new([fanout]*node[E])
	if n != nil {
		*c.children = *n.children
	}
	return c
}

// All yields the ids that have a value, in order, with their values.
func (t Table[E]) All() iter.Seq2[uint32, *E] {
	return func(yield func(uint32, *E) bool) {
		if t.root != nil {
			t.root.all(t.depth, 0, yield)
		}
	}
}

// all yields the values below a node whose ids begin with prefix, and reports whether to continue.
func (n *node[E]) all(level int, prefix uint32, yield func(uint32, *E) bool) bool {
	for at := range uint32(fanout) {
		id := prefix<<fanoutBits | at
		switch {
		case level == 0 && n.entries[at] != nil:
			if !yield(id, n.entries[at]) {
				return false
			}
		case level > 0 && n.children[at] != nil:
			if !n.children[at].all(level-1, id, yield) {
				return false
			}
		}
	}
	return true
}

// Differences yields the values that differ between two tables, in pairs of the same id; one of a pair may be nil. It
// skips nodes that the tables share, so between two versions of a table it takes as long as there are changes.
func (t Table[E]) Differences(o Table[E]) iter.Seq2[*E, *E] {
	return func(yield func(*E, *E) bool) {
		a, b := t.raised(o.depth), o.raised(t.depth)
		differences(a.root, b.root, a.depth, yield)
	}
}

// raised returns the table with at least depth levels below its root.
func (t Table[E]) raised(depth int) Table[E] {
	for ; t.root != nil && t.depth < depth; t.depth++ {
		above := &node[E]{children: new([fanout]*node[E])}
		above.children[0] = t.root
		t.root = above
	}
	t.depth = max(t.depth, depth)
	return t
}

// differences is Differences of two nodes at a level, either of which may be nil. It reports whether to continue.
func differences[E any](a, b *node[E], level int, yield func(*E, *E) bool) bool {
	if a == b {
		return true
	}
	for i := range fanout {
		if level > 0 {
			if !differences(a.child(i), b.child(i), level-1, yield) {
				return false
			}
			continue
		}
		if before, after := a.entry(i), b.entry(i); before != after && !yield(before, after) {
			return false
		}
	}
	return true
}

// child returns a child of a node, which may be nil.
func (n *node[E]) child(i int) *node[E] {
	if n == nil {
		return nil
	}
	return n.children[i]
}

// entry returns an entry of a leaf, which may be nil.
func (n *node[E]) entry(i int) *E {
	if n == nil {
		return nil
	}
	return n.entries[i]
}
