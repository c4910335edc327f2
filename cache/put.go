package cache

import (
	"time"

	"github.com/xdstender/tender/cache/wire"
)

// put stores a resource under a name.
func (ed setEdit) put(n *Name, r received) {
	old := ed.set.Get(n)
	// An alias may come to stand for another resource with the same bytes.
	same := old.Present() && old.Resource.Key() == r.Key()
	failed := !r.failing && ed.clearError(n) // then clients have to see it again
	if same && !failed && ed.w.view.cfg.VersionSource.same(old.Resource, r.Resource) {
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
