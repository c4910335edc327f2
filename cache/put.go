package cache

import (
	"cmp"
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// put stores a resource under a name.
func (ed setEdit) put(n *Name, r received) {
	old := ed.set.Get(n)
	// An alias may come to stand for another resource with the same bytes.
	same := old.Present() && old.Resource.Key() == r.Key()
	failed := !r.failing && ed.clearError(n) // then clients have to see it again
	if same && !failed && ed.w.view.cfg.VersionSource.Same(old.Resource, r.Resource) {
		ed.keep(old, r)
		return
	}
	e := &Entry{Name: n, Seq: ed.next(), Resource: r.Resource, Leaf: r.leaf}
	e.setDeadline(r.deadline)
	e.since, e.born = e.Seq, e.Seq
	if seen, since := ed.typ.Lookup(n); !failed && seen.shows(r.Resource) {
		e.since = since
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
	ed.setAlarm(e)
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

// replace counts an entry that replaces an older one, and takes over what outlives
// the older one.
func (ed *edit) replace(n *Name, old, e *Entry) {
	ed.change.Changed++
	if old == nil {
		n.entries++
	}
	if old.Present() {
		e.born, e.alarm = old.born, old.alarm
	} else {
		ed.change.New++
	}
}

// keep stores a resource with content that clients have: at most its version is new,
// or how long it lives, or the content had been dropped.
func (ed setEdit) keep(old *Entry, r received) {
	again, changed := *old, false
	switch {
	case old.Resource.OriginVersion == r.OriginVersion && r.deadline.IsZero() && !old.Resource.ContentDropped():
		ed.change.Same++
	case old.Resource.OriginVersion == r.OriginVersion: // there was a reason to send it again
	default:
		again, changed = *old.withVersion(r.Resource), true
		again.Leaf = r.leaf
	}
	if old.Resource.ContentDropped() {
		again.Resource, changed = r.Resource, true
		ed.markChanged(old.Name)
	}
	if !r.deadline.Equal(old.Deadline()) {
		again.Resource, changed = r.Resource, true
		ed.renew(&again, r.deadline)
	}
	if changed || r.Unresolved() || r.DoNotCache {
		ed.setAlarm(&again)
		ed.set.put(ed.txn, &again)
	}
}

// checkReuse records other content under the same version (B.2).
func (ed *edit) checkReuse(n *Name, old, r *wire.Resource) {
	if v := r.OriginVersion; v != "" && v == old.OriginVersion && r.Digest != old.Digest {
		ed.change.Reused = append(ed.change.Reused, n.text)
		ed.gen.ownSource(ed.w.source).Reused = true
	}
}

// renew records a new deadline of an entry.
func (ed setEdit) renew(e *Entry, deadline time.Time) {
	l := e.ownLife()
	l.deadline, l.renewed = deadline, ed.next()
	ed.change.Renewed++
	ed.markChanged(e.Name)
}

// inherit prepares an entry that readers of another one see from now on, without a
// response, since its content is the same: they may have it under another version, and
// have to learn how long it lives now. Whether they have read the other's renewals
// is not known.
func (ed *edit) inherit(e, seen *Entry) {
	e.addVersionsOf(seen)
	if !e.Deadline().Equal(seen.Deadline()) || seen.Renewed() > 0 {
		e.ownLife().renewed = ed.next()
		ed.change.Renewed++
	}
}

// yieldFor is how long a named entry yields to the wildcard set at most: then readers see it, whether or not the two
// agree.
const yieldFor = 5 * time.Second

// mayBeOlder reports whether a resource that came by name may be older than the entry of the wildcard set that
// readers see. The two come on two streams, either of which may skip states of the other, so nothing tells which is
// newer; but a response is not older than what came before the request. So readers follow a name in the wildcard set
// until both streams have the same content, if that entry has changed since the origin was asked for the name. From
// then on they follow the stream of the name, which has all changes in order.
func (ed *edit) mayBeOlder(n *Name, old *Entry, r *wire.Resource) bool {
	member := ed.typ.member(n)
	if member.shows(r) {
		return false
	}
	if old.Present() {
		return old.yields
	}
	return (old == nil || old.yields) && member.seq() > n.askedAt
}

// setYield makes a named entry, which is not published yet, yield to the wildcard set if it may be older.
func (ed setEdit) setYield(e, old, copied *Entry) {
	switch {
	case ed.kind == Wildcard:
		return
	case copied != nil && copied.Name == e.Name: // of latest, whose positions are others
		e.yields = copied.yields && (!old.Present() || old.yields)
	default:
		e.yields = ed.mayBeOlder(e.Name, old, e.Resource)
	}
	if e.yields && old != nil { // when readers began to see the wildcard set instead of what expired
		e.replaced, e.since = old.replaced, old.since
	}
	if !e.yields || old.Present() {
		return // if the older one yielded, it is known until when
	}
	if e.alarm == nil {
		e.alarm = new(alarm)
	}
	e.alarm.yields = ed.now.Add(yieldFor)
}

// yieldingEntry returns the named entry to which the wildcard set takes precedence, if that has the name; else nil.
func (ed *edit) yieldingEntry(n *Name) *Entry {
	if e := ed.typ.ByName.Get(n); e != nil && e.yields && n.source == ed.typ.source {
		return e
	}
	return nil
}

// endYieldIfSame makes readers of a name follow the named entry, if it has come to have the content of the entry in
// the wildcard set that they saw instead.
func (ed setEdit) endYieldIfSame(member *Entry) {
	named := ed.yieldingEntry(member.Name)
	if ed.kind == ByName || !named.shows(member.Resource) {
		return
	}
	again := *named
	again.yields, again.since = false, member.since
	ed.inherit(&again, member)
	ed.of(ByName).setAlarm(&again)
	ed.typ.ByName.put(ed.txn, &again)
}

// yieldTimedOut makes readers follow a named entry that has yielded for long enough. Behind a closed gate it goes on
// yielding: time is no change that passes.
func (ed *edit) yieldTimedOut(named *Entry) {
	if ed.w.Frozen() && ed.ledger != ed.w.latest && ed.typ.member(named.Name).Present() {
		named.alarm.yields = ed.now.Add(yieldFor)
		ed.of(ByName).setAlarm(named)
		return
	}
	ed.endYield(named)
}

// endYield publishes a named entry that yielded: from now on it takes precedence over the wildcard set. It takes a
// position of its own, since the tombstone in the wildcard set may be forgotten before readers see it.
func (ed *edit) endYield(named *Entry) {
	again := *named
	again.Seq, again.yields = ed.next(), !named.Present()
	again.since = again.Seq
	if named.Present() {
		ed.of(ByName).setAlarm(&again)
	}
	ed.typ.ByName.put(ed.txn, &again)
	ed.typ.ByName.compact()
	ed.of(ByName).markChanged(again.Name)
}

// showMember replaces the entry that readers saw under a name until now by that of the wildcard set, which has the
// same content.
func (ed *edit) showMember(n *Name, seen *Entry) {
	member := ed.typ.Wildcard.Get(n)
	if member == seen {
		return // they saw it all along
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
	e.born = e.Seq
	switch {
	case old == nil:
		n.entries++
	case old.Err.Denied() == err.Denied():
		e.born = old.born
	case old.Err.Denied() && ed.set.Get(n).Present(): // to some clients: now it only fails, and they go on with the last good content
		ed.announceAgain(n)
	}
	set.put(ed.txn, e)
	ed.markChanged(n)
}

// announceAgain gives the entry of a name, if there is one, a new position: clients are sent it although nothing about it has changed.
func (ed setEdit) announceAgain(n *Name) {
	e := ed.set.Get(n)
	if e == nil {
		return
	}
	again := *e
	again.Seq = ed.next()
	again.since = again.Seq
	if ed.kind == Wildcard && !e.Present() {
		ed.ledger.tombstones[ed.typ.URL] = append(ed.ledger.tombstones[ed.typ.URL], tombstone{n, again.Seq, ed.now})
	}
	ed.set.put(ed.txn, &again)
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

// clearWholeError removes the error of the wildcard set as a whole: some resources have come.
func (ed *edit) clearWholeError() {
	if n := ed.index.names[wholeName(ed.typ.URL)]; n != nil && ed.of(Wildcard).clearError(n) {
		ed.index.release(n)
	}
}
