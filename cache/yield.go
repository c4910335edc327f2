package cache

import (
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// yieldFor is for how long what an origin says by name may be taken for older than what it
// says of the members: then it is believed, whether or not the two have come to agree.
const yieldFor = 5 * time.Second

// mayBeOlder reports whether what the origin says of a name may be older than the member that
// readers see. The two come on two streams, and either may skip what the other one says, so
// nothing tells which is newer; but an answer is not older than what was said before the
// question. So a name that is a member already is followed as such until both streams say
// the same, if the member has changed since the origin was asked for the name. From then on
// readers follow the stream of the name, which says everything in its order.
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

// setYield has an entry of the named, which is not published yet, yield to the member if it may
// be older.
func (ed setEdit) setYield(e, old *Entry) {
	if ed.kind == Wildcard {
		return
	}
	if e.yields = ed.mayBeOlder(e.Name, old, e.Resource); !e.yields || old.Present() {
		return // if the older one yielded, it is known until when
	}
	if e.alarm == nil {
		e.alarm = new(alarm)
	}
	e.alarm.yields = ed.now.Add(yieldFor)
}

// yieldingEntry returns what the origin says of a name if readers see a member in its place, should there be one; else nil.
func (ed *edit) yieldingEntry(n *Name) *Entry {
	if e := ed.typ.ByName.Get(n); e != nil && e.yields && n.source == ed.typ.source {
		return e
	}
	return nil
}

// endYieldIfSame has readers of a name follow what the origin says by name, if an entry is the
// member that they saw instead, and has come to be the same.
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

// yieldTimedOut has readers of a name follow what the origin says by name, since that has yielded for long enough. Behind a closed
// gate it goes on yielding to a member: time is no change that passes.
func (ed *edit) yieldTimedOut(named *Entry) {
	if ed.behindGate() && ed.typ.member(named.Name).Present() {
		named.alarm.yields = ed.now.Add(yieldFor)
		ed.of(ByName).setAlarm(named)
		return
	}
	ed.endYield(named)
}

// endYield makes news of what the origin says by name, which yielded: from now on readers see no member in its place. It takes
// a position of its own, since the tombstone of a member may be forgotten before they look.
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

// showMember has the member take the place of what readers saw under its name until now,
// which had the same content.
func (ed *edit) showMember(n *Name, seen *Entry) {
	member := ed.typ.Wildcard.Get(n)
	if member == seen {
		return // they saw it all along
	}
	shown := *member
	ed.inherit(&shown, seen)
	ed.typ.Wildcard.put(ed.txn, &shown)
}
