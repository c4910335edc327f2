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
	if kind == Members {
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

// caughtUp has readers of a name follow what the origin says by name, if an entry is the
// member that they saw instead, and has come to be the same.
func (a *apply) caughtUp(kind Kind, member *Entry) {
	named := a.typ.Named.Get(member.Name)
	if kind == Named || named == nil || !named.yields || member.Name.source != a.typ.source || !named.shows(member.Resource) {
		return
	}
	again := *named
	again.yields, again.since = false, member.since
	a.inherit(&again, member)
	a.limit(Named, &again)
	a.typ.Named.put(a.edit, &again)
}

// prevail has readers of a name follow what the origin says by name, though it has not come
// to be what they saw until now. While they are to see no change, they do not, unless they
// see nothing.
func (a *apply) prevail(e *Entry) {
	again := *e
	if a.gated() && a.typ.member(e.Name).Present() {
		again.alarm.yields = a.now.Add(lagWait)
	} else {
		again.Seq, again.yields = a.next(), false
		again.since = again.Seq
	}
	a.limit(Named, &again)
	a.typ.Named.put(a.edit, &again)
	a.touched(Named, e.Name)
}

// uncover makes news of what the set of the named says of a name, if until now
// readers saw a member instead, which goes. It needs a sequence of its own: the
// member's tombstone may be forgotten before they look.
func (a *apply) uncover(member *Entry) {
	named := a.typ.Named.Get(member.Name)
	if named == nil || !named.yields || member.Name.source != a.typ.source {
		return
	}
	seen := *named
	seen.Seq, seen.yields = a.next(), !named.Present()
	seen.since = seen.Seq
	a.typ.Named.put(a.edit, &seen)
	a.typ.Named.compact()
	a.touched(Named, seen.Name)
}

// reveal has the member take the place of what readers saw under its name until now,
// which had the same content.
func (a *apply) reveal(n *Name, seen *Entry) {
	member := a.typ.Members.Get(n)
	if member == seen {
		return // they saw it all along
	}
	shown := *member
	a.inherit(&shown, seen)
	a.typ.Members.put(a.edit, &shown)
}
