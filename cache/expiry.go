package cache

import (
	"container/heap"
	"slices"
	"time"
)

const (
	// unresolvedLife is how long the origin's word that it knows no resource by an
	// alias is passed on without asking it again (B.20).
	unresolvedLife = 5 * time.Second

	// uncachedLife is how long content that may not be kept stays, for the streams
	// that wait for it now (B.25).
	uncachedLife = time.Second

	// missEvery bounds how often the origin is asked for what it believes to be here.
	refetchEvery = time.Second
)

// A deadline is when something has to be done about an entry.
type deadline struct {
	at   time.Time
	key  string // type URL or collection
	kind Kind
	name *Name
}

// deadlines is a heap, the next one first. What it says may be out of date: the entry
// decides.
type deadlines []deadline

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d deadlines) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)        { *d = append(*d, x.(deadline)) }

func (d *deadlines) Pop() any {
	old := *d
	last := old[len(old)-1]
	*d = old[:len(old)-1]
	return last
}

// An alarm says when something has to be done about an entry. It goes on from one
// version of the entry to the next, and belongs to the writer.
type alarm struct {
	due    time.Time // zero is never
	queued time.Time // when the writer will look, at the latest when it is due
	yields time.Time // until when the entry yields to a member, if it does
}

// awaited reports whether the writer has to look at an entry at a time that it once
// noted.
func (e *Entry) awaited(at time.Time) bool {
	return e.Present() && e.alarm != nil && e.alarm.queued.Equal(at)
}

// renew records that the origin said anew how long an entry lives.
func (ed *edit) renew(kind Kind, e *Entry, deadline time.Time) {
	l := e.ownLife()
	l.deadline, l.renewed = deadline, ed.next()
	ed.change.Renewed++
	ed.markChanged(kind, e.Name)
}

// inherit is for an entry that readers of another one see from now on, without being
// told, since its content is the same: they may have it under another version, and
// have to learn how long it lives now. Whether they have read of the other's renewals
// is not known.
func (ed *edit) inherit(e, seen *Entry) {
	e.addVersionsOf(seen)
	if !e.Deadline().Equal(seen.Deadline()) || seen.Renewed() > 0 {
		e.ownLife().renewed = ed.next()
		ed.change.Renewed++
	}
}

// beat takes a heartbeat: it says for how long a resource lives on, to those who have
// this very version (R106).
func (ed *edit) heartbeat(kind Kind, set *Set, r received) {
	held := ed.heldUnder(kind, r.Name)
	if len(held) == 0 && kind == Wildcard {
		ed.refetchMissing(nil)
	}
	for _, n := range held {
		old := set.Get(n)
		switch {
		case old.Present() && old.Resource.Key() == r.Key() && old.Resource.OriginVersion == r.OriginVersion:
			ed.change.Seen++
			again := *old
			ed.renew(kind, &again, r.deadline)
			ed.setAlarm(kind, &again)
			set.put(ed.txn, &again)
		case old.Present():
		case kind == Wildcard:
			ed.refetchMissing(nil)
		default:
			ed.refetchMissing(n)
		}
	}
}

// heldAs returns the names under which a set may hold a resource.
func (ed *edit) heldUnder(kind Kind, resource string) []*Name {
	var names []*Name
	if n := ed.index.names[resource]; n != nil && (kind == Wildcard || ed.accepts(n)) {
		names = append(names, n)
	}
	if kind == ByName {
		names = append(names, ed.ledger.aliases[ed.typ.URL][resource]...)
	}
	return names
}

// miss has the origin asked once more for a name, or for the members if n is nil. It
// believes that a resource is here and only says that it lives on, so otherwise
// nobody would ever have it.
func (ed *edit) refetchMissing(n *Name) {
	last := ed.w.refetchedAt[ed.typ.URL]
	if n != nil {
		last = n.Asked()
	}
	switch {
	case ed.now.Sub(last) < refetchEvery:
		return
	case n == nil && len(ed.index.wildcards) > 0:
		ed.index.refetch, ed.w.refetchedAt[ed.typ.URL] = true, ed.now
	case n != nil && len(n.watchers) > 0:
		n.refetch = true
	default:
		return
	}
	ed.pokes |= ed.w.view.index.want(ed.index, n)
}

// due returns when an entry, which is not published yet, will have to be looked at; zero if
// never.
func (ed *edit) dueAt(e *Entry) (due time.Time) {
	due = e.Deadline()
	by := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	switch r := e.Resource; {
	case r.ContentDropped():
	case r.Unresolved():
		due = ed.now.Add(unresolvedLife)
	case r.DoNotCache:
		by(ed.now.Add(uncachedLife))
	}
	if e.yields {
		by(e.alarm.yields)
	}
	return due
}

// limit notes when an entry, which is not published yet, will have to be looked at.
func (ed *edit) setAlarm(kind Kind, e *Entry) {
	due := ed.dueAt(e)
	if kind == ByName {
		// Whoever comes next has it asked for again if it may not be kept.
		e.Name.stale = e.Resource.DoNotCache || e.Resource.ContentDropped()
	}
	if e.alarm == nil && due.IsZero() {
		return
	}
	if e.alarm == nil {
		e.alarm = new(alarm)
	}
	e.alarm.due = due
	ed.queueAlarm(kind, e)
}

// queue sees to it that an entry is looked at when it is due, if ever.
func (ed *edit) queueAlarm(kind Kind, e *Entry) {
	at := e.alarm
	if at.due.IsZero() || !at.queued.IsZero() && !at.due.Before(at.queued) {
		return // nothing to do, or it will be looked at before
	}
	at.queued = at.due
	ed.schedule(deadline{at.due, ed.typ.URL, kind, e.Name})
}

// schedule has the writer look at an entry at some time. What was scheduled for entries
// that have gone since is forgotten now and then, or what comes and goes would fill the
// heap for as long as it was to live.
func (ed *edit) schedule(d deadline) {
	const slack = 64
	of := ed.ledger
	if len(of.due) > 2*of.kept+slack {
		of.due = slices.DeleteFunc(of.due, func(d deadline) bool {
			t := ed.gen.Type(d.key)
			e := t.set(d.kind).Get(d.name)
			return !e.awaited(d.at)
		})
		heap.Init(&of.due)
		of.kept = len(of.due)
	}
	heap.Push(&of.due, d)
}

// Expire removes what has outlived its time, for every client and whether or not
// the origin is there (R107), and gives up content that may not be kept, and the word
// that an alias means nothing. It returns when to call it again; a zero time if
// there is nothing to expire.
func (w *Writer) Expire(now time.Time) (next time.Time) {
	for _, l := range w.gate.ledgers {
		w.expire(l, now)
	}
	for _, l := range w.gate.ledgers {
		if len(l.due) > 0 && (next.IsZero() || l.due[0].at.Before(next)) {
			next = l.due[0].at
		}
	}
	return next
}

// expire is Expire for the newest head of a ledger.
func (w *Writer) expire(of *ledger, now time.Time) {
	generation := w.generationOf(of)
	for len(of.due) > 0 && !now.Before(of.due[0].at) {
		key := of.due[0].key
		if generation.Type(key) == noType {
			heap.Pop(&of.due) // of a collection that was given up
			continue
		}
		ed := w.beginOn(of, key)
		ed.now = now
		for len(of.due) > 0 && of.due[0].key == key && !now.Before(of.due[0].at) {
			d := heap.Pop(&of.due).(deadline)
			ed.handleDeadline(d)
		}
		ed.typ.ByName.compact()
		ed.typ.Wildcard.compact()
		w.publish(ed)
	}
}

// expire does what an entry's deadline asks for, if it still does.
func (ed *edit) handleDeadline(d deadline) {
	set := ed.set(d.kind)
	e := set.Get(d.name)
	if !e.awaited(d.at) {
		return
	}
	e.alarm.queued = time.Time{}
	switch r := e.Resource; {
	case e.alarm.due.IsZero() || ed.now.Before(e.alarm.due):
		ed.queueAlarm(d.kind, e)
	case e.Expires() && !ed.now.Before(e.Deadline()):
		ed.expireEntry(d.kind, set, e)
	case e.yields && !ed.now.Before(e.alarm.yields):
		ed.yieldTimedOut(e)
	case (r.DoNotCache || r.Unresolved()) && !r.ContentDropped():
		given := *e
		given.Resource, given.ownLife().contentDropped = r.DropContent(), ed.now
		set.contentDroppedAt = ed.now
		ed.setAlarm(d.kind, &given)
		set.put(ed.txn, &given)
	}
}

// outlived removes an entry whose time is up, which says nothing of the member of that name.
// The next to ask for it has the origin asked: it may have it still.
func (ed *edit) expireEntry(kind Kind, set *Set, e *Entry) {
	if kind == Wildcard {
		ed.putTombstone(set, e)
		return
	}
	yielding := *e
	yielding.yields = true
	ed.putAbsent(set, e.Name, &yielding)
	gone := *set.Get(e.Name)
	gone.Expired = true
	set.put(ed.txn, &gone)
	e.Name.stale = true
}
