package cache

import (
	"container/heap"
	"slices"
	"time"
)

// Trim drops outdated state, such as tombstones that are too old or that all wildcard streams were sent. The owner of
// the writer calls it periodically.
func (w *Writer) Trim(now time.Time) {
	w.fanouts.EndOld(now)
	w.trimReports(now)
	w.trimRestored(now)
	for _, b := range w.branches {
		for key, tombs := range b.tombstones {
			if passed := b.view.passed(key); tombs[0].passed(passed, now.Add(-w.view.cfg.TombstoneAge)) {
				w.trim(b, key, passed, now)
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

// passed reports whether a tombstone may be dropped: all wildcard streams were sent the removal, or it is from before
// the time old.
func (tomb *tombstone) passed(passed Seq, old time.Time) bool {
	return tomb.seq <= passed || tomb.at.Before(old)
}

// trim drops the tombstones of a type that may be dropped.
func (w *Writer) trim(b *branch, key string, passed Seq, now time.Time) {
	ed := w.beginOn(b, key)
	set, tombs := &ed.typ.Wildcard, b.tombstones[key]
	for old := now.Add(-w.view.cfg.TombstoneAge); len(tombs) > 0 && tombs[0].passed(passed, old); tombs = tombs[1:] {
		tomb := tombs[0]
		if e := set.Get(tomb.name); e != nil && e.Seq == tomb.seq {
			set.drop(ed.txn, e)
			set.floor = tomb.seq
			tomb.name.entries--
			ed.index.release(tomb.name)
		}
	}
	if b.tombstones[key] = tombs; len(tombs) == 0 {
		delete(b.tombstones, key)
	}
	set.compact()
	w.publish(ed)
}

// trimRestored confirms restored names for which the origin has sent no response for restoredTimeout.
func (w *Writer) trimRestored(now time.Time) {
	x, from := &w.view.index, w.Source()
	if !from.Connected || now.Sub(from.Since) < restoredTimeout {
		return
	}
	x.mu.Lock()
	if x.sources[w.source].restored == 0 {
		x.mu.Unlock()
		return
	}
	for _, t := range x.types {
		for _, n := range t.names {
			if n.source == w.source {
				x.dropRestored(n)
			}
		}
	}
	x.mu.Unlock()
	w.view.cfg.SettledChanged(w.source)
}

// Expire processes the timers that are due. It removes resources whose TTL ended, whether or not the origin is
// connected (R107). It drops content that may not be cached, and responses that an alias names no resource. It returns
// the time of the next call; zero if there are no timers.
func (w *Writer) Expire(now time.Time) (next time.Time) {
	for _, l := range slices.Backward(w.branches) { // the rest first: cohorts follow it
		w.expire(l, now)
	}
	for _, l := range w.branches {
		if len(l.due) > 0 && (next.IsZero() || l.due[0].at.Before(next)) {
			next = l.due[0].at
		}
	}
	return next
}

// expire is Expire for the generation of a branch.
func (w *Writer) expire(b *branch, now time.Time) {
	generation := b.generation()
	for len(b.due) > 0 && !now.Before(b.due[0].at) {
		key := b.due[0].key
		if generation.Type(key) == noType {
			heap.Pop(&b.due) // the type or collection was removed
			continue
		}
		ed := w.beginOn(b, key)
		ed.now = now
		for len(b.due) > 0 && b.due[0].key == key && !now.Before(b.due[0].at) {
			d := heap.Pop(&b.due).(deadline)
			ed.editSet(d.kind).handleDeadline(d)
		}
		ed.typ.ByName.compact()
		ed.typ.Wildcard.compact()
		w.publish(ed)
	}
}

// clearWildcard empties the wildcard set.
func (ed *edit) clearWildcard() {
	for e := range ed.typ.Wildcard.Since(0) {
		if named := ed.shadowedEntry(e.Name); named != nil && e.Present() {
			ed.unshadow(named)
		}
		ed.txn.touch(e.Name)
		e.Name.entries--
		ed.index.release(e.Name)
	}
	ed.clearErrors()
	ed.typ.Wildcard = Set{last: ed.gen.Seq, floor: ed.gen.Seq}
	ed.typ.Phase, ed.typ.Restored, ed.typ.Presumed, ed.typ.era = Unknown, false, false, ed.index.era
	ed.index.lastKnown = false
	ed.w.view.index.dropReports(ed.index, Wildcard)
	delete(ed.branch.tombstones, ed.typ.URL)
}

// handleDeadline processes a deadline, unless it is outdated.
func (ed setEdit) handleDeadline(d deadline) {
	e := ed.set.Get(d.name)
	if !e.hasQueuedTimer(d.at) {
		return
	}
	e.timer.queued = time.Time{}
	switch r := e.Resource; {
	case e.timer.due.IsZero() || ed.now.Before(e.timer.due):
		ed.queueTimer(e)
	case e.Expires() && !ed.now.Before(e.Deadline()):
		ed.expireEntry(e)
	case e.shadowed && !ed.now.Before(e.timer.shadowedUntil):
		ed.shadowTimedOut(e)
	case (r.DoNotCache || r.Unresolved()) && !r.ContentDropped():
		ed.dropContent(e)
	}
}
