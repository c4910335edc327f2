package cache

import (
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// lagWait is for how long what an origin says by name may be taken for older than what it
// says of the members: then it is believed, whether or not the two have come to agree.
const lagWait = 5 * time.Second

// lags reports whether what the origin says of a name may be older than the member that
// readers see. The two come on two streams, and either may skip what the other one says, so
// nothing tells which is newer; but an answer is not older than what was said before the
// question. So a name that is a member already is followed as such until both streams say
// the same, if the member has changed since the origin was asked for the name. From then on
// readers follow the stream of the name, which says everything in its order.
func (a *apply) lags(n *Name, old *Entry, r *wire.Resource) bool {
	member := a.typ.member(n)
	if member.shows(r) {
		return false
	}
	if old.Present() {
		return old.yields
	}
	return (old == nil || old.yields) && member.seq() > n.askedAt
}

// yield has an entry of the named, which is not published yet, yield to the member if it may
// be older.
func (a *apply) yield(kind Kind, e, old *Entry) {
	if kind == Wildcard {
		return
	}
	if e.yields = a.lags(e.Name, old, e.Resource); !e.yields || old.Present() {
		return // if the older one yielded, it is known until when
	}
	if e.alarm == nil {
		e.alarm = new(alarm)
	}
	e.alarm.yields = a.now.Add(lagWait)
}

// yielding returns what the origin says of a name if readers see a member in its place, should there be one; else nil.
func (a *apply) yielding(n *Name) *Entry {
	if e := a.typ.ByName.Get(n); e != nil && e.yields && n.source == a.typ.source {
		return e
	}
	return nil
}

// caughtUp has readers of a name follow what the origin says by name, if an entry is the
// member that they saw instead, and has come to be the same.
func (a *apply) caughtUp(kind Kind, member *Entry) {
	named := a.yielding(member.Name)
	if kind == ByName || !named.shows(member.Resource) {
		return
	}
	again := *named
	again.yields, again.since = false, member.since
	a.inherit(&again, member)
	a.limit(ByName, &again)
	a.typ.ByName.put(a.edit, &again)
}

// waited has readers of a name follow what the origin says by name, since that has yielded for long enough. Behind a closed
// gate it goes on yielding to a member: time is no change that passes.
func (a *apply) waited(named *Entry) {
	if a.gated() && a.typ.member(named.Name).Present() {
		named.alarm.yields = a.now.Add(lagWait)
		a.limit(ByName, named)
		return
	}
	a.prevail(named)
}

// prevail makes news of what the origin says by name, which yielded: from now on readers see no member in its place. It takes
// a position of its own, since the tombstone of a member may be forgotten before they look.
func (a *apply) prevail(named *Entry) {
	again := *named
	again.Seq, again.yields = a.next(), !named.Present()
	again.since = again.Seq
	if named.Present() {
		a.limit(ByName, &again)
	}
	a.typ.ByName.put(a.edit, &again)
	a.typ.ByName.compact()
	a.touched(ByName, again.Name)
}

// reveal has the member take the place of what readers saw under its name until now,
// which had the same content.
func (a *apply) reveal(n *Name, seen *Entry) {
	member := a.typ.Wildcard.Get(n)
	if member == seen {
		return // they saw it all along
	}
	shown := *member
	a.inherit(&shown, seen)
	a.typ.Wildcard.put(a.edit, &shown)
}
