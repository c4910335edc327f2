package cache

import (
	"time"

	"github.com/xdstender/tender/cache/wire"
)

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

// setYield makes a named entry, which is not published yet, yield to the wildcard set if it may be older, or if it is a copy
// of one that does.
func (ed setEdit) setYield(e, old, copied *Entry) {
	switch {
	case ed.kind == Wildcard:
		return
	case copied != nil && copied.Name == e.Name: // of latest, whose positions are others
		e.yields = copied.yields && (!old.Present() || old.yields)
	default:
		e.yields = ed.mayBeOlder(e.Name, old, e.Resource)
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
	if ed.behindGate() && ed.typ.member(named.Name).Present() {
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
