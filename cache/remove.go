package cache

import (
	"time"

	"github.com/xdstender/tender/cache/wire"
)

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
		again := *old
		again.epoch, again.Expired = ed.epoch(), false
		ed.set.put(ed.txn, &again)
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
