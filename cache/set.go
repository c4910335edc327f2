package cache

import (
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

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

// A Set is one of a type's two sets: its entries, and the log of the order in which they last changed. A name that
// changes again moves to the log's end, so reading the changes since a position costs the number of changes and not
// of resources.
type Set struct {
	table    table
	log      []logged // by seq; entries that changed again are dead
	renewals []logged // by seq; of renewed times to live
	totals

	aliased  bool // some resource was received under an alias
	limited  bool // some resource was to expire
	unsteady bool // some entry came to count otherwise without a change that readers are sent

	system      string // system_version_info of the last response
	last        Seq    // of the newest change
	lastRemoval Seq    // of the newest removal
	floor       Seq    // of the newest removal that the set no longer remembers

	renewed Seq // of the newest renewal

	contentDroppedAt time.Time // when content was last dropped

	setHistory
}

// totals are derived from the entries of a set.
type totals struct {
	live           int   // entries in table, absent ones included
	count          int   // resources present
	bytes          int64 // of these
	ttls           int   // of these, those that expire
	contentDropped int   // of these, those whose content was dropped
	sum            Sum   // of the resources present
}

type logged struct {
	name *Name
	seq  Seq
}

// Get returns the set's entry for a name, nil if there is none.
func (s *Set) Get(n *Name) *Entry {
	if e := s.table.get(n.id); e != nil && e.Name == n {
		return e
	}
	return nil
}

// Since returns the entries that changed after p, oldest change first.
func (s *Set) Since(p Seq) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		for _, l := range s.log[s.after(p):] {
			if e := s.at(l); e != nil && !yield(e) {
				return
			}
		}
	}
}

// RenewedSince returns the entries whose time to live was renewed after p, oldest
// renewal first.
func (s *Set) RenewedSince(p Seq) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) {
		if s.renewed <= p {
			return
		}
		at := sort.Search(len(s.renewals), func(i int) bool { return s.renewals[i].seq > p })
		for _, l := range s.renewals[at:] {
			if e := s.Get(l.name); e != nil && e.Renewed() == l.seq && !yield(e) {
				return
			}
		}
	}
}

// ChangedSince returns at most how many entries changed after p.
func (s *Set) ChangedSince(p Seq) int { return len(s.log) - s.after(p) }

// Count returns the number of resources present.
func (s *Set) Count() int { return s.count }

// Bytes returns how many bytes the resources present have as they are sent. Views share
// what they hold of equal ones.
func (s *Set) Bytes() int64 { return s.bytes }

// Aliased reports whether the set may hold one resource under several names.
func (s *Set) Aliased() bool { return s.aliased }

// Align returns the newest position at or before p at which something changed.
// Readers at positions that align to the same one have the same to read.
func (s *Set) Align(p Seq) Seq {
	if at := s.after(p); at > 0 {
		return s.log[at-1].seq
	}
	return 0
}

// TTLs returns how many of the resources present expire.
func (s *Set) TTLs() int { return s.ttls }

// Renewed returns the position of the newest renewal of a resource's time to live.
func (s *Set) Renewed() Seq { return s.renewed }

// Limited reports whether any of the resources that the set has ever held was to
// expire: a client may have lost it without a word (C31).
func (s *Set) Limited() bool { return s.limited }

// ContentDropped returns of how many of the resources present the content was dropped.
func (s *Set) ContentDropped() int { return s.contentDropped }

// LastContentDrop returns when the content of a resource was last dropped.
func (s *Set) LastContentDrop() time.Time { return s.contentDroppedAt }

// Sum identifies the content of the resources present.
func (s *Set) Sum() Sum { return s.sum }

// System returns the origin's own version of the set, for people (R091).
func (s *Set) System() string { return s.system }

// Last returns the position of the newest change.
func (s *Set) Last() Seq { return s.last }

// LastRemoval returns the position of the newest removal.
func (s *Set) LastRemoval() Seq { return s.lastRemoval }

// Floor returns the newest removal that the set has forgotten: a reader at an
// earlier position cannot learn from the log what was removed (B.11).
func (s *Set) Floor() Seq { return s.floor }

func (s *Set) after(p Seq) int {
	if s.last <= p {
		return len(s.log)
	}
	return sort.Search(len(s.log), func(i int) bool { return s.log[i].seq > p })
}

// at returns the entry that a place in the log stands for, nil if it is dead.
func (s *Set) at(l logged) *Entry {
	if e := s.Get(l.name); e != nil && e.Seq == l.seq {
		return e
	}
	return nil
}

// put records a changed entry. The log's array is shared with older generations: they
// see only their own length of it, and nobody but the one writer appends.
func (s *Set) put(by *txn, e *Entry) {
	by.note(e.Name)
	old := s.Get(e.Name)
	if e.formerSeq = noSeq; old != nil {
		e.recordPast(old)
		s.recordFormer(old, e)
	}
	s.limited = s.limited || e.Expires()
	s.replace(old, e)
	s.table = s.table.set(by, e.Name.id, e)
	if old == nil || old.Seq != e.Seq {
		s.log = append(s.log, logged{e.Name, e.Seq})
		s.last = e.Seq
		if !e.Present() {
			s.lastRemoval = e.Seq
		}
	}
	if renewed := e.Renewed(); renewed > s.renewed {
		s.renewals = append(s.renewals, logged{e.Name, renewed})
		s.renewed = renewed
	}
}

// recordFormer records in an entry what the sum of the set had of the entry that it replaces.
func (s *Set) recordFormer(old, e *Entry) {
	switch {
	case old.yields:
		return // readers may have seen another one
	case old.Seq != e.Seq:
		e.formerLeaf, e.formerSeq = old.counts(), old.Seq
		return
	}
	e.formerLeaf, e.formerSeq = old.formerLeaf, old.formerSeq
	s.unsteady = s.unsteady || old.counts() != e.counts()
}

// drop forgets an entry. If that was a removal that readers behind it have not
// seen, the caller raises the floor.
func (s *Set) drop(by *txn, e *Entry) {
	by.note(e.Name)
	s.replace(e, nil)
	s.table = s.table.set(by, e.Name.id, nil)
}

// replace counts an entry instead of an older one, either of which may be nil.
func (t *totals) replace(old, e *Entry) {
	t.add(old, -1)
	t.add(e, 1)
	if old.Present() {
		t.sum = t.sum.Sub(old.Leaf)
	}
	if e.Present() {
		t.sum = t.sum.Add(e.Leaf)
	}
}

func (t *totals) add(e *Entry, by int) {
	if e == nil {
		return
	}
	t.live += by
	if !e.Present() {
		return
	}
	t.count += by
	t.bytes += int64(by * e.Resource.Size())
	if e.Expires() {
		t.ttls += by
	}
	if e.Resource.ContentDropped() {
		t.contentDropped += by
	}
}

// compact rewrites the logs of which more than half is dead. Its cost is shared by
// the changes that killed the entries.
func (s *Set) compact() {
	const slack = 64
	if len(s.log) > 2*s.live+slack {
		s.log = s.alive(s.log, func(e *Entry) Seq { return e.Seq })
	}
	if len(s.renewals) > 2*s.live+slack {
		s.renewals = s.alive(s.renewals, (*Entry).Renewed)
	}
}

// alive returns a log without its dead entries, those that stand there again later.
func (s *Set) alive(log []logged, seq func(*Entry) Seq) []logged {
	out := make([]logged, 0, s.live+s.live/2)
	for _, l := range log {
		if e := s.Get(l.name); e != nil && seq(e) == l.seq {
			out = append(out, l)
		}
	}
	return out
}

// A setHistory remembers former states of a set for [RevertMemory].
type setHistory struct {
	recentRemovals []pastRemoval // the newest last
	former         []uint32      // marks of the sums that readers saw before, the newest last
	reverted       time.Time     // when the present sum came back; zero if it is none of the former ones
	revertedAt     Seq           // of the generation with which it came back
}

// Reverted returns the position at which the set of all resources that are present returned to its present content;
// zero if that is longer ago than RevertMemory, or if it never did.
func (s *setHistory) Reverted() Seq {
	if recent(s.reverted).IsZero() {
		return 0
	}
	return s.revertedAt
}

// Showed reports whether readers have seen the set with a version, now or before, as far as that is remembered.
func (s *Set) Showed(version string) bool {
	sum, ok := sumOf(version)
	return ok && (sum == s.sum || slices.Contains(s.former, sum.mark()))
}

// recordSum records that readers saw the set with another sum before the generation at a position.
func (s *setHistory) recordSum(before, now Sum, at Seq) {
	if now == before {
		return
	}
	was, is := before.mark(), now.mark()
	if len(s.former) >= 2*maxFormerSums {
		s.former = slices.Clone(s.former[len(s.former)-maxFormerSums+1:])
	}
	s.former = append(s.former, was) // the array is shared with older generations, as that of the log is
	s.reverted = time.Time{}
	if slices.Contains(s.former[max(len(s.former)-maxFormerSums, 0):], is) {
		s.reverted, s.revertedAt = time.Now(), at
	}
}

// A pastRemoval is a removal from the wildcard set. It outlives the tombstone.
type pastRemoval struct {
	name string
	past *past // of the tombstone
	at   time.Time
}

// remembersRemovals reports whether removals from the wildcard set of a type are remembered: Envoy holds these types by
// wildcard, and may have applied a resource that it never reported.
func remembersRemovals(key string) bool {
	return key == wire.ListenerType || key == wire.ClusterType || key == wire.ScopedRouteType
}

// rememberRemoval records a removal from the wildcard set.
func (s *setHistory) rememberRemoval(tomb *Entry) {
	now := time.Now()
	for len(s.recentRemovals) >= maxRecentRemovals || len(s.recentRemovals) > 0 && now.Sub(s.recentRemovals[0].at) > RevertMemory {
		s.recentRemovals = s.recentRemovals[1:] // the array is shared with older generations
	}
	s.recentRemovals = append(s.recentRemovals, pastRemoval{tomb.Name.text, tomb.past, now})
}

// recallPast gives an entry, which is not published yet, the past of a removed resource of that name.
func (s *setHistory) recallPast(e *Entry) {
	for _, b := range slices.Backward(s.recentRemovals) {
		if b.name == e.Name.text {
			e.recordPast(&Entry{past: b.past})
			return
		}
	}
}

// RecentRemovals returns the names that were removed within RevertMemory. Some may be there again.
func (s *setHistory) RecentRemovals() (names []string) {
	for _, b := range s.recentRemovals {
		if !recent(b.at).IsZero() {
			names = append(names, b.name)
		}
	}
	return names
}

// noSeq is after all positions.
const noSeq = ^Seq(0)

// FirstAfter returns the position of the oldest change after p of an entry of the set, also if
// the same name changed again since; noSeq if there is none.
func (s *Set) FirstAfter(p Seq) Seq {
	if at := s.after(p); at < len(s.log) {
		return s.log[at].seq
	}
	return noSeq
}
