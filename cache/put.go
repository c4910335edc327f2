package cache

import (
	"cmp"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// put stores a resource under a name.
func (ed setEdit) put(n *Name, r received) {
	old := ed.set.Get(n)
	// Compare the key, too: an alias may begin to name another resource with the same bytes.
	same := old.Present() && old.Resource.Key() == r.Key()
	failed := !r.failing && ed.clearError(n) // clients that were sent the error must be sent the resource again
	if same && !failed && old.Resource.SameContent(r.Resource) {
		ed.putSameContent(old, r)
		return
	}
	e := &Entry{Name: n, Seq: ed.next(), Resource: r.Resource, Leaf: r.leaf}
	e.setDeadline(r.deadline)
	e.visibleSince, e.created = e.Seq, e.Seq
	if seen, since := ed.typ.Lookup(n); !failed && seen.hasContentOf(r.Resource) {
		e.visibleSince = since
		ed.inherit(e, seen)
	}
	ed.replace(n, old, e)
	ed.setShadowed(e, old, r.copied)
	if same {
		ed.checkReuse(n, old.Resource, r.Resource)
	}
	if ed.kind == ByName {
		n.stale = false
	}
	ed.setTimer(e)
	if old == nil {
		ed.set.recallPast(e)
	}
	ed.set.put(ed.txn, e)
	ed.unshadowIfSame(e)
	ed.unalias(old)
	if n.text != r.Name {
		ed.set.aliased = true
		ed.branch.alias(ed.typ.URL, n, r.Name)
	}
	ed.markChanged(n)
}

// replace counts an entry that replaces an older one, and copies the creation position and the timer to it.
func (ed *edit) replace(n *Name, old, e *Entry) {
	ed.change.Changed++
	if old == nil {
		n.entries++
	}
	if old.Present() {
		e.created, e.timer = old.created, old.timer
	} else {
		ed.change.New++
	}
}

// putSameContent stores a resource with unchanged content. Its version or its deadline may have changed, or the content
// may have been dropped before.
func (ed setEdit) putSameContent(old *Entry, r received) {
	updated, changed := *old, false
	switch {
	case old.Resource.OriginVersion == r.OriginVersion && r.deadline.IsZero() && !old.Resource.ContentDropped():
		ed.change.Same++
	case old.Resource.OriginVersion == r.OriginVersion: // sent again for its TTL or its content
	default:
		updated, changed = *old.withVersion(r.Resource), true
		updated.Leaf = r.leaf
	}
	if old.Resource.ContentDropped() {
		updated.Resource, changed = r.Resource, true
		ed.markChanged(old.Name)
	}
	if !r.deadline.Equal(old.Deadline()) {
		updated.Resource, changed = r.Resource, true
		ed.renew(&updated, r.deadline)
	}
	if changed || r.Unresolved() || r.DoNotCache {
		ed.setTimer(&updated)
		ed.set.put(ed.txn, &updated)
	}
}

// checkReuse records that the origin gave different content the same version (B.2).
func (ed *edit) checkReuse(n *Name, old, r *wire.Resource) {
	if v := r.OriginVersion; v != "" && v == old.OriginVersion && r.Digest != old.Digest {
		ed.change.Reused = append(ed.change.Reused, n.text)
		ed.gen.mutableSource(ed.w.source).Reused = true
	}
}

// renew sets a new deadline of an entry that is not published yet.
func (ed setEdit) renew(e *Entry, deadline time.Time) {
	l := e.mutableLifetime()
	l.deadline, l.renewed = deadline, ed.next()
	ed.change.Renewed++
	ed.markChanged(e.Name)
}

// inherit prepares an entry for readers who saw another entry with equal content. They are sent no response, so they
// may have the content under a version of the other entry. They must be sent the new deadline, because they may not
// have read the renewals of the other entry.
func (ed *edit) inherit(e, seen *Entry) {
	e.addVersionsOf(seen)
	if !e.Deadline().Equal(seen.Deadline()) || seen.Renewed() > 0 {
		e.mutableLifetime().renewed = ed.next()
		ed.change.Renewed++
	}
}

// maxShadowed is the longest time for which the wildcard set shadows a named entry. After that, readers see the named
// entry even if the two differ.
const maxShadowed = 5 * time.Second

// mayBeOlder reports whether a resource that was received by name may be older than the entry of the wildcard set that
// readers see. The origin sends the two on two streams, and the protocol does not define which is newer. A response is
// only guaranteed to be no older than the resources that were received before its request. So if the entry of the
// wildcard set has changed since the name was requested, it shadows the named entry until both have the same content.
// From then on, readers see the named entry, whose stream has all changes in order.
func (ed *edit) mayBeOlder(n *Name, old *Entry, r *wire.Resource) bool {
	member := ed.typ.wildcardEntry(n)
	if member.hasContentOf(r) {
		return false
	}
	if old.Present() {
		return old.shadowed
	}
	return (old == nil || old.shadowed) && member.seq() > n.askedAt
}

// setShadowed marks a named entry that is not published yet as shadowed if it may be older than the wildcard set.
func (ed setEdit) setShadowed(e, old, copied *Entry) {
	switch {
	case ed.kind == Wildcard:
		return
	case copied != nil && copied.Name == e.Name: // copied from another view, whose positions cannot be compared
		e.shadowed = copied.shadowed && (!old.Present() || old.shadowed)
	default:
		e.shadowed = ed.mayBeOlder(e.Name, old, e.Resource)
	}
	if e.shadowed && old != nil { // when readers began to see the wildcard set, because the named resource expired
		e.replacedSeq, e.visibleSince = old.replacedSeq, old.visibleSince
	}
	if !e.shadowed || old.Present() {
		return // a shadowed older entry has set the time already
	}
	if e.timer == nil {
		e.timer = new(timer)
	}
	e.timer.shadowedUntil = ed.now.Add(maxShadowed)
}

// shadowedEntry returns the named entry of a name if it is shadowed, else nil.
func (ed *edit) shadowedEntry(n *Name) *Entry {
	if e := ed.typ.ByName.Get(n); e != nil && e.shadowed && n.source == ed.typ.source {
		return e
	}
	return nil
}

// unshadowIfSame ends the shadowing of a named entry by an entry of the wildcard set that now has the same content.
func (ed setEdit) unshadowIfSame(member *Entry) {
	named := ed.shadowedEntry(member.Name)
	if ed.kind == ByName || !named.hasContentOf(member.Resource) {
		return
	}
	unshadowed := *named
	unshadowed.shadowed, unshadowed.visibleSince = false, member.visibleSince
	ed.inherit(&unshadowed, member)
	ed.editSet(ByName).setTimer(&unshadowed)
	ed.typ.ByName.put(ed.txn, &unshadowed)
}

// shadowTimedOut handles a named entry that has been shadowed for maxShadowed: readers see it from now on. While the source
// is frozen, the entry stays shadowed.
func (ed *edit) shadowTimedOut(named *Entry) {
	if !ed.gen.sources[ed.w.source].Frozen.IsZero() && ed.typ.wildcardEntry(named.Name).Present() {
		named.timer.shadowedUntil = ed.now.Add(maxShadowed)
		ed.editSet(ByName).setTimer(named)
		return
	}
	ed.unshadow(named)
}

// unshadow makes a named entry take precedence over the wildcard set. The entry gets a new position, because the
// tombstone in the wildcard set may be dropped before readers see it.
func (ed *edit) unshadow(named *Entry) {
	unshadowed := *named
	unshadowed.Seq, unshadowed.shadowed = ed.next(), !named.Present()
	unshadowed.visibleSince = unshadowed.Seq
	if named.Present() {
		ed.editSet(ByName).setTimer(&unshadowed)
	}
	ed.typ.ByName.put(ed.txn, &unshadowed)
	ed.typ.ByName.compact()
	ed.editSet(ByName).markChanged(unshadowed.Name)
}

// showWildcardEntry prepares the entry of the wildcard set for readers who saw another entry of the name with the
// same content.
func (ed *edit) showWildcardEntry(n *Name, seen *Entry) {
	member := ed.typ.Wildcard.Get(n)
	if member == seen {
		return // readers see this entry already
	}
	shown := *member
	ed.inherit(&shown, seen)
	ed.typ.Wildcard.put(ed.txn, &shown)
}

// putError records the error of a name.
func (ed setEdit) putError(n *Name, err *wire.ResourceError) {
	set := ed.errors(ed.kind)
	old := set.Get(n)
	if old != nil && old.Err.Same(err) {
		return
	}
	e := &Entry{Name: n, Seq: ed.next(), Err: err}
	e.created = e.Seq
	switch {
	case old == nil:
		n.entries++
	case old.Err.Denied() == err.Denied():
		e.created = old.created
	case old.Err.Denied() && ed.set.Get(n).Present(): // clients that removed the resource need its last good content again
		ed.resendEntry(n)
	}
	set.put(ed.txn, e)
	ed.markChanged(n)
}

// resendEntry gives the entry of a name, if there is one, a new position, so that it is sent to clients although it has
// not changed.
func (ed setEdit) resendEntry(n *Name) {
	e := ed.set.Get(n)
	if e == nil {
		return
	}
	resent := *e
	resent.Seq = ed.next()
	resent.visibleSince = resent.Seq
	if ed.kind == Wildcard && !e.Present() {
		ed.branch.tombstones[ed.typ.URL] = append(ed.branch.tombstones[ed.typ.URL], tombstone{n, resent.Seq, ed.now})
	}
	ed.set.put(ed.txn, &resent)
	ed.markChanged(n)
}

// clearError removes the error of a name, and reports whether there was one.
func (ed setEdit) clearError(n *Name) bool {
	if ed.typ.Errors(ed.kind).Get(n) == nil {
		return false
	}
	ed.dropEntry(ed.errors(ed.kind), n)
	return true
}

// clearErrors removes all errors of the wildcard set.
func (ed *edit) clearErrors() {
	for e := range ed.typ.Errors(Wildcard).Since(0) {
		set := ed.errors(Wildcard)
		ed.dropEntry(set, e.Name)
		ed.index.release(e.Name)
	}
}

// WholeName returns the name under which an error of a whole wildcard set or collection is stored.
func WholeName(key string) string {
	_, glob, _ := SplitCollection(key)
	return cmp.Or(glob, wire.Wildcard)
}

// hasWholeError reports whether the origin sent an error for the wildcard set as a whole.
func (t *Type) hasWholeError() bool {
	for e := range t.Errors(Wildcard).Since(0) {
		if e.Name.text == WholeName(t.URL) {
			return true
		}
	}
	return false
}

// clearWholeError removes the error of the wildcard set as a whole.
func (ed *edit) clearWholeError() {
	if n := ed.index.names[WholeName(ed.typ.URL)]; n != nil && ed.editSet(Wildcard).clearError(n) {
		ed.index.release(n)
	}
}

// removeFromWildcard replaces the entry of a name in the wildcard set by a tombstone. It does nothing for a nil name.
func (ed setEdit) removeFromWildcard(n *Name) {
	if n == nil {
		return
	}
	if old := ed.set.Get(n); old.Present() {
		ed.putTombstone(old)
	}
}

// putTombstone replaces an entry of the wildcard set by its tombstone.
func (ed setEdit) putTombstone(old *Entry) {
	e := ed.newTombstone(old)
	ed.set.put(ed.txn, e)
	if wire.FullState(ed.typ.URL) { // Envoy may have applied a resource of these types that it never reports
		ed.set.recordRemoval(e)
	}
	ed.branch.tombstones[ed.typ.URL] = append(ed.branch.tombstones[ed.typ.URL], tombstone{e.Name, e.Seq, time.Now()})
	ed.change.Removed++
	ed.markChanged(e.Name)
	// A named resource that exists may be older than this removal, and stays shadowed.
	if named := ed.shadowedEntry(old.Name); named != nil && !named.Present() {
		ed.unshadow(named)
	}
}

// putAbsent records that a resource does not exist. An entry from an earlier connection that is absent already keeps
// its position: only clients that have not been sent the removal are sent it now.
func (ed setEdit) putAbsent(n *Name, old *Entry) {
	ed.recordResponseFor(n)
	n.stale = false
	switch {
	case old == nil:
		n.entries++
		ed.set.put(ed.txn, &Entry{Name: n, Seq: ed.next(), epoch: ed.epoch(), shadowed: true})
	case old.Present():
		ed.change.Removed++
		e := ed.newTombstone(old)
		e.Prior, e.shadowed = priorOf(old.Resource), old.shadowed
		seen, since := ed.typ.Lookup(n)
		if e.shadowed && seen.Present() && ed.typ.wildcardEntry(n).hasContentOf(seen.Resource) {
			e.visibleSince = since
			ed.showWildcardEntry(n, seen)
		}
		ed.set.put(ed.txn, e)
	default:
		confirmed := *old
		confirmed.epoch, confirmed.Expired = ed.epoch(), false
		ed.set.put(ed.txn, &confirmed)
	}
	ed.markChanged(n)
}

// resendAbsence records that a resource does not exist, at a new position, so that clients that were sent an error for
// it are sent the removal. expired reports that its TTL has ended.
func (ed setEdit) resendAbsence(n *Name, expired bool) {
	e := &Entry{Name: n, Seq: ed.next(), epoch: ed.epoch(), Expired: expired}
	e.visibleSince, e.created = e.Seq, e.Seq
	if ed.set.Get(n) == nil {
		n.entries++
	}
	if ed.kind == Wildcard {
		ed.branch.tombstones[ed.typ.URL] = append(ed.branch.tombstones[ed.typ.URL], tombstone{n, e.Seq, ed.now})
	}
	ed.set.put(ed.txn, e)
	ed.markChanged(n)
}

func (ed *edit) newTombstone(old *Entry) *Entry {
	e := &Entry{
		Name: old.Name, Seq: ed.next(), created: old.created, replacedSeq: old.Seq, epoch: ed.epoch(), Leaf: old.Leaf,
	}
	e.visibleSince = e.Seq
	if wire.OrderOf(resourceType(ed.typ.URL)).LateRemovals() || old.Resource.Constraints != nil {
		e.Prior = priorOf(old.Resource)
	}
	return e
}

// priorOf returns the value of Entry.Prior for a removed resource: without content that may not be cached.
func priorOf(r *wire.Resource) *wire.Resource {
	if r.DoNotCache && !r.ContentDropped() {
		return r.DropContent()
	}
	return r
}

// expireEntry removes a resource whose TTL ended. The same name in the wildcard set is not affected. The next
// subscriber causes a new request, since the origin may still have the resource.
func (ed setEdit) expireEntry(e *Entry) {
	if ed.kind == Wildcard {
		ed.putTombstone(e)
		return
	}
	shadowed := *e
	shadowed.shadowed = true
	ed.expireName(e.Name, &shadowed)
}

// expireName is expireEntry for a name of the set of names, with its entry; nil if clients were never sent the resource.
func (ed setEdit) expireName(n *Name, e *Entry) {
	ed.putAbsent(n, e)
	expired := *ed.set.Get(n)
	expired.Expired = true
	ed.set.put(ed.txn, &expired)
	n.stale = true
}

// forgetName removes the entry of a name and its error from the set of names.
func (ed *edit) forgetName(n *Name) {
	ed.txn.touch(n)
	ed.w.view.index.dropRestored(n)
	ed.dropEntry(&ed.typ.ByName, n)
	ed.editSet(ByName).clearError(n)
	ed.index.release(n)
}
