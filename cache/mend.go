package cache

import (
	"cmp"
	"slices"
	"time"
)

// Mend has the writer of a type or collection, in which an audit found a fault, make its sets
// anew from their entries when it takes demand. What may have been lost is asked for once
// more: all members, and names of which an entry is missing. A resource with other
// bytes than its origin sent is given up, so that whoever needs it has it asked for (R125):
// clients keep theirs until the answer is here, and are then sent it.
func (v *View) Mend(key string) {
	x := &v.index
	x.mu.Lock()
	t := x.types[key]
	if t == nil {
		x.mu.Unlock()
		return // given up since
	}
	from := x.sources[t.source]
	if !slices.Contains(from.faulty, key) {
		from.faulty = append(from.faulty, key)
	}
	x.mu.Unlock()
	x.poke(1 << t.source)
}

// takeFaulty returns what Mend was called for since the last call.
func (w *Writer) takeFaulty() []string {
	x := &w.view.index
	x.mu.Lock()
	defer x.mu.Unlock()
	from := x.sources[w.source]
	faulty := from.faulty
	from.faulty = nil
	return faulty
}

// mend makes the sets of a type anew, and has the origin asked again.
func (w *Writer) mend(key string) {
	ed := w.begin(key)
	for s := range ed.edits() {
		s.mend()
		s.dirty = true
	}
	w.publish(ed)
	w.recount(key)
}

func (ed *edit) mend() {
	for _, kind := range kinds {
		set := ed.set(kind)
		*set = set.again(ed.txn, func(e *Entry) *Entry { return ed.mended(kind, set, e) })
		if ed.typ.errors != nil {
			errors := ed.errors(kind)
			*errors = errors.again(ed.txn, func(e *Entry) *Entry { return e })
		}
	}
}

// recount counts the entries of each name anew, and has the origin asked again where that
// finds another number, and for all members.
func (w *Writer) recount(key string) {
	x := &w.view.index
	var p pokes
	x.mu.Lock()
	index, typ := x.types[key], w.view.Generation().Type(key)
	if index == nil {
		x.mu.Unlock()
		return // given up since
	}
	for _, n := range index.names {
		if held := w.view.holds(key, n); n.entries != held || len(n.watchers) > 0 && !n.tracked {
			n.entries, n.refetch = held, true
			p |= x.want(index, n)
		}
		if e := typ.ByName.Get(n); e.Present() && e.Resource.Name != n.text {
			w.view.writers[n.source].alias(key, n, e.Resource.Name)
		}
	}
	if len(index.wildcards) > 0 {
		index.refetch = true
		p |= x.want(index, nil)
	}
	x.mu.Unlock()
	x.poke(p)
}

// mended returns an entry as it ought to be.
func (ed *edit) mended(kind Kind, set *Set, e *Entry) *Entry {
	if !e.Present() {
		return e
	}
	again := *e
	again.Leaf = ed.w.view.cfg.VersionSource.leaf(resourceType(ed.typ.URL), e.Resource)
	if !e.Resource.Intact() {
		again.Seq = ed.next() // who has it has the wrong bytes
		again.since = again.Seq
		again.Resource, again.ownLife().contentDropped = e.Resource.DropContent(), time.Now()
		set.contentDroppedAt = again.ContentDroppedAt()
		if kind == ByName {
			e.Name.stale = true
		}
		ed.markChanged(kind, e.Name)
	}
	return &again
}

// again returns a set of the same entries, each as mended returns it, of which all else is
// derived anew. What happened to the set and does not show in its entries stays as it is.
func (s *Set) again(by *txn, mended func(*Entry) *Entry) Set {
	var entries, renewed []*Entry
	for _, e := range s.table.all() {
		e = mended(e)
		entries = append(entries, e)
		if e.Renewed() > 0 {
			renewed = append(renewed, e)
		}
	}
	slices.SortFunc(entries, func(a, b *Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	slices.SortFunc(renewed, func(a, b *Entry) int { return cmp.Compare(a.Renewed(), b.Renewed()) })
	set := Set{aliased: s.aliased, system: s.system, floor: s.floor, contentDroppedAt: s.contentDroppedAt}
	set.recentRemovals, set.former, set.reverted, set.revertedAt = s.recentRemovals, s.former, s.reverted, s.revertedAt
	for _, e := range entries {
		set.aliased = set.aliased || e.Present() && e.Name.text != e.Resource.Name
		set.put(by, e)
	}
	set.renewals = nil // put found them in the order of the changes
	for _, e := range renewed {
		set.renewals = append(set.renewals, logged{e.Name, e.Renewed()})
		set.renewed = e.Renewed()
	}
	set.limited = set.limited || s.limited
	set.last, set.lastRemoval, set.renewed = max(set.last, s.last), max(set.lastRemoval, min(s.lastRemoval, s.last)), max(set.renewed, s.renewed)
	return set
}
