package cache

import (
	"container/heap"
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

// Trim drops tombstones that all wildcard streams were sent, or that are too old, and other outdated state. The owner
// of the writer calls it periodically.
func (w *Writer) Trim(now time.Time) {
	w.fanouts.EndOld(now)
	w.trimReports(now)
	w.trimRestored(now)
	for _, s := range w.served {
		for key, tombs := range s.tombstones {
			if passed := s.view.passed(key); tombs[0].passed(passed, now.Add(-w.view.cfg.TombstoneAge)) {
				w.trim(s.ledger, key, passed, now)
			}
		}
	}
}

// passed returns the position up to which no wildcard stream of a type needs tombstones.
func (v *View) passed(key string) Seq {
	x := &v.index
	x.mu.Lock()
	defer x.mu.Unlock()
	passed := ^Seq(0)
	if t := x.types[key]; t != nil {
		for _, wc := range t.wildcards {
			if wc.watch.view == v {
				passed = min(passed, Seq(wc.passed.Load()))
			}
		}
	}
	return passed
}

// passed reports whether a tombstone may be dropped: all wildcard streams were sent the removal, or it is older than
// a time.
func (tomb *tombstone) passed(passed Seq, old time.Time) bool {
	return tomb.seq <= passed || tomb.at.Before(old)
}

// trim drops the tombstones of a type that may be dropped.
func (w *Writer) trim(of *ledger, key string, passed Seq, now time.Time) {
	ed := w.beginOn(of, key)
	set, tombs := &ed.typ.Wildcard, of.tombstones[key]
	for old := now.Add(-w.view.cfg.TombstoneAge); len(tombs) > 0 && tombs[0].passed(passed, old); tombs = tombs[1:] {
		tomb := tombs[0]
		if e := set.Get(tomb.name); e != nil && e.Seq == tomb.seq {
			set.drop(ed.txn, e)
			set.floor = tomb.seq
			tomb.name.entries--
			ed.index.release(tomb.name)
		}
	}
	if of.tombstones[key] = tombs; len(tombs) == 0 {
		delete(of.tombstones, key)
	}
	set.compact()
	w.publish(ed)
}

// More than largeNames removals that are also more than largeFraction of a set are large (B.15).
const (
	largeNames    = 10
	largeFraction = 0.1
)

// LargeRemoval reports whether removals from a set of a type look like an origin that lost its state: all resources,
// or more than half, or more than ten and more than a tenth. The set had some number of resources, and others were
// added in the same response.
//
// Added listeners and scoped routes are subtracted from the removals: if the removal of a listener were held, Envoy
// would reject its renamed successor on the same address. For types whose removals are data, no number is large.
func LargeRemoval(typeURL string, removed, had, added int) bool {
	switch {
	case RemovalsAreData(typeURL):
		return false
	case typeURL == wire.ListenerType || typeURL == wire.ScopedRouteType:
		removed -= added
	}
	return removed > 0 && (removed >= had || 2*removed > had || removed > largeNames && float64(removed) > largeFraction*float64(had))
}

// RemovalsAreData reports whether resources of a type are regularly added and removed, as endpoints are. Unknown
// types, such as Istio's addresses, count as such.
func RemovalsAreData(typeURL string) bool {
	return typeURL == wire.EndpointType || typeURL == wire.LocalityEndpoint || !wire.Known(typeURL)
}

// forgetName removes the entries of a name from the set of names.
func (ed *edit) forgetName(n *Name) {
	ed.txn.touch(n)
	ed.w.view.index.dropRestored(n)
	ed.dropEntry(&ed.typ.ByName, n)
	ed.of(ByName).clearError(n)
	ed.index.release(n)
}

// clearWildcard empties the wildcard set.
func (ed *edit) clearWildcard() {
	for e := range ed.typ.Wildcard.Since(0) {
		if named := ed.yieldingEntry(e.Name); named != nil && e.Present() {
			ed.endYield(named)
		}
		ed.txn.touch(e.Name)
		e.Name.entries--
		ed.index.release(e.Name)
	}
	ed.clearErrors()
	ed.typ.Wildcard = Set{last: ed.gen.Seq, floor: ed.gen.Seq}
	ed.typ.Phase, ed.typ.Restored, ed.typ.Covered, ed.typ.era = Unknown, false, false, ed.index.era
	ed.index.lastKnown = false
	ed.w.view.index.dropReports(ed.index, Wildcard)
	delete(ed.ledger.tombstones, ed.typ.URL)
}

// Expire processes the timers that are due: it removes resources whose TTL ended, whether or not the origin is
// connected (R107), and drops content that may not be cached, and answers that an alias stands for no resource. It
// returns when to call it again; zero if there are no timers.
func (w *Writer) Expire(now time.Time) (next time.Time) {
	for _, l := range w.ledgers {
		w.expire(l, now)
	}
	for _, l := range w.ledgers {
		if len(l.due) > 0 && (next.IsZero() || l.due[0].at.Before(next)) {
			next = l.due[0].at
		}
	}
	w.reportWaiting()
	return next
}

// expire is Expire for the generation of a ledger.
func (w *Writer) expire(of *ledger, now time.Time) {
	generation := of.generation()
	for len(of.due) > 0 && !now.Before(of.due[0].at) {
		key := of.due[0].key
		if generation.Type(key) == noType {
			heap.Pop(&of.due) // the type or collection was forgotten
			continue
		}
		ed := w.beginOn(of, key)
		ed.now, ed.txn.recording = now, w.closed()
		for len(of.due) > 0 && of.due[0].key == key && !now.Before(of.due[0].at) {
			d := heap.Pop(&of.due).(deadline)
			ed.of(d.kind).handleDeadline(d)
		}
		ed.typ.ByName.compact()
		ed.typ.Wildcard.compact()
		for _, s := range w.served {
			if s.ledger == of && w.closed() { // otherwise passEdit does that
				w.withhold(s, ed, w.Generation().Type(key), ed.txn.touched)
			}
		}
		w.publish(ed)
	}
}

// handleDeadline processes a deadline, unless it is outdated.
func (ed setEdit) handleDeadline(d deadline) {
	e := ed.set.Get(d.name)
	if !e.timerStands(d.at) {
		return
	}
	e.timer.queued = time.Time{}
	switch r := e.Resource; {
	case e.timer.due.IsZero() || ed.now.Before(e.timer.due):
		ed.queueTimer(e)
	case e.Expires() && !ed.now.Before(e.Deadline()):
		ed.expireEntry(e)
	case e.yields && !ed.now.Before(e.timer.yields):
		ed.yieldTimedOut(e)
	case (r.DoNotCache || r.Unresolved()) && !r.ContentDropped():
		dropped := *e
		dropped.Resource, dropped.ownLifetime().contentDropped = r.DropContent(), ed.now
		ed.set.contentDroppedAt = ed.now
		ed.setTimer(&dropped)
		ed.set.put(ed.txn, &dropped)
	}
}

// expireEntry removes a resource whose TTL ended. The same name in the wildcard set is not affected. The next
// subscriber causes a new request, since the origin may still have the resource.
func (ed setEdit) expireEntry(e *Entry) {
	if ed.kind == Wildcard {
		ed.putTombstone(e)
		return
	}
	yielding := *e
	yielding.yields = true
	ed.putAbsent(e.Name, &yielding)
	gone := *ed.set.Get(e.Name)
	gone.Expired = true
	ed.set.put(ed.txn, &gone)
	e.Name.stale = true
}
