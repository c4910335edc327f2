package cache

import (
	"cmp"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// put stores a resource under a name.
func (ed setEdit) put(n *Name, r received) {
	old := ed.set.Get(n)
	// The key is compared, too: an alias may come to stand for another resource with the same bytes.
	same := old.Present() && old.Resource.Key() == r.Key()
	failed := !r.failing && ed.clearError(n) // then clients must be sent the resource again
	if same && !failed && ed.w.view.cfg.VersionSource.Same(old.Resource, r.Resource) {
		ed.putSameContent(old, r)
		return
	}
	e := &Entry{Name: n, Seq: ed.next(), Resource: r.Resource, Leaf: r.leaf}
	e.setDeadline(r.deadline)
	e.visibleSince, e.created = e.Seq, e.Seq
	if seen, since := ed.typ.Lookup(n); !failed && seen.shows(r.Resource) {
		e.visibleSince = since
		ed.inherit(e, seen)
	}
	ed.replace(n, old, e)
	ed.setYield(e, old, r.copied)
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
	ed.endYieldIfSame(e)
	ed.unalias(old)
	if n.text != r.Name {
		ed.set.aliased = true
		ed.ledger.alias(ed.typ.URL, n, r.Name)
	}
	ed.markChanged(n)
}

// replace counts an entry that replaces an older one, and copies what it inherits: when the resource was created, and
// the timer.
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

// putSameContent stores a resource with unchanged content: its version or its deadline may be new, or the content had
// been dropped.
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
		ed.gen.ownSource(ed.w.source).Reused = true
	}
}

// renew sets a new deadline of an entry that is not published yet.
func (ed setEdit) renew(e *Entry, deadline time.Time) {
	l := e.ownLifetime()
	l.deadline, l.renewed = deadline, ed.next()
	ed.change.Renewed++
	ed.markChanged(e.Name)
}

// inherit prepares an entry that replaces another one, with equal content, for the same readers. They get no
// response, so they may have the content under a version of the other entry. They must be sent the new deadline;
// whether they have read renewals of the other entry is unknown.
func (ed *edit) inherit(e, seen *Entry) {
	e.addVersionsOf(seen)
	if !e.Deadline().Equal(seen.Deadline()) || seen.Renewed() > 0 {
		e.ownLifetime().renewed = ed.next()
		ed.change.Renewed++
	}
}

// yieldFor is how long a named entry yields to the wildcard set at most. Then readers see it even if the two differ.
const yieldFor = 5 * time.Second

// mayBeOlder reports whether a resource that was received by name may be older than the entry of the wildcard set
// that readers see. The origin sends the two on two streams, which may be at different states, and the protocol does
// not tell which is newer. A response is only known to be no older than what was received before its request. So if
// the entry of the wildcard set has changed since the origin was asked for the name, readers follow the wildcard set
// until both streams have the same content. From then on they follow the stream of the name, which has all changes in
// order.
func (ed *edit) mayBeOlder(n *Name, old *Entry, r *wire.Resource) bool {
	member := ed.typ.wildcardEntry(n)
	if member.shows(r) {
		return false
	}
	if old.Present() {
		return old.yields
	}
	return (old == nil || old.yields) && member.seq() > n.askedAt
}

// setYield makes a named entry that is not published yet yield to the wildcard set if it may be older.
func (ed setEdit) setYield(e, old, copied *Entry) {
	switch {
	case ed.kind == Wildcard:
		return
	case copied != nil && copied.Name == e.Name: // copied from latest, whose positions cannot be compared
		e.yields = copied.yields && (!old.Present() || old.yields)
	default:
		e.yields = ed.mayBeOlder(e.Name, old, e.Resource)
	}
	if e.yields && old != nil { // when readers began to see the wildcard set, because the named resource expired
		e.replacedSeq, e.visibleSince = old.replacedSeq, old.visibleSince
	}
	if !e.yields || old.Present() {
		return // an older one that yielded has set until when
	}
	if e.timer == nil {
		e.timer = new(timer)
	}
	e.timer.yields = ed.now.Add(yieldFor)
}

// yieldingEntry returns the named entry of a name if it yields to the wildcard set, else nil.
func (ed *edit) yieldingEntry(n *Name) *Entry {
	if e := ed.typ.ByName.Get(n); e != nil && e.yields && n.source == ed.typ.source {
		return e
	}
	return nil
}

// endYieldIfSame makes readers of a name follow the named entry, if it yields to an entry of the wildcard set that
// now has the same content.
func (ed setEdit) endYieldIfSame(member *Entry) {
	named := ed.yieldingEntry(member.Name)
	if ed.kind == ByName || !named.shows(member.Resource) {
		return
	}
	followed := *named
	followed.yields, followed.visibleSince = false, member.visibleSince
	ed.inherit(&followed, member)
	ed.of(ByName).setTimer(&followed)
	ed.typ.ByName.put(ed.txn, &followed)
}

// yieldTimedOut makes readers follow a named entry that has yielded for yieldFor. Behind a closed gate the entry
// continues to yield, because the end of the time is no change that passes.
func (ed *edit) yieldTimedOut(named *Entry) {
	if ed.w.Frozen() && ed.ledger != ed.w.latest && ed.typ.wildcardEntry(named.Name).Present() {
		named.timer.yields = ed.now.Add(yieldFor)
		ed.of(ByName).setTimer(named)
		return
	}
	ed.endYield(named)
}

// endYield makes a named entry take precedence over the wildcard set. It gets a position of its own, because the
// tombstone in the wildcard set may be dropped before readers see it.
func (ed *edit) endYield(named *Entry) {
	followed := *named
	followed.Seq, followed.yields = ed.next(), !named.Present()
	followed.visibleSince = followed.Seq
	if named.Present() {
		ed.of(ByName).setTimer(&followed)
	}
	ed.typ.ByName.put(ed.txn, &followed)
	ed.typ.ByName.compact()
	ed.of(ByName).markChanged(followed.Name)
}

// showWildcardEntry prepares the entry of the wildcard set for readers who saw another entry of the name with the
// same content.
func (ed *edit) showWildcardEntry(n *Name, seen *Entry) {
	member := ed.typ.Wildcard.Get(n)
	if member == seen {
		return // they see it already
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
	case old.Err.Denied() && ed.set.Get(n).Present(): // clients that were sent the denial need the last good content again
		ed.announceAgain(n)
	}
	set.put(ed.txn, e)
	ed.markChanged(n)
}

// announceAgain gives the entry of a name, if there is one, a new position: clients are sent it although it has not
// changed.
func (ed setEdit) announceAgain(n *Name) {
	e := ed.set.Get(n)
	if e == nil {
		return
	}
	announced := *e
	announced.Seq = ed.next()
	announced.visibleSince = announced.Seq
	if ed.kind == Wildcard && !e.Present() {
		ed.ledger.tombstones[ed.typ.URL] = append(ed.ledger.tombstones[ed.typ.URL], tombstone{n, announced.Seq, ed.now})
	}
	ed.set.put(ed.txn, &announced)
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

// wholeName returns the name that stands for the whole wildcard set of a type, or of a collection.
func wholeName(key string) string {
	_, glob, _ := SplitCollection(key)
	return cmp.Or(glob, wire.Wildcard)
}

// hasWholeError reports whether the origin sent an error for the wildcard set as a whole.
func (t *Type) hasWholeError() bool {
	for e := range t.Errors(Wildcard).Since(0) {
		if e.Name.text == wholeName(t.URL) {
			return true
		}
	}
	return false
}

// clearWholeError removes the error of the wildcard set as a whole, because the origin has sent resources.
func (ed *edit) clearWholeError() {
	if n := ed.index.names[wholeName(ed.typ.URL)]; n != nil && ed.of(Wildcard).clearError(n) {
		ed.index.release(n)
	}
}

// removeFromWildcard replaces the entry of a name in the wildcard set by a tombstone. A nil name has none.
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
	if remembersRemovals(ed.typ.URL) {
		ed.set.rememberRemoval(e)
	}
	ed.ledger.tombstones[ed.typ.URL] = append(ed.ledger.tombstones[ed.typ.URL], tombstone{e.Name, e.Seq, time.Now()})
	ed.change.Removed++
	ed.markChanged(e.Name)
	// A named resource that exists may be older than this removal, and continues to yield.
	if named := ed.yieldingEntry(old.Name); named != nil && !named.Present() {
		ed.endYield(named)
	}
}

// putAbsent records that a resource does not exist. If that was recorded on an earlier connection, the entry gets no
// new position: only clients that have not been sent the removal are sent it now.
func (ed setEdit) putAbsent(n *Name, old *Entry) {
	ed.answered(n)
	n.stale = false
	switch {
	case old == nil:
		n.entries++
		ed.set.put(ed.txn, &Entry{Name: n, Seq: ed.next(), epoch: ed.epoch(), yields: true})
	case old.Present():
		ed.change.Removed++
		e := ed.newTombstone(old)
		e.Prior, e.yields = priorOf(old.Resource), old.yields
		if seen, since := ed.typ.Lookup(n); e.yields && seen.Present() && ed.typ.wildcardEntry(n).shows(seen.Resource) {
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

// announceAbsence records that a resource does not exist, at a new position: clients that were sent an error for it
// must be sent the removal.
func (ed setEdit) announceAbsence(n *Name) {
	e := &Entry{Name: n, Seq: ed.next(), epoch: ed.epoch()}
	e.visibleSince, e.created = e.Seq, e.Seq
	if ed.set.Get(n) == nil {
		n.entries++
	}
	if ed.kind == Wildcard {
		ed.ledger.tombstones[ed.typ.URL] = append(ed.ledger.tombstones[ed.typ.URL], tombstone{n, e.Seq, ed.now})
	}
	ed.set.put(ed.txn, e)
	ed.markChanged(n)
}

func (ed *edit) newTombstone(old *Entry) *Entry {
	e := &Entry{Name: old.Name, Seq: ed.next(), created: old.created, replacedSeq: old.Seq, epoch: ed.epoch(), Leaf: old.Leaf}
	e.visibleSince = e.Seq
	if t := resourceType(ed.typ.URL); t == wire.ClusterType || t == wire.EndpointType || old.Resource.Constraints != nil {
		e.Prior = priorOf(old.Resource)
	}
	return e
}

// priorOf returns what Entry.Prior keeps of a removed resource.
func priorOf(r *wire.Resource) *wire.Resource {
	if r.DoNotCache && !r.ContentDropped() {
		return r.DropContent()
	}
	return r
}

// forgetName removes the entries of a name from the set of names.
func (ed *edit) forgetName(n *Name) {
	ed.txn.touch(n)
	ed.w.view.index.dropRestored(n)
	ed.dropEntry(&ed.typ.ByName, n)
	ed.of(ByName).clearError(n)
	ed.index.release(n)
}

// copying edits a set by copying entries from a type in another generation.
type copying struct {
	setEdit
	from *Generation
	t    *Type // of from
}
